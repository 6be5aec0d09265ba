"""What a clipping style may say and do, and what is refused: `Clipping`, `Block`, `Statistic`, `Clipper`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hoarfrost
from hoarfrost.clipping import Block, Clipper, Clipping, Local, Statistic
from hoarfrost.clipping.base import MARGIN
from hoarfrost.errors import InvalidValue, NotPrivate
from hoarfrost.info import RunInfo
from tests import oracle
from tests.support.clipping import run_of, take_steps


def ones(norms: Tensor) -> Tensor:
    return torch.ones_like(norms)


@dataclass
class Saying(Clipper):
    """Says what it was told."""

    clipping: Callable[[int, RunInfo], Any]

    def begin(self, step: int, info: RunInfo) -> Clipping:
        return self.clipping(step, info)


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


@pytest.mark.parametrize("clip", [None, True, Local, "local", Clipping.flat(["w"], 1.0, ones)])
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


MIXING = {
    "the median": lambda norms: (norms.median() / norms).clamp(max=1),
    "the maximum": lambda norms: torch.ones_like(norms) / norms.max(),
    "the mean": lambda norms: (norms.mean() / norms).clamp(max=1),
    "the number of examples": lambda norms: torch.full_like(norms, 1 / len(norms)),
}


@pytest.mark.parametrize("rule", MIXING)
def test_a_rule_that_looks_at_the_whole_batch_is_refused(rule: str) -> None:
    """One example would change what is kept of all others."""
    norms = torch.tensor([[0.5], [2.0], [7.0], [0.1]])
    mixing = Clipping.flat(["w"], bound=1.0, rule=MIXING[rule])
    with pytest.raises(NotPrivate, match="uses the other examples' norms"):
        mixing.check_rule(norms)
    plain = Clipping.flat(["w"], bound=1.0, rule=torch.ones_like)
    plain.check_rule(norms)
    counted = Statistic("s", lambda norms: MIXING[rule](norms)[:, 0], bound=10.0)
    with pytest.raises(NotPrivate, match="statistic 's'"):
        Clipping.flat(["w"], bound=1.0, rule=torch.ones_like, statistics=(counted,)).check_rule(norms)


def test_a_rule_that_looks_at_the_whole_batch_is_refused_in_the_first_step() -> None:
    class Median(Clipper):
        def begin(self, step: int, info: RunInfo) -> Clipping:
            return Clipping.flat(info.shapes, bound=1.0, rule=MIXING["the median"])

    model = nn.Linear(4, 3)
    data = TensorDataset(torch.randn(20, 4) * 5)
    private = hoarfrost.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), data, sample_rate=1.0, noise_multiplier=1.0, delta=1e-5,
        clip=Median(),
    )  # fmt: skip
    (x,) = next(iter(private.loader))
    with pytest.raises(NotPrivate, match="uses the other examples' norms"):
        private.model(x).sum().backward()
