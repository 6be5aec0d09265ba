"""Nothing jumps: one example more rounds the others' gradients otherwise, and must not move them in or out.

Batches of n equal examples against n + 1 of them, at norms where a style changes what it does.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hoarfrost.clipping import (
    Adaptive,
    Automatic,
    Clipper,
    Clipping,
    FlatStyle,
    Global,
    Local,
    PerGroup,
    PerLayer,
    Schedule,
    Statistic,
)  # fmt: skip
from hoarfrost.clipping import base as clipping_base
from hoarfrost.clipping.base import GONE
from hoarfrost.clipping.flat import Piece
from hoarfrost.errors import InvalidValue, NotPrivate
from hoarfrost.gradients.contributions import Contribution
from hoarfrost.info import RunInfo
from tests.clipping.copies import Bench
from tests.support.engines import announce
from tests.support.every_way import MODELS

STYLES: dict[str, Callable[[float], Clipper]] = {
    "local": Local,
    "global": Global,
    "global, a narrow edge": lambda norm: Global(norm, edge=0.01),
    "automatic": Automatic,
    "adaptive": lambda norm: Adaptive(start=norm),
    "adaptive, global": lambda norm: Adaptive(start=norm, style="global"),
    "per layer, global": lambda norm: PerLayer(Global(norm)),
    "per layer, adaptive": lambda norm: PerLayer(Adaptive(start=norm, style="global")),
}
LOSSES = {"mean": "mean", "sum": "sum"}
ALLOWED = 1 + 2e-5  # of the bound
ROUNDING = 2e-6  # of the bound, for each of the others: sums are float32


def bounds_about(norm: float) -> list[float]:
    """At which the norm lies at an edge, by a few units in the last place, or somewhere between edges."""
    edges = [norm, norm / 0.95, norm / 0.99, norm / 1.05]
    nearby = [edge * (1 + k * 2**-24) for edge in edges for k in (-7, -3, -2, -1, 0, 1, 2, 3, 7)]
    return nearby + [norm * (0.9 + 0.01 * k) for k in range(20)]


PARTS = 4  # of all pairs of style and bound
# A part for each reduction, and another one for each kind: every style meets every bound, and every kind half of them.
FAST = [("mean", 0), ("sum", 2)]
EDGES = [
    pytest.param(*each, marks=[pytest.mark.slow] * (each not in FAST))
    for each in itertools.product(LOSSES, range(PARTS))
]


@pytest.mark.parametrize(("reduction", "part"), EDGES)
@pytest.mark.parametrize("kind", MODELS)
def test_one_more_of_many_at_the_edge_moves_the_sum_by_at_most_the_bound(kind: str, reduction: str, part: int) -> None:
    bench = Bench(kind, reduction)
    lengths = [norm for norm in bench.norms() if norm > 0]
    tried, shift = 0, list(MODELS).index(kind) - part
    for at, (name, make) in enumerate(STYLES.items()):
        for number, bound in enumerate(b for norm in lengths[:2] for b in bounds_about(norm)):
            if (number + at + shift) % PARTS:
                continue
            copies = (2, 3, 6, 9, 12, 48)[(number // PARTS + at) % 6]
            moved = bench.moves(make(bound), copies)
            # What falls over a width has room for what rounding does to others; what does not, as much as they are.
            allowed = 1.0 if "global" in name else 1 + ROUNDING * copies
            assert moved <= allowed, f"{name} at {bound}, {copies} copies: {moved}"
            tried += 1
    assert tried >= 400 / PARTS


SCALES = [10.0**exponent for exponent in torch.linspace(11, 22, 45).tolist()]


@pytest.mark.parametrize("reduction", LOSSES)
@pytest.mark.parametrize("kind", MODELS)
def test_towards_overflow_examples_fade_out(kind: str, reduction: str) -> None:
    """Whether squares overflow depends on what a mean loss divides by: nine were dropped where ten were kept."""
    bench = Bench(kind, reduction)
    kept = []
    for scale in SCALES:
        for copies in (2, 9):
            for style in (Local(0.7), Automatic(0.7), PerLayer(Local(0.7)), Adaptive(start=0.7)):
                moved = bench.moves(style, copies, scale=scale)
                assert moved <= ALLOWED, f"{style} at {scale}, {copies} copies: {moved}"
        kept.append(sum(float(each.norm()) for each in bench.sums(Local(0.7), 1, scale=scale)[1]))
    assert kept[0] > 0.69  # clipped, at first
    assert kept[-1] == 0  # and in the end nothing


@pytest.mark.parametrize("reduction", LOSSES)
@pytest.mark.parametrize("kind", ["linear, no activation", "sequence (Gram)", "convolution (pixels)"])
def test_huge_gradients_of_tiny_inputs_are_told_exactly(kind: str, reduction: str) -> None:
    """The product is of an ordinary size. Its sides are not: their squares overflow in one batch, and not in others."""
    torch.manual_seed(0)
    bench = Bench(kind, reduction)
    for scale in SCALES:
        for copies in (2, 9):
            for style in (Local(0.7), Global(1e6)):
                moved = bench.moves(style, copies, scale=scale, inputs=1 / scale)
                assert moved <= ALLOWED, f"{style} at {scale}, {copies} copies: {moved}"


# These checks can fail: without what they are there for, they do.


def worst_at_the_edge(make: Callable[[float], Clipper], kind: str = "linear") -> float:
    bench = Bench(kind, "mean")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return max(
            bench.moves(make(bound), copies) for bound in bounds_about(bench.norms()[0]) for copies in (2, 3, 6, 9, 12)
        )


def test_the_paper_s_jump_is_seen() -> None:
    assert worst_at_the_edge(Global) <= 1
    assert worst_at_the_edge(lambda norm: Global(norm, edge=0)) > 1.5


def test_a_count_that_jumps_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    sharp = lambda norms, norm: (norms <= norm).to(norms.dtype) - 0.5  # noqa: E731
    monkeypatch.setattr("hoarfrost.clipping.adaptive._below", sharp)
    monkeypatch.setattr(Clipping, "check_rule", lambda self, norms: None)
    assert worst_at_the_edge(lambda norm: Adaptive(start=norm)) > 1.5


def test_without_exact_norms_examples_are_lost_together(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = lambda self, index: torch.full((len(index),), math.inf, dtype=torch.float64)  # noqa: E731
    monkeypatch.setattr(Contribution, "exact_squared_norms", lost)
    bench = Bench("sequence (Gram)", "mean")
    scales = [10.0**exponent for exponent in torch.linspace(18, 21, 60).tolist()]
    assert max(bench.moves(Local(0.7), 9, scale=scale, inputs=1 / scale) for scale in scales) > 1.5


def test_without_fading_examples_are_lost_together(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench("linear", "mean")
    whole = bench.norms()[0]

    def worst() -> float:
        """Where the norm is what no norm may reach, by a few units in the last place."""
        near = [GONE / whole * (1 + k * 2**-24) for k in range(-120, 121)]
        return max(bench.moves(Local(0.7), copies, scale=scale) for scale in near for copies in (2, 6, 9))

    assert worst() <= ALLOWED
    monkeypatch.setattr(clipping_base, "FADES", GONE * (1 - 1e-12))
    assert worst() > 1.5


# Rules that jump are refused, or said to be for analysis.


class Jumping(FlatStyle):
    def piece(self) -> Piece:
        return Piece(1.0, lambda norms: (norms <= 1).to(norms.dtype))


class JumpingCount(Clipper):
    def begin(self, step: int, info: RunInfo) -> Clipping:
        count = Statistic("short", lambda norms: (norms[:, 0] <= 1).float(), 1.0)
        return Clipping.flat(info.shapes, 1.0, Local(1.0).factors, (count,))


@pytest.mark.parametrize(("style", "what"), [(Jumping(), "rule"), (JumpingCount(), "statistic 'short'")])
def test_what_jumps_is_refused_in_the_first_batch(style: Clipper, what: str) -> None:
    with pytest.raises(NotPrivate, match=rf"{what} jumps.*Global.*jumps=True"):
        Bench("linear", "mean").sums(style, 3)


@pytest.mark.parametrize("style", [Global(1.0, edge=0), Automatic(1.0, stability=0), PerLayer(Global(1.0, edge=0))])
def test_what_is_for_analysis_says_what_it_gives_up(style: Clipper) -> None:
    with pytest.warns(UserWarning, match="jumps: .* in exact arithmetic alone: for analysis, not for release"):
        Bench("linear", "mean").sums(style, 3)


@pytest.mark.parametrize("edge", [-0.1, 1.0, 0.001, math.nan])
def test_an_edge_that_is_none_is_refused(edge: float) -> None:
    with pytest.raises(InvalidValue, match="edge must"):
        Global(1.0, edge=edge)


def test_every_style_of_the_library_is_lipschitz_at_every_bound() -> None:
    """What is kept and counted, over relative changes of a millionth, at norms from nothing to overflow."""
    info = RunInfo({"a.weight": torch.Size([2]), "b.weight": torch.Size([2])})
    for name, make in {**STYLES, "groups": lambda norm: PerGroup({"a*": Global(norm), "b*": Local(2 * norm)})}.items():
        for bound in (1e-8, 1e-3, 0.7, 1.0, 210.0, 1e8):
            clipping = make(bound).begin(0, info)
            norms = torch.logspace(-12, 19, 20_000, dtype=torch.float64)[:, None].expand(-1, len(clipping.blocks))
            near = norms * (1 + 1e-6)
            kept = (clipping.factors(near) * near - clipping.factors(norms.clone()) * norms) / norms.new_tensor(
                clipping.bounds
            )
            assert float(kept.abs().max()) <= 101e-6, (name, bound)
            for statistic in clipping.statistics:
                change = statistic.values(near) - statistic.values(norms.clone())
                assert float(change.abs().max()) <= 50e-6, (name, bound)


def test_a_statistic_that_is_cut_to_its_bound_does_not_jump() -> None:
    """Far above its bound it grows fast, and what is released of it does not grow at all."""
    length = Statistic("length", lambda norms: norms[:, 0], 0.01)
    clipping = Clipping.flat(["weight"], 1.0, Local(1.0).factors, (length,))
    clipping.check_rule(torch.ones(3, 1))


# Rules are tried in the first batches, and again when they may have changed.


class Counted(Bench):
    """How often rules were tried in a run of so many steps."""

    def tried(self, style: Clipper, steps: int, patch: pytest.MonkeyPatch) -> list[int]:
        found: list[int] = []
        original = Clipping.check_rule

        def check_rule(clipping: Clipping, norms: Tensor) -> None:
            found.append(at)
            original(clipping, norms)

        patch.setattr(Clipping, "check_rule", check_rule)
        engine = self.engine
        engine.clipper, engine.step = style.fresh(), lambda: at
        for at in range(steps):
            announce(engine, 4)
            engine.model(self.example.expand(4, *self.example.shape[1:])).flatten(1).sum(1).sum().backward()
            total = engine.release()
            assert total is not None
            if total.statistics:
                told = {name: float(value) for name, value in total.statistics.items()}
                engine.clipper.observe(at, told, engine.info())
        return found


class EveryStepAnew(Clipper):
    """A clipping of its own for every step, of which it does not say that they are alike."""

    def begin(self, step: int, info: RunInfo) -> Clipping:
        return Clipping.flat(info.shapes, 1.0 + step, lambda norms: (1 / norms).clamp(max=1))


LATER = Schedule((0, Adaptive()), (4, Adaptive(style="global")), (8, Adaptive(start=0.1), 0.5), by="step")
TRIED: dict[str, tuple[Clipper, list[int]]] = {
    "local": (Local(1.0), [0, 1, 2]),
    "adaptive": (Adaptive(), [0, 1, 2]),
    "adaptive layers": (PerLayer(Adaptive()), [0, 1, 2]),
    "adaptive groups": (PerGroup({"*.weight": Adaptive(), "*.bias": Adaptive(style="global")}), [0, 1, 2]),
    "stages": (LATER, [0, 1, 2, 4, 5, 6, 8, 9, 10]),
    "anew": (EveryStepAnew(), list(range(12))),
}


@pytest.mark.parametrize("case", TRIED)
def test_rules_that_say_that_they_are_alike_are_tried_in_the_first_batches_alone(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    style, wanted = TRIED[case]
    assert Counted("linear", "sum").tried(style, 12, monkeypatch) == wanted


def test_a_jump_in_a_later_stage_is_refused_there(monkeypatch: pytest.MonkeyPatch) -> None:
    style = Schedule((0, Adaptive()), (5, Jumping()), by="step")
    with pytest.raises(NotPrivate, match="rule jumps"):
        Counted("linear", "sum").tried(style, 12, monkeypatch)
