"""Checkpoints: safetensors and JSON, all that is needed to go on, and nothing that could be executed or subtracted."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from hoarfrost.budget import Counters, Snapshot
from hoarfrost.errors import HoarfrostError, InvalidValue
from hoarfrost.files import replace_file
from hoarfrost.optim.progress import Progress
from hoarfrost.run import Private
from hoarfrost.untrusted import line, shown_path, size_of

FORMAT = 5  # the first that later versions will go on reading
MOST_BYTES = 1 << 24  # of a checkpoint's header
CHECKSUM = "hoarfrost-checksum"  # of the whole file, with BLANK in its place
BLANK = "0" * 64


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint's header says. The tensors stay in the file until `restore`."""

    path: Path
    progress: Progress  # without its tensors
    facts: Mapping[str, Any]  # what the caller of `save` added
    _optimizer: Mapping[str, Any]
    _scheduler: Mapping[str, Any] | None

    @classmethod
    def read(cls, path: str | Path) -> Checkpoint:
        """Reads the header; anything but a checkpoint of this format is refused.

        Guarantees:
            The whole file matches its checksum: not one bit of it, of the weights or of what they have cost, has
            changed since it was written. Checkpoints of earlier versions have none.
        """
        path = Path(path)
        size_of(path, "checkpoint")
        try:
            with open(path, "rb") as start:
                if int.from_bytes(start.read(8), "little") > MOST_BYTES:
                    raise ValueError("it begins with a header that is far too long")
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
            if CHECKSUM in metadata:
                _check(path, metadata[CHECKSUM])
            text = metadata.get("hoarfrost-checkpoint", "")
            header = json.loads(text) if text else {}
            if not isinstance(header, dict) or "format" not in header:
                raise ValueError("it is not a checkpoint of Hoarfrost")
            if header["format"] != FORMAT:
                raise ValueError(f"it has format {header['format']!r}, and this version of Hoarfrost reads {FORMAT}")
            if "checksum" in header and CHECKSUM not in metadata:
                raise ValueError("its checksum is missing")
            return cls(
                path=path,
                progress=Progress.from_dict(header, {}),
                facts=header["facts"],
                _optimizer=header["optimizer"],
                _scheduler=header["scheduler"],
            )
        except (OSError, SafetensorError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InvalidValue(line(f"cannot read the checkpoint {shown_path(path)}: {_reason(error)}")) from error

    @property
    def account(self) -> Snapshot:
        """What was spent."""
        return self.progress.account

    @property
    def ledger(self) -> Mapping[str, str] | None:
        """Path, run, and head."""
        return self.progress.ledger

    @property
    def steps_taken(self) -> int:
        """How many steps the weights have behind them."""
        return self.account.steps_taken

    def restore(self, private: Private, scheduler: LRScheduler | None = None, *, also: Counters | None = None) -> None:
        """Brings model, optimizer, scheduler and sampler to where they were; what was spent since stays spent.

        Args:
            also: what else is known to have been charged for these weights.

        Guarantees:
            Noise and batches that follow are new ones, and a batch that was under way is void. Nothing is refunded
            (`Account.restore`).
        """
        if (scheduler is None) != (self._scheduler is None):
            have, lack = ("a scheduler", "none") if scheduler is None else ("no scheduler", "one")
            raise InvalidValue(f"the checkpoint {self.path} was saved with {have}, and is restored with {lack}")
        try:
            tensors = self._tensors()
            with replace(self.progress, tensors=tensors).restoring(private.optimizer, also=also):
                private.model.load_state_dict(_below("model", tensors))
                _load_optimizer(private.optimizer.inner, self._optimizer, tensors)
            if scheduler is not None and self._scheduler is not None:
                scheduler.load_state_dict(_like(scheduler.state_dict(), self._scheduler))
        except (OSError, SafetensorError, ValueError, TypeError, KeyError, RuntimeError, ArithmeticError) as error:
            reason = line(f"the checkpoint {shown_path(self.path)} does not fit this run: {_reason(error)}")
            raise InvalidValue(reason) from error

    def weights(self) -> dict[str, Tensor]:
        """The model's, as its `load_state_dict` takes them: to evaluate, or to begin a new stage with (``after=``)."""
        try:
            return _below("model", self._tensors())
        except (OSError, SafetensorError) as error:
            raise InvalidValue(line(f"cannot read the checkpoint {shown_path(self.path)}: {_reason(error)}")) from error

    def _tensors(self) -> dict[str, Tensor]:
        with safe_open(self.path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it has no other way


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
    """
    private.check_savable()
    tensors = {f"model.{name}": value for name, value in private.model.state_dict().items()}
    optimizer = _describe_optimizer(private.optimizer.inner, tensors)
    progress = Progress.of(private.optimizer)
    tensors |= progress.tensors
    header = {
        "format": FORMAT,
        "checksum": "sha256",
        **progress.as_dict(),
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
    contents = to_bytes(flat, metadata={"format": "pt", "hoarfrost-checkpoint": text, CHECKSUM: BLANK})
    replace_file(Path(path), lambda draft: _write(draft, contents))


def _write(draft: Path, contents: bytes) -> None:
    """Writes the contents with their checksum in its place."""
    draft.write_bytes(contents)
    with open(draft, "rb+") as file:
        os.pwrite(file.fileno(), _entry(hashlib.sha256(contents).hexdigest()), contents.index(_entry(BLANK)))


def _check(path: Path, checksum: str) -> None:
    with open(path, "rb") as file:
        size = file.read(8)
        header = file.read(int.from_bytes(size, "little"))
        digest = hashlib.sha256(size + header.replace(_entry(checksum), _entry(BLANK)))
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != checksum:
        raise ValueError("it does not match its checksum: it was damaged, or changed by something else")


def _entry(checksum: str) -> bytes:
    """The checksum as the header has it. No text in it can look like this: quotation marks in texts are escaped."""
    return f'"{CHECKSUM}":"{checksum}"'.encode()


def _below(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(f"{kind}."): t for name, t in tensors.items() if name.startswith(f"{kind}.")}


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
        # Keys are texts in JSON: those that are numbers now (a scheduler's milestones) become numbers again.
        number = all(isinstance(key, int) for key in now) and bool(now)
        found = {int(key) if number else key: value for key, value in saved.items()}
        return type(now)({key: _like(now.get(key), value) for key, value in found.items()})
    return saved


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, HoarfrostError | SafetensorError):
        return str(error)
    return " ".join(str(error).split())[:200] or type(error).__name__
