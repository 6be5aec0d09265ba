"""When a clipping style is asked, what it is told, and what it keeps: batches, statistics and checkpoints."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hoarfrost.clipping import Adaptive, Clipper, Clipping, Local, Statistic
from hoarfrost.errors import NotPrivate
from hoarfrost.info import RunInfo
from tests.clipping.settings import Style, adaptive, local, shortened
from tests.support.clipping import PLAIN, Case, Run, run_of, take_steps

CHUNKS = Case("chunks of four", chunk=4)


def ones(norms: Tensor) -> Tensor:
    return torch.ones_like(norms)


@dataclass
class Noting(Clipper):
    """Notes every question; its bound is another one at every call, and a rule looks it up as late as it can."""

    calls: list[int] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)
    late: float = 1.0

    def begin(self, step: int, info: RunInfo) -> Clipping:
        self.calls.append(step)
        self.bounds.append(0.5 + len(self.calls))
        self.late = self.bounds[-1]
        return Clipping.flat(info.shapes, self.bounds[-1], lambda norms: (self.late / norms).clamp(max=1))


@pytest.mark.parametrize(
    "case", [PLAIN, CHUNKS, Case("one by one", chunk=1), Case("Poisson", rate=0.4, chunk=2)], ids=repr
)
def test_a_style_is_asked_once_for_every_logical_batch(case: Case) -> None:
    clipper = Noting()
    take_steps(run_of(clipper, case), 4)
    assert clipper.calls == [0, 1, 2, 3]


def test_a_style_is_asked_once_for_a_batch_that_never_meets_the_model() -> None:
    clipper = Noting()
    run = run_of(clipper, CHUNKS, noise_multiplier=1.0)
    for _x in run.private.loader:
        run.private.optimizer.step()
    assert clipper.calls == [0]
    assert run.private.steps_taken == 1


def test_a_style_is_not_asked_for_a_batch_whose_step_was_taken() -> None:
    """A forward pass between step and next batch, with gradients on, as in an evaluation that forgot no_grad."""
    clipper = Noting()
    run = run_of(clipper)
    for x in run.private.loader:
        run.backward(x)
        run.private.optimizer.step()
        losses = run.loss(run.model, x)
    assert clipper.calls == [0]
    with pytest.raises(NotPrivate, match="did not draw"):
        losses.sum().backward()
    take_steps(run)
    assert clipper.calls == [0, 1]


def test_several_forward_passes_ask_once() -> None:
    clipper = Noting()
    run = run_of(clipper)
    for x in run.private.loader:
        run.loss(run.model, x)
        with torch.no_grad():
            run.loss(run.model, x)
        run.backward(x)
        run.private.optimizer.step()
    assert clipper.calls == [0]


@dataclass
class Wavering(Clipper):
    """Its norm can be changed at any time; what it says of a batch holds for that batch."""

    norm: float

    def begin(self, step: int, info: RunInfo) -> Clipping:
        return Local(self.norm).begin(step, info)


@pytest.mark.parametrize("when", ["between chunks", "before the step"])
def test_a_style_that_changes_its_mind_does_not_change_the_batch_under_way(when: str) -> None:
    clipper = Wavering(0.7)
    run = Run(Style("wavering", clipper, local(0.7)), CHUNKS, noise_multiplier=0.5)
    rows: list[Tensor] = []
    optimizer = run.private.optimizer
    for number, x in enumerate(run.private.loader):
        rows.append(x)
        _, clipped = run.expected(torch.cat(rows))
        run.backward(x)
        if when == "between chunks" or number == 2:
            clipper.norm *= 100
        optimizer.step()
    assert number == 2
    sums, noisy = run._released[-1]
    for name, want in clipped.sums.items():
        torch.testing.assert_close(sums[name], want, rtol=2e-4, atol=1e-5)
    assert set(noisy.stds.values()) == {0.35}
    assert optimizer.engine.clipper is clipper
    take_steps(run)
    assert list(run._released[-1][1].stds.values()) == pytest.approx([0.5 * clipper.norm] * len(sums))


def test_a_rule_that_changes_its_mind_stays_within_the_bound() -> None:
    clipper = Noting()
    run = run_of(clipper, Case("one by one", chunk=1), noise_multiplier=1.0, scale=1e4)
    lengths = []
    for x in run.private.loader:
        before = {name: t.clone() for name, t in so_far(run).items()}
        run.backward(x)
        after = so_far(run)
        moved = sum(float((t - before.get(n, 0.0)).double().square().sum()) for n, t in after.items())
        lengths.append(moved**0.5)
        clipper.late = 1e6
        run.private.optimizer.step()
    assert max(lengths) <= 1.5 * (1 + 1e-6)
    assert min(lengths) > 1.4
    assert set(run._released[-1][1].stds.values()) == {1.5}


def so_far(run: Run) -> dict[str, Tensor]:
    engine = run.private.optimizer.engine
    return {} if engine.sums.total is None else engine.sums.total.sums


def test_what_follows_from_a_broken_off_batch_is_nothing() -> None:
    clipper = Noting()
    run = run_of(clipper, CHUNKS)
    for x in run.private.loader:
        run.backward(x * 100)
        break
    take_steps(run)
    assert clipper.calls == [0, 0]  # two batches, one step
    assert set(run._released[-1][1].stds.values()) == {0.0}
    assert len(run._released) == 1


# What a style learns.

COUNT = "count of all parameters"
RULE = adaptive(0.9, 0.5, 0.4, 0.1, shortened)


def new(start: float = 0.9) -> Adaptive:
    return Adaptive(start=start, rate=0.4, cost=0.1)


class Curious(Clipper):
    """Keeps all that it is told."""

    def __init__(self, norm: float) -> None:
        self.norm = norm
        self.told: list[Any] = []

    def fresh(self) -> Clipper:
        return self

    def begin(self, step: int, info: RunInfo) -> Clipping:
        self.told.append((step, plain(info)))
        nothing = Statistic("short", lambda norms: 0 * norms[:, 0], 0.5)
        return Clipping.flat(info.shapes, self.norm, ones, (nothing,))

    def observe(self, step: int, statistics: Mapping[str, float], info: RunInfo) -> None:
        self.told.append((step, dict(statistics), plain(info)))


def plain(info: RunInfo) -> dict[str, Any]:
    return {each.name: getattr(info, each.name) for each in fields(info) if each.name != "steps_within"}


def test_beyond_rules_and_statistics_a_style_is_told_the_same_whatever_the_data() -> None:
    told = []
    for data in (PLAIN.new_inputs(), torch.ones(11, 2, 4, 4)):
        clipper = Curious(0.9)
        run = run_of(clipper, noise_multiplier=1.0, inputs=data)
        take_steps(run, 3)
        told.append(clipper.told)
    assert told[0] == told[1]
    assert [each[0] for each in told[0]] == [0, 0, 1, 1, 2, 2]
    released = [each[1]["short"] for each in told[0][1::2]]
    assert len({0.0, *released}) == 4  # of a statistic that is 0: noise, and every time another


def test_a_style_without_statistics_is_told_nothing() -> None:
    class Deaf(Wavering):
        def observe(self, step: int, statistics: Mapping[str, float], info: RunInfo) -> None:
            raise AssertionError("it has no statistics")

    take_steps(run_of(Deaf(1.0), noise_multiplier=1.0))


def test_what_a_style_observes_is_the_noisy_sum() -> None:
    seen: list[float] = []

    class Watching(Adaptive):
        def observe(self, step: int, statistics: Mapping[str, float], info: RunInfo) -> None:
            seen.append(statistics[COUNT])
            super().observe(step, statistics, info)

    run = Run(Style("watching", Watching(start=0.9, rate=0.4, cost=0.1), RULE), noise_multiplier=2.0)
    exact = [step.clipped.counts[COUNT] for step in run.steps(3)]
    assert seen == [noisy.statistics[COUNT] for _, noisy in run._released]
    assert not any(a == b for a, b in zip(seen, exact, strict=True))


def test_two_runs_of_one_style_know_nothing_of_each_other() -> None:
    style = new()
    first, second = run_of(style), run_of(style)
    take_steps(first, 3)
    assert first.private.optimizer.engine.clipper.norm != 0.9
    assert second.private.optimizer.engine.clipper.norm == style.norm == 0.9


# Checkpoints.


def test_what_a_style_keeps_is_in_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    style = Style("adaptive", new(), RULE)
    run = Run(style)
    list(run.steps(3))
    run.private.save(path)
    later = Run(style)
    later.private.load(path)
    assert later.private.optimizer.engine.clipper.norm == run.private.optimizer.engine.clipper.norm != 0.9
    later.seen = list(run.seen)
    for step in later.steps(5):  # from the third on, with the norm that the first three have led to
        assert step.noisy.statistics == pytest.approx(step.clipped.counts)
        for name, want in step.clipped.sums.items():
            torch.testing.assert_close(step.sums[name], want, rtol=2e-4, atol=1e-5)


def test_another_style_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    run = run_of(new())
    take_steps(run, 2)
    run.private.save(path)
    later = run_of(new(0.8))
    later.private.load(path)
    assert later.private.optimizer.engine.clipper.norm == 0.8


@pytest.mark.parametrize("case", [PLAIN, CHUNKS], ids=repr)
@pytest.mark.parametrize("rest", [False, True], ids=["", "going on with the loop"])
def test_a_checkpoint_restored_between_backward_and_step_needs_a_new_batch(
    tmp_path: Path, case: Case, rest: bool
) -> None:
    path = tmp_path / "checkpoint.safetensors"
    run = Run(Style("adaptive", new(), RULE), case, noise_multiplier=1.0)
    run.private.save(path)
    weights = copy.deepcopy(run.model.state_dict())
    chunks = iter(run.private.loader)
    run.backward(next(chunks))
    run.private.load(path)
    for chunk in chunks if rest else ():  # what is left of the batch is void, too
        with pytest.raises(NotPrivate, match="did not draw"):
            run.backward(chunk)
    with pytest.raises(NotPrivate, match="without a batch"):
        run.private.optimizer.step()
    assert run.private.steps_taken == 0
    assert all(torch.equal(weights[name], t) for name, t in run.model.state_dict().items())
    take_steps(run)
    assert run.private.steps_taken == 1


def test_a_forward_pass_from_before_a_restored_checkpoint_is_void(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    # One layer: where there are more, autograd itself notices that weights were written over.
    case = Case("one", model=lambda: nn.Linear(3, 1), inputs=lambda: torch.randn(5, 3))
    run = run_of(Local(1.0), case)
    run.private.save(path)
    losses = run.loss(run.model, next(iter(run.private.loader)))
    run.private.load(path)
    with pytest.raises(NotPrivate, match="did not draw"):
        losses.sum().backward(retain_graph=True)
    for x in run.private.loader:  # nor does it enter the batch that follows
        with pytest.raises(NotPrivate):
            losses.sum().backward()
        run.backward(x)
        run.private.optimizer.step()
    assert run.private.steps_taken == 1
