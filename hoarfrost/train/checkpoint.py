"""Checkpoints: safetensors and JSON, all that is needed to go on, and nothing that could be executed or subtracted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from hoarfrost import budget, validate
from hoarfrost.budget.events import from_dict, gaussian_from_dict
from hoarfrost.errors import HoarfrostError, InvalidValue
from hoarfrost.files import replace_file
from hoarfrost.freezing.releases import Releases
from hoarfrost.run import Private, check_finite
from hoarfrost.untrusted import line, shown_path, size_of

FORMAT = 4
MOST_BYTES = 1 << 24  # of a checkpoint's header


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint's header says. The tensors stay in the file until `restore`."""

    path: Path
    steps_taken: int
    position: Mapping[str, int]  # of the sampler
    spent: budget.Spending
    released: Releases  # by freezers, beside the steps
    ledger: Mapping[str, str] | None  # path, run, and head
    facts: Mapping[str, Any]  # what the caller of `save` added
    _freezer: str | None  # in words
    _shares: float  # the live shares of all steps, added up
    _optimizer: Mapping[str, Any]
    _scheduler: Mapping[str, Any] | None

    @classmethod
    def read(cls, path: str | Path) -> Checkpoint:
        """Reads the header; anything but a checkpoint of this format is refused."""
        path = Path(path)
        size_of(path, "checkpoint")
        try:
            with open(path, "rb") as start:
                if int.from_bytes(start.read(8), "little") > MOST_BYTES:
                    raise ValueError("it begins with a header that is far too long")
            with safe_open(path, "pt") as file:
                text = (file.metadata() or {}).get("hoarfrost-checkpoint", "")
            header = json.loads(text) if text else {}
            if not isinstance(header, dict) or header.get("format") != FORMAT:
                raise ValueError("it is not a checkpoint of this version of Hoarfrost")
            validate.count(steps_taken=header["steps_taken"])
            books = header["ledger"]
            if books is not None and not all(isinstance(books[name], str) for name in ("path", "run", "head")):
                raise ValueError("what it says of its ledger cannot be")
            return cls(
                path=path,
                steps_taken=header["steps_taken"],
                position=header["position"],
                spent=budget.merged(*map(_spending, header["spent"])),
                released={name: from_dict(event) for name, event in header["released"].items()},
                ledger=header["ledger"],
                facts=header["facts"],
                _freezer=header["freezer"],
                _shares=float(header["shares"]),
                _optimizer=header["optimizer"],
                _scheduler=header["scheduler"],
            )
        except (OSError, SafetensorError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InvalidValue(line(f"cannot read the checkpoint {shown_path(path)}: {_reason(error)}")) from error

    def restore(
        self,
        private: Private,
        scheduler: LRScheduler | None = None,
        *,
        also: budget.Spending | None = None,
    ) -> None:
        """Brings model, optimizer, scheduler and sampler to where they were; what was spent since stays spent.

        Args:
            also: what else was spent on these weights or on others beside them.

        Guarantees:
            Noise and batches that follow are new ones. Nothing is refunded (`Private.restore`).
        """
        if (scheduler is None) != (self._scheduler is None):
            have, lack = ("a scheduler", "none") if scheduler is None else ("no scheduler", "one")
            raise InvalidValue(f"the checkpoint {self.path} was saved with {have}, and is restored with {lack}")
        try:
            with safe_open(self.path, "pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it has no other way
            spent = budget.merged(self.spent, also or {})
            private.restore(steps_taken=self.steps_taken, position=self.position, spent=spent, released=self.released)
            weights = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
            private.model.load_state_dict(weights)
            _load_optimizer(private.optimizer.inner, self._optimizer, tensors)
            if private.optimizer.switch is not None:
                kept = {name.removeprefix("freezer."): t for name, t in tensors.items() if name.startswith("freezer.")}
                private.optimizer.switch.restore(self._freezer, self._shares, kept)
            if scheduler is not None and self._scheduler is not None:
                scheduler.load_state_dict(_like(scheduler.state_dict(), self._scheduler))
        except (OSError, SafetensorError, ValueError, TypeError, KeyError, RuntimeError, ArithmeticError) as error:
            reason = line(f"the checkpoint {shown_path(self.path)} does not fit this run: {_reason(error)}")
            raise InvalidValue(reason) from error


def save(
    path: str | Path,
    private: Private,
    *,
    scheduler: LRScheduler | None = None,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Writes a checkpoint: weights, optimizer, scheduler, step, sampler position, what was spent, the ledger's head.

    Args:
        facts: anything else that JSON can hold; `Checkpoint.read` hands it back.

    Guarantees:
        The file is whole or not there, and replaces an earlier one in one move. The noise generator's key and state are
        not in it: noise that is drawn twice can be subtracted. Weights that are not finite are not saved.

    >>> import tempfile, hoarfrost
    >>> data = torch.utils.data.TensorDataset(torch.randn(100, 3))
    >>> def new():
    ...     model = torch.nn.Linear(3, 2)
    ...     optimizer = torch.optim.Adam(model.parameters())
    ...     return hoarfrost.make_private(model, optimizer, data, batch_size=10, noise_multiplier=1.0, delta=1e-5)
    >>> private = new()
    >>> for (x,) in private.loader:
    ...     private.optimizer.zero_grad()
    ...     private.model(x).square().mean().backward()
    ...     private.optimizer.step()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/checkpoint.safetensors", private)
    ...     later = new()
    ...     Checkpoint.read(f"{folder}/checkpoint.safetensors").restore(later)
    >>> later.steps_taken, later.epsilon() == private.epsilon()
    (10, True)
    """
    check_finite(private.model, private.steps_taken)
    tensors = {f"model.{name}": value for name, value in private.model.state_dict().items()}
    optimizer = _describe_optimizer(private.optimizer.inner, tensors)
    switch = private.optimizer.switch
    tensors |= {f"freezer.{name}": value for name, value in (switch.freezer.state() if switch else {}).items()}
    header = {
        "format": FORMAT,
        "steps_taken": private.steps_taken,
        "position": private.loader.state_dict(),
        "spent": [{"run": run.name, "event": event.as_dict()} for run, event in private.spent().items()],
        "released": {name: event.as_dict() for name, event in private.freezer_releases().items()},
        "ledger": _ledger(private),
        "freezer": None if switch is None else repr(switch.freezer),
        "shares": float(private.steps_taken) if switch is None else switch.shares,
        "optimizer": optimizer,
        "scheduler": None if scheduler is None else scheduler.state_dict(),
        "facts": facts or {},
    }
    try:
        text = json.dumps(header)  # with Infinity where a scheduler has it
    except (TypeError, ValueError) as error:
        raise InvalidValue(
            f"the state of the optimizer or the scheduler does not fit a checkpoint, which is JSON: {error}"
        ) from error
    # Copies: tied weights share memory, which the format refuses.
    flat = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    contents = to_bytes(flat, metadata={"format": "pt", "hoarfrost-checkpoint": text})
    replace_file(Path(path), lambda draft: draft.write_bytes(contents))


def _spending(entry: Mapping[str, Any]) -> budget.Spending:
    if not isinstance(entry["run"], str):
        raise ValueError("what it says of a run cannot be")
    return budget.spending(entry["run"], gaussian_from_dict(entry["event"]))


def _ledger(private: Private) -> dict[str, str] | None:
    if private.allowance is None:
        return None
    ledger = private.allowance.ledger
    return {"path": str(ledger.path.resolve()), "run": private.run, "head": str(ledger.head)}


def _describe_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The state as JSON; its tensors go into ``tensors`` under names that say where they belong."""
    state = optimizer.state_dict()
    numbers: dict[str, dict[str, Any]] = {}
    for index, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{name}"] = value
            else:
                numbers.setdefault(str(index), {})[name] = value
    return {"groups": state["param_groups"], "numbers": numbers}


def _load_optimizer(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    state: dict[int, dict[str, Any]] = {int(index): dict(values) for index, values in saved["numbers"].items()}
    for name, value in tensors.items():
        kind, _, rest = name.partition(".")
        if kind == "optimizer":
            index, _, entry = rest.partition(".")
            state.setdefault(int(index), {})[entry] = value
    now = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": _like(now, saved["groups"])})


def _like(now: Any, saved: Any) -> Any:
    """JSON knows no tuples: what is one now becomes one again."""
    if isinstance(now, tuple) and isinstance(saved, list):
        return tuple(saved)
    if isinstance(now, list) and isinstance(saved, list) and len(now) == len(saved):
        return [_like(a, b) for a, b in zip(now, saved, strict=True)]
    if isinstance(now, dict) and isinstance(saved, dict):
        return {key: _like(now.get(key), value) for key, value in saved.items()}
    return saved


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, HoarfrostError | SafetensorError):
        return str(error)
    return " ".join(str(error).split())[:200] or type(error).__name__
