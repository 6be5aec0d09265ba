"""Every clipping style against the oracle, through the real private step."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hoarfrost.clipping import Clipper, Clipping, Global, adaptive
from hoarfrost.errors import NotPrivate
from hoarfrost.gradients import Engine
from hoarfrost.info import RunInfo
from hoarfrost.optim import PrivateOptimizer
from hoarfrost.registry import loaded
from tests import oracle
from tests.audit.faults import statistics_without_noise
from tests.clipping.settings import TABLE, Known, Style
from tests.support.clipping import CASES, PLAIN, Case, Run, Step

BY_NAME = {style.name: style for style in TABLE}
every_style = pytest.mark.parametrize("style", TABLE, ids=repr)
SIGMA = 1.3


def test_every_style_of_the_library_has_a_row() -> None:
    for style in loaded("clip").values():
        assert any(isinstance(row.clipper, style.target) for row in TABLE), style.kind


def assert_sums_match(run: Run, step: Step, gradients: bool = True) -> None:
    """Sums per parameter are the oracle's; ``gradients``: and so is what the optimizer was handed."""
    loose = run.case.dtype == torch.bfloat16
    rtol, atol = (2e-2, 2e-2) if loose else (2e-4, 2e-5)
    for name, want in step.clipped.sums.items():
        found = [step.sums.get(name, torch.zeros_like(want)), *([step.gradients[name]] if gradients else [])]
        for got in found:
            assert got.shape == want.shape
            want = want.to(got.dtype)
            torch.testing.assert_close(
                got, want, rtol=rtol, atol=atol * max(step.rule.bounds), msg=lambda m, n=name: f"{n}: {m}"
            )


def assert_matches_oracle(style: Style, case: Case, number: int = 3, **options: Any) -> None:
    run = Run(style, case, **options)
    twin = copy.deepcopy(run.model)
    plain = case.optimizer(twin.parameters())
    factors: list[float] = []
    taken = 0
    for step in run.steps(number):
        taken += 1
        assert_sums_match(run, step)
        loose = 2e-2 if case.dtype == torch.bfloat16 else 1e-4
        assert step.noisy.statistics == pytest.approx(step.clipped.counts, rel=loose)
        factors += [factor for each in step.clipped.factors for factor in each]
        if not case.frozen and case.dtype != torch.bfloat16 and case.rate == 1.0:
            for name, p in twin.named_parameters():
                p.grad = (step.clipped.sums[name] / run.private.expected_batch).to(p.dtype)
            plain.step()
            for name, p in twin.named_parameters():
                torch.testing.assert_close(run.model.get_parameter(name), p, rtol=1e-3, atol=1e-5)
    assert taken == number
    if style.clips:
        assert any(factor < 0.99 for factor in factors)
        assert any(factor >= 1 for factor in factors)


# In a fast run a third of all pairs: each style in several cases, and each case with several styles.
PAIRS = [
    pytest.param(style, case, id=f"{case!r}-{style!r}", marks=[pytest.mark.slow] * bool((i + j) % 3))
    for i, style in enumerate(TABLE)
    for j, case in enumerate(CASES)
]


@pytest.mark.parametrize(("style", "case"), PAIRS)
def test_steps_equal_the_oracle(style: Style, case: Case) -> None:
    assert_matches_oracle(style, case)


@every_style
def test_rules_and_statistics_look_at_each_example_alone(style: Style) -> None:
    """An example's factors follow from its own norms, or one example could move what others contribute."""
    clipping = clipping_of(style.clipper, PLAIN.new_model())
    torch.manual_seed(0)
    norms = torch.rand(9, len(clipping.blocks)) * 3
    together, totals = clipping.factors(norms), [statistic.total(norms) for statistic in clipping.statistics]
    alone = [clipping.factors(row[None]) for row in norms]
    assert torch.equal(together, torch.cat(alone))
    for statistic, total in zip(clipping.statistics, totals, strict=True):
        assert float(total) == pytest.approx(sum(float(statistic.total(row[None])) for row in norms))


@every_style
def test_no_example_moves_a_block_by_more_than_its_bound(style: Style) -> None:
    """Whatever its norms: from nothing, through the bounds themselves, to what float32 cannot hold."""
    clipping = clipping_of(style.clipper, PLAIN.new_model())
    lengths = [0.0, 1e-44, 1e-38, 1e-20, *(b * f for b in clipping.bounds for f in (0.999, 1.0, 1.00001, 7.0)), 1e38]
    norms = torch.cartesian_prod(*[torch.tensor(lengths)] * min(2, len(clipping.blocks)))
    norms = norms.view(len(norms), -1)
    norms = torch.cat([norms, norms.new_ones(len(norms), len(clipping.blocks) - norms.shape[1])], 1)
    factors = clipping.factors(norms)
    assert factors.isfinite().all()
    assert (factors >= 0).all()
    assert (factors.double() * norms.double() <= torch.tensor(clipping.bounds, dtype=torch.float64)).all()


