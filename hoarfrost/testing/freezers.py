"""Is a freezer what the contract asks for? Its masks, what moves under them, its state, and what it releases."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.utils.data import Dataset, TensorDataset

from hoarfrost import audit, budget
from hoarfrost.audit.canaries import Freezing
from hoarfrost.freezing import Freezer
from hoarfrost.info import RunInfo
from hoarfrost.masks import Live, PartialMask, same_masks
from hoarfrost.private import make_private
from hoarfrost.query import Query
from hoarfrost.run import Private
from hoarfrost.testing import oracle, settings
from hoarfrost.testing.findings import Findings

LR = 0.25  # a power of two: the plain SGD step is repeated bit for bit
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD with momentum": lambda p: SGD(p, lr=LR, momentum=0.9, weight_decay=0.01),
    "Adam": lambda p: Adam(p, lr=0.01),
    "SGD": lambda p: SGD(p, lr=LR),
}
Loss = Callable[[nn.Module, Any], Tensor]
Masks = dict[str, Tensor]


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    """The summed loss of a batch of inputs and classes."""
    inputs, classes = batch
    return nn.functional.cross_entropy(model(inputs), classes, reduction="sum")


def check_freezer(
    freezer: Freezer,
    *,
    models: Sequence[tuple[nn.Module, Dataset[Any]]] | None = None,
    loss: Loss = cross_entropy,
    steps: int = 12,
    sample_rate: float = 0.25,
    quick: bool = True,
) -> None:
    """Checks a freezer of your own, and raises `ContractBroken` with all that is wrong.

    Args:
        freezer: with settings by which something is frozen within ``steps``.
        models: pairs of a model and a data set, if the freezer is made for certain models. By default small classifiers
            with linear, convolutional, normalization and embedding layers.
        loss: of a model and a batch, summed over the batch.
        steps, sample_rate: of the runs; an epoch has 1 / ``sample_rate`` steps.
        quick: one optimizer for each model. False tries every optimizer with every model, and longer audits.

    Checked are:

    - Masks fit the parameters in every step, are the same if asked for twice, and `key` changes when they do.
    - Frozen weights and their optimizer state do not move by one bit and get no noise, live ones do; the weights are
      changed by the optimizer alone.
    - What it keeps comes back from a checkpoint, and two runs share nothing; the ``repr`` shows the settings, and
      nothing that changes.
    - Releases that it declares are in the ledger before it looks, are made once in a run and not again by a run that
      goes on from a checkpoint, and are charged again in another run.
    - The noise on empty batches (`hoarfrost.audit.noise`), where the masks stay the same and ignore the data.

    What cannot be seen: a freezer that holds private data itself and looks at it without its query.

    Guarantees:
        A correct freezer is refused with probability below 1e-4: noise is drawn anew in every call. A pass says that no
        fault was found in what was tried.

    >>> import hoarfrost
    >>> check_freezer(hoarfrost.freeze.Random(rate=0.5))
    >>> class Unnoticed(Freezer):
    ...     def key(self, step, info):
    ...         return None
    ...     def live(self, step, info):
    ...         return {name: len(shape) > 1 or step > 2 for name, shape in info.shapes.items()}
    >>> check_freezer(Unnoticed())
    Traceback (most recent call last):
        ...
    hoarfrost.errors.ContractBroken: ...live() changes in step 3 and key() does not...
    """
    found = Findings(repr(freezer))
    if not isinstance(freezer, Freezer):
        found.add("it is no Freezer", "Derive it from hoarfrost.freeze.Freezer")
        found.finish()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        settings.check_repr(found, freezer, "its state is restored from a checkpoint, and releases are not made again")
        tried = _classifiers() if models is None else tuple(models)
        runs = zip(tried, (list(OPTIMIZERS) * len(tried)), strict=False) if quick else product(tried, OPTIMIZERS)
        for (model, data), optimizer in runs:
            check = _Check(found, freezer, model, data, loss, optimizer, steps, sample_rate)
            with found.during(f"a run with {optimizer}"):
                check.run()
        if not found:
            with found.during("a release"):
                _Check(found, freezer, *tried[0], loss, "SGD", steps, sample_rate).releases()
            with found.during("the audit of noise"):
                for model, data in tried:
                    for alarm in _noise_audit(freezer, model, data, 20 if quick else 100):
                        found.add(alarm, "hoarfrost.audit.noise says what this test is about")
    found.finish()


class _Check:
    """One freezer on one model with one optimizer."""

    def __init__(
        self, found: Findings, freezer: Freezer, model: nn.Module, data: Dataset[Any], loss: Loss, optimizer: str,
        steps: int, sample_rate: float,
    ) -> None:  # fmt: skip
        self.found, self.freezer, self.model, self.data, self.loss = found, freezer, model, data, loss
        self.optimizer, self.steps, self.sample_rate = optimizer, steps, sample_rate

    def private(self, **options: Any) -> Private:
        """A run of its own from the same weights; torch's random numbers are the same, too."""
        torch.manual_seed(1)
        model = copy.deepcopy(self.model)
        given: dict[str, Any] = {
            "sample_rate": self.sample_rate, "steps": self.steps, "noise_multiplier": 1.0, "delta": 1e-5,
            "accountant": "rdp", "loss_reduction": "sum", "freeze": self.freezer,
            "allow_state": ["*"],  # what it moves is for this check to find, and to say why
        }  # fmt: skip
        return make_private(model, OPTIMIZERS[self.optimizer](model.parameters()), self.data, **(given | options))

    def run(self) -> None:
        """Masks and weights of a whole run, the same run again, and a run that goes on from a checkpoint."""
        with tempfile.TemporaryDirectory() as folder:
            path, half = Path(folder) / "checkpoint.safetensors", self.steps // 2
            first, beside = self.private(seed=1), self.private(seed=1)
            masks = self.train(first, half)
            first.save(path)
            freezer, info = _freezer(first), first.info()
            known = self.ahead(first)
            answers = [freezer.live(step, info) for step in known]
            masks += self.train(first, self.steps)
            alike = (beside, self.private(seed=1))  # one that was made before the first began, and one made after
            if not all(_equal(masks, self.train(run, half) + self.train(run, self.steps)) for run in alike):
                self.found.add(
                    "two runs with the same weights, data and noise freeze differently",
                    "Let fresh() return a copy that begins anew, and start() forget what an earlier run left. Draw "
                    "random numbers from a seed that is a setting",
                )
            if repr(_freezer(first)) != repr(self.freezer):
                self.found.add(
                    f"its repr changes during a run, from {self.freezer!r} to {_freezer(first)!r}",
                    "Show settings alone: a checkpoint gives its state to a freezer with the same repr, and no other",
                )
                return
            later = self.private()
            later.load(path)
            again = [_freezer(later).live(step, info) for step in known]
            if not all(same_masks(one, other) for one, other in zip(answers, again, strict=True)):
                self.found.add(
                    "a run that goes on from a checkpoint freezes otherwise than the run that wrote it",
                    "Put everything that start(), observe() and prepare() found into state(), and take it back in "
                    "load_state()",
                )
            self.train(later, self.steps)

    def ahead(self, private: Private) -> range:
        """Steps from the next one on for which all that the freezer may want to know is known already."""
        planned = enumerate(private.plan.releases)
        waits = [release.step for number, release in planned if not private.account.is_made(number)]
        return range(private.steps_taken, min([self.steps, *(step for step in waits if step >= private.steps_taken)]))

    def train(self, private: Private, until: int) -> list[Masks]:
        """Trains, looks at every step, and returns its masks."""
        masks: list[Masks] = []
        last: tuple[object, Live] | None = None
        before = _snapshot(private)
        while private.steps_taken < until:
            for batch in private.loader:
                step = private.steps_taken
                private.optimizer.zero_grad()
                loss = self.loss(private.model, batch)
                last = self.ask(private, step, last)
                if loss.requires_grad:
                    loss.backward()
                private.optimizer.step()
                masks.append(_written_out(private))
                self.compare(private, step, before, masks[-1])
                before = _snapshot(private)
                if private.steps_taken >= until:
                    break
        return masks

    def ask(self, private: Private, step: int, last: tuple[object, Live] | None) -> tuple[object, Live]:
        """The freezer's answers, which must be the same twice, and change with the key only."""
        freezer, info = _freezer(private), private.info()
        key, live = freezer.key(step, info), freezer.live(step, info)
        live = {name: mask.clone() if isinstance(mask, Tensor) else mask for name, mask in live.items()}
        if not same_masks(live, freezer.live(step, info)):
            self.found.add(
                f"live({step}, info) gives other masks when it is asked again",
                "Let it depend on the step and on what the freezer was told: no random numbers, no counting",
            )
        if last is not None and last[0] == key and not same_masks(last[1], live):
            self.found.add(
                f"live() changes in step {step} and key() does not",
                "Return another key whenever the masks change: as long as it stays the same, live() is not asked "
                "again. Without a key() of its own, a freezer is asked every time",
            )
        return key, live

    def compare(self, private: Private, step: int, before: dict[str, dict[str, Tensor]], masks: Masks) -> None:
        """What is frozen has not moved by one bit, and what is live was moved by the optimizer, with noise."""
        flows, zeros, total = _freezer(private).velocity_flows, 0, 0
        after = _snapshot(private)
        for name, p in private.optimizer.parameters.items():
            live, grad = masks[name], torch.zeros_like(p) if p.grad is None else p.grad
            for what, old in before[name].items():
                if not flows and not torch.equal(old[~live], after[name][what][~live]):
                    self.found.add(
                        f"frozen coordinates of {name} change in step {step} ({what or 'the weights'}, "
                        f"{self.optimizer})",
                        "Let the freezer change weights in start() only, and keep copies of what it is handed",
                    )
            if bool(grad[~live].any()):
                self.found.add(f"frozen coordinates of {name} get a gradient or noise", "Report this: it is our fault")
            own = p.requires_grad and live.any()
            zeros, total = zeros + int((grad[live] == 0).sum()) * bool(own), total + int(live.sum()) * bool(own)
            moved = before[name][""].add(grad, alpha=-LR)
            if self.optimizer == "SGD" and not torch.equal(moved[live], after[name][""][live]):
                self.found.add(
                    f"weights of {name} are changed in step {step} by something else than the optimizer",
                    "Let the freezer change weights in start() only, and keep copies of what it is handed",
                )
        if total and zeros > 0.01 * total:
            self.found.add(f"{zeros} of {total} live coordinates get no noise in step {step}", "See that live() "
                           "returns masks that nobody writes into later")  # fmt: skip

    # What it releases of its own.

    def releases(self) -> None:
        """Releases are charged for before it looks, once in a run, and again in another."""
        planned = self.private().plan.releases
        noisy = [n for n, each in enumerate(planned) if isinstance(each.event, budget.Gaussian) and each.event.steps]
        due = [number for number in noisy if planned[number].step < self.steps]
        if not due:
            return
        if self.freezer.fresh() is self.freezer:
            self.found.add(
                "it makes a release and fresh() returns itself: what one run finds would be used by others",
                "Return a copy that forgets, such as copy.copy(self)",
            )
            return
        for stop in sorted({planned[number].step + 1 for number in due}):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "checkpoint.safetensors"
                ledger = budget.Ledger.create(Path(folder) / "ledger.jsonl", epsilon=None, delta=1e-5)
                first = self.private(ledger=ledger, run="first")
                with self.watched(first, ledger) as made:
                    self.train(first, min(stop, self.steps))
                    first.save(path)
                later = self.private(ledger=ledger, run="first")
                later.load(path)
                with self.watched(later, ledger) as made_later:
                    if later.steps is None or later.steps_taken < later.steps:
                        self.train(later, self.steps)
                if set(made) & set(made_later):
                    self.found.add(
                        "a run that goes on from a checkpoint looks at the data again, and is charged again",
                        "Keep what prepare() found in state(), and let the repr show settings alone",
                    )
                elif made + made_later != sorted(due, key=lambda number: planned[number].step):
                    self.found.add(f"of its releases {due}, {made + made_later} were made", "Report this: our fault")
                other = self.private(ledger=ledger, run="second")
                with self.watched(other, ledger) as made_by_other:
                    self.train(other, self.steps)
                if made_by_other != made + made_later:
                    self.found.add(
                        "another run is not charged for what it looks at",
                        "Let fresh() return a copy that forgets what it found",
                    )

    @contextmanager
    def watched(self, private: Private, ledger: budget.Ledger) -> Iterator[list[int]]:
        """Notes which releases are made; each must be in the ledger by then."""
        freezer, numbers, run = _freezer(private), [], private
        original = freezer.prepare

        def prepare(number: int, query: Query, info: RunInfo) -> None:
            ledger.refresh()
            steps = ledger.find(run.run)
            spent = [] if steps is None else [e for e in ledger.owned_by(steps.id) if e.reserved]
            planned = run.plan.releases[number].event
            if not any(entry.event == planned and entry.reserved == entry.event.steps for entry in spent):
                self.found.add(f"release {number} is not in the ledger when it looks", "Report this: it is our fault")
            numbers.append(number)
            original(number, query, info)

        object.__setattr__(freezer, "prepare", prepare)
        try:
            yield numbers
        finally:
            object.__delattr__(freezer, "prepare")


