"""What a clipping style may say and do, and what is refused: `Clipping`, `Block`, `Statistic`, `Clipper`."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hoarfrost
from hoarfrost.clipping import Block, Clipper, Clipping, Local, Statistic
from hoarfrost.clipping.base import MARGIN
from hoarfrost.errors import InvalidValue, NotPrivate
from hoarfrost.info import RunInfo
from tests import oracle
from tests.clipping.settings import Adaptive, Style, adaptive, local
from tests.support.clipping import PLAIN, Case, Run

CHUNKS = Case("chunks of four", chunk=4)


def ones(norms: Tensor) -> Tensor:
    return torch.ones_like(norms)


@dataclass
class Saying(Clipper):
    """Says what it was told."""

    clipping: Callable[[int, RunInfo], Any]

    def begin(self, step: int, info: RunInfo) -> Clipping:
        return self.clipping(step, info)


def run_of(clipper: Clipper, case: Case = PLAIN, **options: Any) -> Run:
    """Of which the oracle is not asked."""
    return Run(Style("any", clipper, local(1.0)), case, **options)


def take_steps(run: Run, number: int = 1) -> None:
    until = run.private.steps_taken + number
    while run.private.steps_taken < until:
        for x in run.private.loader:
            run.backward(x)
            run.private.optimizer.step()
            if run.private.steps_taken == until:
                break


# Refusals.


@pytest.mark.parametrize("bound", [0, 0.0, -1.0, math.inf, math.nan, True, "1", None, torch.tensor(1.0)])
@pytest.mark.parametrize("what", ["bound", "noise_weight"])
def test_bounds_and_weights_are_positive_finite_numbers(what: str, bound: Any) -> None:
    given = {"bound": 1.0, "noise_weight": 1.0} | {what: bound}
    with pytest.raises(InvalidValue, match=what):
        Block("a", ("w",), **given)
    with pytest.raises(InvalidValue, match=what):
        Statistic("a", lambda norms: norms[:, 0], **given)


@pytest.mark.parametrize("name", [None, 3, ("a",)])
def test_names_are_words(name: Any) -> None:
    with pytest.raises(InvalidValue, match="name"):
        Block(name, ("w",), 1.0)
    with pytest.raises(InvalidValue, match="name"):
        Statistic(name, ones, 1.0)


def test_blocks_share_nothing() -> None:
    a, b = Block("a", ("w", "v"), 1.0), Block("b", ("v",), 1.0)
    with pytest.raises(InvalidValue, match="one of them"):
        Clipping((a, b), ones)
    with pytest.raises(InvalidValue, match="one of them"):
        Clipping((Block("a", ("w", "w"), 1.0),), ones)
    with pytest.raises(InvalidValue, match="one block or more"):
        Clipping((), ones)


def test_names_of_blocks_and_statistics_differ() -> None:
    a, count = Block("a", ("w",), 1.0), Statistic("a", lambda norms: norms[:, 0], 1.0)
    with pytest.raises(InvalidValue, match="different names"):
        Clipping((a, Block("a", ("v",), 1.0)), ones)
    with pytest.raises(InvalidValue, match="different names"):
        Clipping((a,), ones, (count,))


@pytest.mark.parametrize("returned", [None, Local(1.0), (Block("a", ("w",), 1.0),)])
def test_begin_returns_a_clipping(returned: Any) -> None:
    with pytest.raises(InvalidValue, match="not a Clipping"):
        take_steps(run_of(Saying(lambda step, info: returned)))


def test_a_parameter_in_no_block_is_refused_by_name() -> None:
    def without_one(step: int, info: RunInfo) -> Clipping:
        return Clipping.flat([name for name in info.shapes if name != "head.bias"], 1.0, ones)

    run = run_of(Saying(without_one))
    with pytest.raises(InvalidValue, match=r"head\.bias in no block"):
        take_steps(run)
    assert all(p.grad is None for p in run.model.parameters())


def test_a_parameter_that_the_optimizer_does_not_move_needs_no_block() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    names: list[set[str]] = []

    def noting(step: int, info: RunInfo) -> Clipping:
        names.append(set(info.shapes))
        return Local(1.0).begin(step, info)

    private = hoarfrost.make_private(
        model, torch.optim.SGD(model[1].parameters(), lr=0.1), torch.utils.data.TensorDataset(torch.randn(5, 3)),
        sample_rate=1.0, noise_multiplier=1.0, delta=1e-5, clip=Saying(noting),
    )  # fmt: skip
    for (x,) in private.loader:
        model(x).sum().backward()
        private.optimizer.step()
    assert names == [{"1.weight", "1.bias"}]


@pytest.mark.parametrize("clip", [None, 1.0, Local, "local", Clipping.flat(["w"], 1.0, ones)])
def test_only_a_style_is_a_style(clip: Any) -> None:
    model = nn.Linear(2, 1)
    with pytest.raises(InvalidValue, match="clipping style"):
        hoarfrost.make_private(
            model, torch.optim.SGD(model.parameters(), lr=0.1), torch.utils.data.TensorDataset(torch.randn(5, 2)),
            sample_rate=1.0, noise_multiplier=1.0, delta=1e-5, clip=clip,
        )  # fmt: skip
    hoarfrost.make_private(  # and the model is as it was
        model, torch.optim.SGD(model.parameters(), lr=0.1), torch.utils.data.TensorDataset(torch.randn(5, 2)),
        sample_rate=1.0, noise_multiplier=1.0, delta=1e-5,
    )  # fmt: skip


# Rules that say what they should not.

TWO = (Block("a", ("w",), 1.0), Block("b", ("v",), 4.0))
NORMS = torch.tensor([[0.5, 2.0], [3.0, 20.0], [0.0, 1.0]])


@pytest.mark.parametrize("said", [math.nan, -1.0, -math.inf])
def test_what_is_no_factor_is_none(said: float) -> None:
    assert (Clipping(TWO, lambda norms: torch.full_like(norms, said)).factors(NORMS) == 0).all()


@pytest.mark.parametrize("said", [1e30, math.inf])
def test_factors_far_above_the_bound_are_cut_to_it(said: float) -> None:
    factors = Clipping(TWO, lambda norms: torch.full_like(norms, said)).factors(NORMS)
    lengths = (factors * NORMS).double()
    assert factors.isfinite().all()
    assert (lengths <= torch.tensor([1.0, 4.0])).all()
    torch.testing.assert_close(lengths[:2], torch.tensor([[1.0, 4.0]] * 2).double() * (1 - MARGIN))


def test_factors_that_rules_may_give_in_any_type() -> None:
    for kind in (torch.bool, torch.int64, torch.float64, torch.float16):
        factors = Clipping(TWO, lambda norms, kind=kind: torch.ones_like(norms).to(kind)).factors(NORMS)
        assert factors.dtype == torch.float32
        torch.testing.assert_close(factors, torch.tensor([[1.0, 1.0], [1 / 3, 0.2], [1.0, 1.0]]), rtol=2e-5, atol=0)


WRONG_SHAPES: dict[str, Callable[[Tensor], Any]] = {
    "one factor for every example": lambda norms: norms[:, 0],
    "one column": lambda norms: norms[:, :1],
    "one row": lambda norms: norms[:1],
    "one number": lambda norms: norms.sum(),
    "more": lambda norms: norms[None],
    "transposed": lambda norms: norms.T,
    "no tensor": lambda norms: 0.5,
    "nothing": lambda norms: None,
    "a list": lambda norms: norms.tolist(),
}


@pytest.mark.parametrize(
    ("rule", "blocks"),
    [(rule, TWO[:n]) for name, rule in WRONG_SHAPES.items() for n in (1, 2) if (name, n) != ("one column", 1)],
)
def test_a_rule_that_returns_another_shape_is_refused(rule: Callable[[Tensor], Any], blocks: tuple[Block, ...]) -> None:
    """Not broadcast: one example's number would become another one's factor."""
    with pytest.raises(InvalidValue, match="rule"):
        Clipping(blocks, rule).factors(NORMS[:, : len(blocks)])


def test_an_example_with_one_norm_that_is_not_finite_has_no_factor_in_any_block() -> None:
    norms = torch.tensor([[1.0, math.inf], [math.nan, 1.0], [1.0, 1.0]])
    assert (Clipping(TWO, ones).factors(norms) > 0).tolist() == [[False, False], [False, False], [True, True]]


def test_what_writes_into_its_norms_changes_nothing() -> None:
    """Neither a rule nor a statistic: the bounds are kept to the norms as they were."""

    def writing(norms: Tensor) -> Tensor:
        norms.fill_(1e-6)
        return torch.ones_like(norms)

    norms = NORMS.clone()
    clipping = Clipping(TWO, writing, (Statistic("count", lambda norms: writing(norms)[:, 0], 1.0),))
    assert float(clipping.statistics[0].total(norms)) == 3
    factors = clipping.factors(norms)
    assert torch.equal(norms, NORMS)
    torch.testing.assert_close(factors, torch.tensor([[1.0, 1.0], [1 / 3, 0.2], [1.0, 1.0]]), rtol=2e-5, atol=0)


def test_blocks_are_what_they_were_when_they_were_made() -> None:
    """Noise is computed from them after the sum was: lists that somebody changes in between are copied."""
    names, blocks, statistics = ["w"], [TWO[1]], []
    block = Block("a", names, 1.0)  # type: ignore[arg-type]
    clipping = Clipping(blocks, ones, statistics)  # type: ignore[arg-type]
    names.append("u")
    blocks.append(block)
    statistics.append(Statistic("count", lambda norms: norms[:, 0], 1.0))
    assert block.parameters == ("w",)
    assert clipping.bounds == (4.0,)
    assert clipping.stds(1.0) == ((4.0,), ())


class Tiny(nn.Module):
    """Its parameter's gradient is the input itself."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-5, 1e-18, 2e-23, 1e-30, 1e-41])