@every_style
@pytest.mark.parametrize("chunk", [None, 3])
def test_an_example_without_a_finite_norm_contributes_nothing(style: Style, chunk: int | None) -> None:
    """Infinite pixels leave the last layer's gradient finite: a block of its own would not know."""
    inputs = PLAIN.new_inputs()
    inputs[2, 0, 1, 1], inputs[7] = math.inf, math.nan
    run = Run(style, Case("not finite", chunk=chunk), inputs=inputs)
    finite = False
    for step in run.steps(2):
        assert_sums_match(run, step)
        assert step.noisy.statistics == pytest.approx(step.clipped.counts)
        assert step.clipped.factors[2] == step.clipped.factors[7] == [0.0] * len(step.rule.blocks)
        finite = finite or any(map(math.isfinite, step.clipped.norms[2]))
    assert run.private.optimizer.engine.dropped == 4
    assert finite or style.name != "PerLayer(Local)"


@every_style
@pytest.mark.parametrize("runs", [True, False], ids=["", "the model never runs"])
def test_an_empty_batch_is_a_step_of_noise(style: Style, runs: bool) -> None:
    run = Run(style, sample_rate=1e-9, noise_multiplier=SIGMA, steps=3)
    for x in run.private.loader:
        assert len(x) == 0
        if runs:
            run.backward(x)
        run.private.optimizer.step()
        break
    sums, noisy = run._released[-1]
    rule = style.rule(Known(0, [name for name, _ in run.model.named_parameters()], run.private.expected_batch, []))
    assert sums == {}
    assert set(noisy.statistics) == set(rule.counts)
    assert all(noisy.statistics.values()) or not rule.counts
    for name, p in run.model.named_parameters():
        assert (p.grad != 0).all(), name


# Noise.