class _AsFound(Freezing):
    """The freezer, and the masks that it was seen to use."""

    def __init__(self, freezer: Freezer, masks: Masks) -> None:
        self.freezer, self.masks, self.name = freezer, masks, repr(freezer)

    def options(self, model: nn.Module) -> dict[str, Any]:
        return {"freeze": self.freezer}

    def live(self, model: nn.Module, step: int, info: RunInfo) -> dict[str, Tensor]:
        return self.masks


def _noise_audit(freezer: Freezer, model: nn.Module, data: Dataset[Any], rounds: int) -> Iterator[str]:
    """Only of a freezer whose masks are the same in all steps, and follow from the weights at most."""
    inputs = data[0][0] if isinstance(data[0], tuple) else data[0]
    copied = copy.deepcopy(model)
    private = make_private(copied, SGD(copied.parameters(), lr=0.0), TensorDataset(torch.stack([inputs] * 2)),
                           sample_rate=1e-9, steps=rounds, noise_multiplier=1.0, delta=1e-5, freeze=freezer,
                           accountant="rdp")  # fmt: skip
    if private.plan.releases:
        return
    masks: list[Masks] = []
    for (x,) in private.loader:
        private.optimizer.zero_grad()
        private.model(x)
        private.optimizer.step()
        masks.append(_written_out(private))
    if not _equal(masks, masks[:1] * len(masks)):
        return
    yield from audit.noise(
        model=model, shape=tuple(inputs.shape), dtype=inputs.dtype, freeze=_AsFound(freezer, masks[0]), rounds=rounds
    ).alarms