def test_a_gradient_whose_square_vanishes_is_not_blown_up_beyond_the_bound(size: float, dtype: torch.dtype) -> None:
    """A factor above 1 meets a norm that rounding made too short."""
    x = torch.full((1, 100_000), size, dtype=dtype)
    x[0, 0] *= 5
    model = Tiny(x.shape[1]).to(dtype)
    normalising = Saying(lambda step, info: Clipping.flat(info.shapes, 0.01, lambda norms: 1 / norms))
    private = hoarfrost.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), torch.utils.data.TensorDataset(x),
        sample_rate=1.0, noise_multiplier=0.0, delta=1e-5, clip=normalising, loss_reduction="sum",
    )  # fmt: skip
    for (batch,) in private.loader:
        (model(batch) * batch).sum().backward()
        private.optimizer.step()
    length = float(model.bias.grad.double().norm())
    assert length <= 0.01
    if size > 1e-12:
        assert length == pytest.approx(0.01, rel=1e-4)


# Statistics.


@pytest.mark.parametrize(
    ("values", "total"),
    [
        ([0.2, 0.3, -0.1], 0.4),
        ([5.0, -7.0, 0.1], 0.1),
        ([math.inf, 0.1, 0.0], 0.6),
        ([-math.inf, 0.1, 0.0], -0.4),
        ([math.nan, 0.1, 0.0], 0.1),
    ],
)
def test_what_leaves_a_statistic_s_bound_is_cut(values: list[float], total: float) -> None:
    statistic = Statistic("count", lambda norms: torch.tensor(values), bound=0.5)
    assert float(statistic.total(NORMS)) == pytest.approx(total)
    assert statistic.total(NORMS).dtype == torch.float64