class Large(nn.Module):
    """Enough coordinates in every block to measure a deviation to one in a hundred."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1, 40_000), nn.Linear(1, 30_000)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x).sum(1, keepdim=True) + self.second(x).sum(1, keepdim=True)


LARGE = Case("large", model=Large, inputs=lambda: torch.zeros(3, 1))


def assert_noise_matches(style: Style) -> None:
    """Steps on gradients that are zero: what is released is noise, whose size the oracle knows."""
    run = Run(style, LARGE, noise_multiplier=SIGMA, scale=1e-30)
    for step in run.steps(2):
        stds, count_stds = oracle.stds(step.rule, SIGMA)
        assert sorted(name for block in step.rule.blocks for name in block) == sorted(step.gradients)
        for block, std in zip(step.rule.blocks, stds, strict=True):
            for name in block:
                noise = step.gradients[name].double()
                assert float(noise.std()) == pytest.approx(std, rel=0.02), name
                assert abs(float(noise.mean())) < 4 * std / noise.numel() ** 0.5
                assert step.noisy.stds[name] == pytest.approx(std, rel=1e-9)
        joint = [*zip(step.rule.bounds, stds, strict=True)]
        joint += [(count.bound, count_stds[name]) for name, count in step.rule.counts.items()]
        assert sum((bound / std) ** 2 for bound, std in joint) ** -0.5 == pytest.approx(SIGMA, rel=1e-9)


@every_style
def test_every_block_has_the_noise_that_its_weight_and_all_bounds_ask_for(style: Style) -> None:
    assert_noise_matches(style)


def assert_statistics_are_noisy(style: Style, number: int = 400) -> None:
    """Noisy statistics are those of the oracle plus noise of the right size: the spread of their differences."""
    case = Case("small", model=lambda: nn.Linear(2, 1), inputs=lambda: torch.randn(4, 2))
    run = Run(style, case, noise_multiplier=SIGMA, clipper=style.clipper)
    run.private.optimizer.param_groups[0]["lr"] = 0.0
    apart: dict[str, list[float]] = {}
    for step in run.steps(number):
        stds = oracle.stds(step.rule, SIGMA)[1]
        for name, noisy in step.noisy.statistics.items():
            apart.setdefault(name, []).append((noisy - step.clipped.counts[name]) / stds[name])
    for name, units in apart.items():
        noise = torch.tensor(units, dtype=torch.float64)
        assert float(noise.std()) == pytest.approx(1, abs=4 * (2 * number) ** -0.5), name
        assert abs(float(noise.mean())) < 4 * number**-0.5
    assert set(apart) == set(style.rule(run.known()).counts)


@pytest.mark.parametrize("style", [s for s in TABLE if s.rule(Known(0, ["a.weight"], 1.0, [])).counts], ids=repr)
def test_statistics_have_the_noise_that_their_weight_asks_for(style: Style) -> None:
    assert_statistics_are_noisy(style)


@every_style
def test_with_noise_the_sum_before_it_is_the_oracle_s(style: Style) -> None:
    """Also where a style follows noisy statistics: the rule of a step is known from what was released before it."""
    run = Run(style, Case("chunks", chunk=4), noise_multiplier=SIGMA)
    norms = set()
    for step in run.steps(4):
        assert_sums_match(run, step, gradients=False)
        norms.add(step.rule.bounds[0])
        for name, want in step.clipped.sums.items():
            assert not torch.allclose(step.gradients[name], want)
    assert len(norms) > 1 or style.name not in ("Adaptive", "Schedule")


# Every check above can fail: faults that are seeded into the real code, and the check that sees them.


def clipping_of(clipper: Clipper, model: nn.Module) -> Clipping:
    return clipper.begin(0, RunInfo({name: p.shape for name, p in model.named_parameters()}))


def wrong_block_index(patch: pytest.MonkeyPatch) -> None:
    def block_of(self: Clipping) -> dict[str, int]:
        return {name: (i + 1) % len(self.blocks) for i, block in enumerate(self.blocks) for name in block.parameters}

    patch.setattr(Clipping, "block_of", property(block_of))


def bound_of_another_block(patch: pytest.MonkeyPatch) -> None:
    original = Clipping.factors

    def factors(self: Clipping, norms: Tensor, **_: bool) -> Tensor:
        turned = self.bounds[::-1]
        factors = original(self, norms)
        return torch.minimum(torch.where(factors < 0.999, math.inf, 1.0), norms.new_tensor(turned) / norms)

    patch.setattr(Clipping, "factors", factors)


def one_norm_for_all_blocks(patch: pytest.MonkeyPatch) -> None:
    original = Clipping.factors
    patch.setattr(
        Clipping, "factors", lambda self, norms, **_: original(self, norms.norm(dim=1, keepdim=True).expand_as(norms))
    )


def first_factor_for_all_blocks(patch: pytest.MonkeyPatch) -> None:
    original = Clipping.factors
    patch.setattr(Clipping, "factors", lambda self, norms, **_: original(self, norms)[:, :1].expand_as(norms))


def factors_above_one_cut(patch: pytest.MonkeyPatch) -> None:
    original = Clipping.factors
    patch.setattr(Clipping, "factors", lambda self, norms, **_: original(self, norms).clamp(max=1))


def statistic_not_cut_to_its_bound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("hoarfrost.clipping.base.Statistic.total", lambda self, norms: self.values(norms).double().sum())


def statistic_of_the_last_chunk_alone(patch: pytest.MonkeyPatch) -> None:
    def count(self: Any, norms: Tensor) -> None:
        self.statistics = {statistic.name: statistic.total(norms) for statistic in self.clipping.statistics}

    patch.setattr("hoarfrost.gradients.clipped_sum.ClippedSum.count", count)


def clipping_of_step_0_for_ever(patch: pytest.MonkeyPatch) -> None:
    original = Engine.__init__

    def init(self: Engine, *args: Any, **options: Any) -> None:
        original(self, *args, **options | {"step": lambda: 0})

    patch.setattr(Engine, "__init__", init)


def noise_weights_ignored(patch: pytest.MonkeyPatch) -> None:
    def stds(self: Clipping, noise_multiplier: float, live: Any = None) -> tuple[tuple[float, ...], tuple[float, ...]]:
        together = noise_multiplier * math.hypot(*self.bounds, *(s.bound for s in self.statistics))
        return (together,) * len(self.blocks), (together,) * len(self.statistics)

    patch.setattr(Clipping, "stds", stds)


def noised_for_another_norm(patch: pytest.MonkeyPatch) -> None:
    """The sum is clipped at one norm, and the noise is that of another."""
    original = PrivateOptimizer._set_gradients

    def set_gradients(self: PrivateOptimizer, total: Any) -> None:
        blocks = tuple(type(b)(b.name, b.parameters, b.bound / 2, b.noise_weight) for b in total.clipping.blocks)
        total.clipping = Clipping(blocks, total.clipping.rule, total.clipping.statistics)
        original(self, total)

    patch.setattr(PrivateOptimizer, "_set_gradients", set_gradients)


def noise_of_each_block_by_itself(patch: pytest.MonkeyPatch) -> None:
    """Every block has noise for its own bound, as if the others were not released with it."""

    def stds(self: Clipping, noise_multiplier: float, live: Any = None) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return tuple(noise_multiplier * b for b in self.bounds), tuple(
            noise_multiplier * s.bound for s in self.statistics
        )

    patch.setattr(Clipping, "stds", stds)
    patch.setattr(Clipping, "noise_multiplier", lambda self, *stds: SIGMA)


def rescaled_instead_of_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Global, "factors", lambda self, norms: (self.norm / norms).clamp(max=1))


def indicator_without_the_half(patch: pytest.MonkeyPatch) -> None:
    """From 0 to 1, as it is counted where nobody thinks of the sensitivity."""
    original = adaptive._below
    patch.setattr(adaptive, "_below", lambda norms, norm: original(norms, norm) + 0.495)
    patch.setattr("hoarfrost.clipping.base.Statistic.total", lambda self, norms: self.values(norms).double().sum())


def noise_of_one_group_only(patch: pytest.MonkeyPatch) -> None:
    original = Clipping.stds

    def stds(self: Clipping, noise_multiplier: float, live: Any = None) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return (noise_multiplier * self.bounds[0],) * len(self.blocks), original(self, noise_multiplier, live)[1]

    patch.setattr(Clipping, "stds", stds)
    patch.setattr(Clipping, "noise_multiplier", lambda self, *stds: SIGMA)


def bound_of_the_step_before(patch: pytest.MonkeyPatch) -> None:
    """Noise for the bound of the last step, where the style has moved on."""
    original, last = PrivateOptimizer._set_gradients, []

    def set_gradients(self: PrivateOptimizer, total: Any) -> None:
        last.append(total.clipping)
        total.clipping = last[max(0, len(last) - 2)]
        original(self, total)

    patch.setattr(PrivateOptimizer, "_set_gradients", set_gradients)


def sums_of(style: Style) -> None:
    assert_matches_oracle(style, Case("chunks", chunk=4))


FAULTS: list[tuple[Callable[[pytest.MonkeyPatch], None], str, Callable[[Style], None]]] = [
    (wrong_block_index, "PerGroup, equal noise", sums_of),
    (wrong_block_index, "PerGroup, proportional noise", assert_noise_matches),
    (bound_of_another_block, "PerGroup, equal noise", sums_of),
    (one_norm_for_all_blocks, "PerGroup, proportional noise", sums_of),
    (first_factor_for_all_blocks, "PerLayer(Local)", sums_of),
    (factors_above_one_cut, "Automatic(0.9)", sums_of),
    (statistic_not_cut_to_its_bound, "a statistic that is cut", sums_of),
    (statistic_of_the_last_chunk_alone, "Adaptive", sums_of),
    (clipping_of_step_0_for_ever, "Schedule", sums_of),
    (noise_weights_ignored, "PerGroup, proportional noise", assert_noise_matches),
    (noise_weights_ignored, "Adaptive", assert_statistics_are_noisy),
    (noised_for_another_norm, "Local(0.7)", assert_noise_matches),
    (noised_for_another_norm, "PerLayer(Local)", assert_noise_matches),
    (noise_of_each_block_by_itself, "PerLayer(Local)", assert_noise_matches),
    (rescaled_instead_of_dropped, "Global(1)", sums_of),
    (rescaled_instead_of_dropped, "PerLayer(Global)", sums_of),
    (indicator_without_the_half, "Adaptive", sums_of),
    (noise_of_one_group_only, "PerGroup, equal noise", assert_noise_matches),
    (noise_of_one_group_only, "PerLayer(Local)", assert_noise_matches),
    (bound_of_the_step_before, "Adaptive, global", assert_noise_matches),
    (bound_of_the_step_before, "Schedule", assert_noise_matches),
    (statistics_without_noise, "Adaptive", assert_statistics_are_noisy),
]


@pytest.mark.parametrize(("fault", "name", "check"), FAULTS, ids=[f"{f.__name__}, {name}" for f, name, _ in FAULTS])
def test_a_seeded_fault_is_seen(
    fault: Callable[[pytest.MonkeyPatch], None],
    name: str,
    check: Callable[[Style], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check(BY_NAME[name])
    fault(monkeypatch)
    with pytest.raises((AssertionError, NotPrivate)):  # a test sees it, or the library itself does
        check(BY_NAME[name])