def _classifiers() -> tuple[tuple[nn.Module, Dataset[Any]], ...]:
    classes = torch.arange(24) % 3
    return tuple((model, TensorDataset(x.repeat(3, *[1] * (x.dim() - 1)), classes))
                 for model, x in oracle.small_models())  # fmt: skip


def _freezer(private: Private) -> Freezer:
    assert private.optimizer.controller is not None  # it was made with a freezer
    return private.optimizer.controller.freezer


def _written_out(private: Private) -> Masks:
    """The masks that hold now, as tensors."""
    assert private.optimizer.controller is not None
    masks = private.optimizer.controller.masks
    written = {}
    for name, p in private.optimizer.parameters.items():
        mask = masks.get(name, True)
        written[name] = mask.mask.clone() if isinstance(mask, PartialMask) else torch.full(p.shape, bool(mask))
    return written


def _snapshot(private: Private) -> dict[str, dict[str, Tensor]]:
    """The weights (under "") and their optimizer state, by parameter name."""
    kept: dict[str, dict[str, Tensor]] = {}
    for name, p in private.optimizer.parameters.items():
        state = private.optimizer.inner.state.get(p, {})
        alike = {n: t.clone() for n, t in state.items() if isinstance(t, Tensor) and t.shape == p.shape}
        kept[name] = {"": p.detach().clone()} | alike
    return kept


def _equal(one: Sequence[Masks], other: Sequence[Masks]) -> bool:
    return len(one) == len(other) and all(settings.same_tensors(a, b) for a, b in zip(one, other, strict=True))