@pytest.mark.parametrize("name", sorted({*WRONG_SHAPES} - {"one factor for every example"}))
def test_a_statistic_is_one_number_for_every_example(name: str) -> None:
    with pytest.raises(InvalidValue, match="one number per example"):
        Statistic("count", WRONG_SHAPES[name], 1.0).total(NORMS)


def test_statistics_do_not_change_the_sum_and_cost_noise() -> None:
    """The release is one: what the statistic needs, the gradients pay for with more noise."""
    count = Statistic("count", lambda norms: torch.ones(len(norms)), bound=3.0)
    plain, counting = Clipping.flat(["w"], 4.0, ones), Clipping.flat(["w"], 4.0, ones, (count,))
    assert plain.stds(2.0) == ((8.0,), ())
    assert counting.stds(2.0) == ((10.0,), (10.0,))
    assert counting.noise_multiplier([10.0], [10.0]) == pytest.approx(2.0)
    assert counting.sensitivity == plain.sensitivity == 4.0


# When a style is asked, and what it is told.


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


class Curious(Adaptive):
    """Keeps all that it is told."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.told: list[Any] = []

    def fresh(self) -> Clipper:
        return self

    def begin(self, step: int, info: RunInfo) -> Clipping:
        self.told.append((step, plain(info)))
        nothing = Statistic("short", lambda norms: 0 * norms[:, 0], self.bound)
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
            seen.append(statistics["short"])
            super().observe(step, statistics, info)

    run = Run(Style("watching", Watching(0.9), adaptive(0.9)), noise_multiplier=2.0)
    exact = [step.clipped.counts["short"] for step in run.steps(3)]
    assert seen == [noisy.statistics["short"] for _, noisy in run._released]
    assert not any(a == b for a, b in zip(seen, exact, strict=True))


def test_two_runs_of_one_style_know_nothing_of_each_other() -> None:
    style = Adaptive(0.9)
    first, second = run_of(style), run_of(style)
    take_steps(first, 3)
    assert first.private.optimizer.engine.clipper.now != 0.9
    assert second.private.optimizer.engine.clipper.now == style.now == 0.9


# Checkpoints.


def test_what_a_style_keeps_is_in_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    style = Style("adaptive", Adaptive(0.9), adaptive(0.9))
    run = Run(style)
    list(run.steps(3))
    run.private.save(path)
    later = Run(style)
    later.private.load(path)
    assert later.private.optimizer.engine.clipper.now == run.private.optimizer.engine.clipper.now != 0.9
    later.seen = list(run.seen)
    for step in later.steps(5):  # from the third on, with the norm that the first three have led to
        assert step.noisy.statistics == pytest.approx(step.clipped.counts)
        for name, want in step.clipped.sums.items():
            torch.testing.assert_close(step.sums[name], want, rtol=2e-4, atol=1e-5)


def test_another_style_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    run = run_of(Adaptive(0.9))
    take_steps(run, 2)
    run.private.save(path)
    later = run_of(Adaptive(0.8))
    later.private.load(path)
    assert later.private.optimizer.engine.clipper.now == 0.8


@pytest.mark.parametrize("case", [PLAIN, CHUNKS], ids=repr)
@pytest.mark.parametrize("rest", [False, True], ids=["", "going on with the loop"])
def test_a_checkpoint_restored_between_backward_and_step_needs_a_new_batch(
    tmp_path: Path, case: Case, rest: bool
) -> None:
    path = tmp_path / "checkpoint.safetensors"
    run = Run(Style("adaptive", Adaptive(0.9), adaptive(0.9)), case, noise_multiplier=1.0)
    run.private.save(path)
    weights = copy.deepcopy(run.model.state_dict())
    chunks = iter(run.private.loader)
    run.backward(next(chunks))
    run.private.load(path)
    if rest:
        with pytest.raises(NotPrivate, match="ended"):
            next(chunks)
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


def test_the_oracle_s_noise_is_the_library_s() -> None:
    """Both formulas, on blocks and statistics of any weights."""
    blocks = (Block("a", ("a",), 0.3, 2.0), Block("b", ("b",), 1.7, 0.1))
    statistics = (Statistic("c", lambda norms: norms[:, 0], 0.9, 5.0),)
    rule = oracle.Rule(
        [["a"], ["b"]], [0.3, 1.7], lambda norms: [1.0, 1.0], [2.0, 0.1], {"c": oracle.Count(sum, 0.9, 5.0)}
    )
    want, counts = oracle.stds(rule, 1.1)
    found = Clipping(blocks, ones, statistics).stds(1.1)
    assert found == (pytest.approx(want), pytest.approx([counts["c"]]))
