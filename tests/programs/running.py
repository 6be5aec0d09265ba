"""Runs a program of the corpus: privately, noise off; on neighbouring examples; and plainly, one example at a time.

The oracle is the program itself. In place of `make_private` it is handed a stand-in that changes nothing: the same
model, torch's own optimizer, and a loader that gives one example. What its loop then does is plain autograd of one
example's loss. `tests.oracle` clips these gradients and adds them up.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate

import hoarfrost
from hoarfrost.errors import HoarfrostError
from hoarfrost.nested import map_tensors
from hoarfrost.observers import Observer, Released
from tests import oracle

MakePrivate = Callable[..., Any]
UNUSED = ("batch_size", "epochs", "epsilon", "noise_multiplier", "sample_rate")  # every example, and no noise


@dataclass
class Step:
    """One step: what it released, times the expected batch; its sensitivity; and the weights before it, by name."""

    sums: dict[str, Tensor]
    sensitivity: float
    weights: dict[str, Tensor]

    @property
    def vector(self) -> Tensor:
        return torch.cat([self.sums[name].flatten().double() for name in sorted(self.sums)])


@dataclass
class Run:
    """What came of one run: steps of all private optimizers in order, what was said, and what else is saved."""

    steps: list[Step] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    error: BaseException | None = None
    returned: Any = None
    saved: dict[str, Tensor] = field(default_factory=dict)

    @property
    def is_refused(self) -> bool:
        return isinstance(self.error, HoarfrostError)

    def __str__(self) -> str:
        if self.error is not None:
            return f"{type(self.error).__name__}: {' '.join(str(self.error).split())}"
        return f"accepted, warned: {self.warnings[0]}" if self.warnings else "accepted"


@dataclass
class Seen:
    """What came of a program: its run, how far an example moves a sum, what an example changes, and the oracle."""

    run: Run
    stopped: BaseException | None = None  # on neighbouring examples, where its own were accepted
    moved: float = 0.0  # in units of the sensitivity
    leaks: list[str] = field(default_factory=list)
    from_oracle: float | None = None  # how far the sums are from it, in units of the sensitivity


def run(program: Callable[..., Any], rows: list[Any], *, norm: float, sample_rate: float = 1.0) -> Run:
    """Runs a program privately and without noise; by default, every example is in every batch."""
    found = Run()
    privates: list[Any] = []

    def make_private(model: nn.Module, optimizer: Any, data: Any, **options: Any) -> Any:
        kept = {name: value for name, value in options.items() if name not in UNUSED}
        settings = {"delta": 1e-5, "clip": hoarfrost.clip.Local(norm), "sample_rate": sample_rate} | kept
        if sample_rate < 1:
            settings["seed"] = 1  # the same batches every time
        private = hoarfrost.make_private(model, optimizer, data, noise_multiplier=0.0, **settings)
        private.observe(_Recorder(private, found.steps))
        privates.append(private)
        return private

    torch.manual_seed(0)
    with _listening(found.warnings):
        try:
            found.returned = program(rows, make_private)
        except Exception as error:
            found.error = error
    for private in privates:
        private.loader._loader._iterator = None  # workers that persist end at once, and not when cycles are collected
    for number, private in enumerate(privates):
        model, trained = private.model, set(private.optimizer.parameters.values())
        moved = {name for name, p in model.named_parameters(remove_duplicate=False) if p in trained}
        state = {name: t for name, t in model.state_dict().items() if name not in moved and isinstance(t, Tensor)}
        found.saved |= {f"{name} of model {number}": t.detach().clone() for name, t in state.items()}
    return found


class _Recorder(Observer):
    """Keeps what every step releases."""

    def __init__(self, private: Any, steps: list[Step]) -> None:
        self.private, self.steps = private, steps

    def on_release(self, released: Released) -> None:
        sums = {name: g.detach().clone() * self.private.expected_batch for name, g in released.gradients.items()}
        weights = {name: p.detach().clone() for name, p in self.private.optimizer.parameters.items()}
        self.steps.append(Step(sums, released.clipping.sensitivity, weights))


@contextmanager
def _listening(heard: list[str]) -> Iterator[None]:
    """Keeps what the library warns of; what others warn of is passed over."""

    def warn(message: Any, *args: Any, **kwargs: Any) -> None:
        if str(sys._getframe(1).f_globals.get("__name__")).startswith("hoarfrost"):
            heard.append(str(message))

    with mock.patch.object(warnings, "warn", warn), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def measure(
    program: Callable[..., Any],
    rows: list[Any],
    newcomers: Callable[[], list[Any]] | None = None,
    *,
    oracle: bool = True,
    replace: bool = False,
    norm: float = 1.0,
) -> Seen:
    """Runs a program on its examples, on neighbouring ones, and plainly."""
    if oracle:
        norm = _halving_norm(program, rows, norm)
    here = run(program, rows, norm=norm)
    seen = Seen(here)
    if here.error is not None:
        return seen
    new = newcomers() if newcomers is not None else [outlier(rows[0]), not_a_number(rows[0])]
    if replace:
        neighbours, moves = [[each, *rows[1:]] for each in new], 2.0
    else:
        # A newcomer is in front, where what looks at a batch's first example sees it; and the last example leaves.
        neighbours, moves = [rows[:-1], *([each, *rows] for each in new)], 1.0
    for other in neighbours:
        there = run(program, other, norm=norm)
        if there.error is not None:
            seen.stopped = there.error
            continue
        if here.steps and there.steps and not _same_weights(here.steps[0], there.steps[0]):
            seen.leaks.append("the weights before the first step")
        seen.moved = max(seen.moved, _moved(here, there) / moves)
        seen.leaks += [name for name in here.saved if not _same(here.saved[name], there.saved.get(name))]
        seen.leaks += [name for name in there.saved if name not in here.saved]
    if oracle and seen.stopped is None:
        seen.from_oracle = _from_oracle(program, rows, here, norm)
    return seen


def _moved(here: Run, there: Run) -> float:
    """How far steps that begin at the same weights are apart. (Later ones may begin at others, as they should.)"""
    same = [(a, b) for a, b in zip(here.steps, there.steps, strict=False) if _same_weights(a, b)]
    return max((float((a.vector - b.vector).norm()) / a.sensitivity for a, b in same), default=0.0)


def _same_weights(a: Step, b: Step) -> bool:
    return all(_same(weight, b.weights.get(name)) for name, weight in a.weights.items())


def _same(a: Tensor, b: Tensor | None) -> bool:
    return b is not None and a.shape == b.shape and torch.equal(a, b)


def outlier(row: Any) -> Any:
    """An example far from all others."""
    return map_tensors(lambda t: t * 30 + 1 if t.is_floating_point() else t.clone(), row)


def not_a_number(row: Any) -> Any:
    """An example without a single number in it."""
    return map_tensors(lambda t: torch.full_like(t, torch.nan) if t.is_floating_point() else t.clone(), row)


# The same program, plainly, on one example.


class _Plain:
    """Stands in for what `make_private` returns, and changes nothing."""

    def __init__(self, model: nn.Module, optimizer: Any, data: Any, views: int = 1, steps: int | None = None) -> None:
        self.model, self.optimizer, self.views = model, optimizer, views
        self.collate = data.collate_fn if isinstance(data, DataLoader) else default_collate
        self.data = data.dataset if isinstance(data, DataLoader) else data
        self.steps, self.steps_taken, self.noise_multiplier, self.stepped = steps, 0, 0.0, True
        self.loader = self

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.optimizer, _Once(self)))

    def epsilon(self) -> float:
        return float("inf")

    def save(self, path: Any, scheduler: Any = None) -> None:
        """Nothing: the weights are put where the private run had them."""

    load = save


class _Once:
    """A loader whose every epoch is one batch, of one example."""

    def __init__(self, plain: _Plain) -> None:
        self.plain = plain

    def __iter__(self) -> Iterator[Any]:
        yield self.plain.collate([self.plain.data[0] for _ in range(self.plain.views)])

    def __len__(self) -> int:
        return 1


def _plainly(program: Callable[..., Any], row: Any, at: list[Step]) -> list[dict[str, Tensor]]:
    """One example's gradient in every step, each at the weights that the private run had before it."""
    gradients: list[dict[str, Tensor]] = []

    def stand_in(model: nn.Module, optimizer: Any, data: Any, **options: Any) -> _Plain:
        plain = _Plain(model, optimizer, data, options.get("views", 1), options.get("steps"))
        moved = {p for group in optimizer.param_groups for p in group["params"]}
        trained = {name: p for name, p in model.named_parameters() if p in moved}
        views = plain.views if options.get("loss_reduction") == "sum" else 1

        def after_step(*_: Any) -> None:
            plain.steps_taken += 1
            gradients.append({name: _gradient(p) / views for name, p in trained.items() if p.requires_grad})
            with torch.no_grad():
                for name, p in trained.items() if len(gradients) < len(at) else ():
                    p.copy_(at[len(gradients)].weights[name])

        optimizer.register_step_post_hook(after_step)
        optimizer.backward = lambda losses: (losses.sum() * views).backward()  # the mean over views is not its business
        plain.loader = _Once(plain)  # type: ignore[assignment]
        return plain

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program([row], stand_in)
    return gradients


def _gradient(p: nn.Parameter) -> Tensor:
    return torch.zeros_like(p) if p.grad is None else p.grad.detach().clone()


def _halving_norm(program: Callable[..., Any], rows: list[Any], norm: float) -> float:
    """A norm by which half of the examples are clipped in the first step."""
    first = [steps[0] for row in rows if (steps := _plainly(program, row, []))]
    return oracle.halving_norm(first) if first and any(map(oracle.norm, first)) else norm


def _from_oracle(program: Callable[..., Any], rows: list[Any], here: Run, norm: float) -> float:
    """How far the sums are from those of clipped per-example gradients, in units of the sensitivity."""
    each = [_plainly(program, row, here.steps) for row in rows]
    assert all(len(steps) == len(here.steps) for steps in each), "the plain program takes other steps"
    worst = 0.0
    for number, step in enumerate(here.steps):
        expected = oracle.clipped_sum([steps[number] for steps in each], norm)
        assert expected.keys() == step.sums.keys(), "the plain program trains other parameters"
        apart = sum(float((step.sums[name].double() - expected[name].double()).square().sum()) for name in expected)
        worst = max(worst, apart**0.5 / step.sensitivity)
    return worst
