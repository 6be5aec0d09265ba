"""What a clipping style says: asked directly, without any step."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from hoarfrost.clipping import Clipper, Clipping
from hoarfrost.clipping.base import RATIO, check_clipping
from hoarfrost.info import RunInfo
from hoarfrost.testing import settings
from hoarfrost.testing.findings import Findings

STEPS = 8  # that a style is asked about
SIZES = (0.0, 1e-30, 1e-6, 0.1, 0.5, 0.999, 1.0, 1.001, 2.0, 10.0, 1e3, 1e6, 1e18, 1e30, torch.inf, torch.nan)
"""Norms that rules and statistics are tried on, in units of the blocks' bounds."""


def check_contract(found: Findings, clipper: Clipper, info: RunInfo) -> None:
    """What `begin`, `observe`, `fresh` and the clippings promise, without any step."""
    own = clipper.fresh()
    if not isinstance(own, Clipper):
        found.add(f"fresh() returns {own!r}", "Return the style itself, or a copy of it")
        return
    first = check_clipping(own.begin(0, info), own, info.shapes)
    if not all(isinstance(name, str) and isinstance(value, Tensor) for name, value in own.state().items()):
        found.add("state() holds something else than tensors by name", "Turn numbers into torch.tensor(...)")
        return
    length = info.steps or STEPS
    for step in sorted({0, 1, STEPS - 1, length // 2, length - 1}):
        before = {name: value.clone() for name, value in own.state().items()}
        clipping = check_clipping(own.begin(step, info), own, info.shapes)
        own.begin(step + 1, info)
        if not same_clipping(clipping, own.begin(step, info)):
            found.add(
                f"begin({step}, info) gives another clipping when it is asked again",
                "Let it depend on the step and on what observe() was told alone: no random numbers, no counting",
            )
        if not settings.same_tensors(before, own.state()):
            found.add("begin() changes state()", "Change what is kept in observe() alone")
        _check_rule(found, clipping)
    _check_observing(found, clipper, own, info, first)


def _check_rule(found: Findings, clipping: Clipping) -> None:
    norms, bounds = _norms(clipping), torch.tensor(clipping.bounds)
    finite = norms.isfinite().all(1) & (norms > 0).all(1) & (norms <= 1e18 * bounds).all(1)
    factors = _check_rows(found, "the rule", clipping.rule, norms, norms.shape)
    if factors is not None:
        kept = (factors * norms)[finite] / bounds
        if not bool(((kept >= 0) & (kept <= 1 + 1e-4)).all()):
            found.add(
                f"the rule keeps up to {float(kept.max()):.4g} and down to {float(kept.min()):.4g} times the bound",
                "Return factors for which 0 <= factor * norm <= bound, or state the bound that the rule keeps to. "
                "Nothing is lost for privacy, since the library cuts what exceeds it, but it is not what was meant",
            )
    kept = clipping.factors(norms)
    if kept.shape != norms.shape or not bool(kept.isfinite().all()):
        found.add("factors() of the clipping gives something that is not finite", "Do not override it")
    elif bool(((kept * norms)[finite] > bounds).any()):
        found.add("factors() of the clipping exceeds its bounds", "Do not override it")
    sound = factors is not None
    for statistic in clipping.statistics:
        values = _check_rows(found, f"statistic {statistic.name!r}", statistic.values, norms, norms.shape[:1])
        sound = sound and values is not None
        if values is not None and bool((values[finite].abs() > statistic.bound * (1 + 1e-6)).any()):
            found.add(
                f"statistic {statistic.name!r} is up to {float(values[finite].abs().max()):.4g}, above its bound "
                f"{statistic.bound:g}",
                "State a larger bound, or clamp the values: the library cuts them to the bound, and its sum is not "
                "the one that was meant",
            )
    if sound and not clipping.jumps:
        _check_jumps(found, clipping)


def _check_jumps(found: Findings, clipping: Clipping) -> None:
    """Along norms from a hundredth of the bounds to a hundred: of all blocks together, and of each alone."""
    bounds, blocks = torch.tensor(clipping.bounds, dtype=torch.float64), len(clipping.blocks)
    lengths = torch.exp(torch.arange(math.log(1e-2), math.log(1e2), math.log(RATIO), dtype=torch.float64))
    paths = [lengths[:, None].expand(-1, blocks)]
    for block, others in itertools.product(range(blocks), (0.5, 2.0)) if blocks > 1 else ():
        paths.append(torch.full((len(lengths), blocks), others, dtype=torch.float64))
        paths[-1][:, block] = lengths
    for what in {what for path in paths for what in clipping.jumps_along((path * bounds).float())}:
        found.add(
            f"{what.replace('a clipping', 'the clipping')} jumps: a norm that differs by a thousandth changes what is "
            "kept or counted by more than a tenth of the bound",
            "Let it fall over a width, as hoarfrost.clip.Global does: one example changes how the others' norms are "
            "rounded, and could carry many across a jump. For analysis, state Clipping(jumps=True)",
        )


def _check_rows(
    found: Findings, what: str, function: Callable[[Tensor], Tensor], norms: Tensor, shape: torch.Size
) -> Tensor | None:
    """The function's values, if they have the right shape; it must treat every example on its own."""
    given = norms.clone()
    values = function(given)
    if not isinstance(values, Tensor) or values.shape != shape:
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        found.add(f"{what} gives {got} for norms of shape {tuple(norms.shape)}", f"Return a tensor {tuple(shape)}")
        return None
    if not settings.same_tensors({"": given}, {"": norms}):
        found.add(f"{what} changes the norms that it is handed", "Compute with new tensors, not in place")
    # Once more without what is not finite, beside which other numbers may not show.
    for several in (norms, norms[norms.isfinite().all(1) & (norms < 1e6).all(1)]):
        alone = torch.cat([function(several[row : row + 1].clone()) for row in range(len(several))]).double()
        if torch.allclose(alone, function(several.clone()).double(), rtol=1e-5, atol=0.0, equal_nan=True):
            continue
        found.add(
            f"{what} gives an example another value when other examples are in the batch",
            "Compute every row from that row alone: with a mean or a maximum over the batch, one example changes what "
            "is kept of all others, and the bounds do not hold",
        )
    if function(norms[:0].clone()).shape != (0, *shape[1:]):
        found.add(f"{what} has a wrong shape for no examples at all", "Keep the first dimension, also if it is 0")
    return values.double()


def _check_observing(found: Findings, clipper: Clipper, own: Clipper, info: RunInfo, first: Clipping) -> None:
    """What it keeps of noisy statistics stays within a run, and leaves it with clippings that can be used."""
    other, words, said = clipper.fresh(), repr(clipper), _values(first)
    for step in range(STEPS):
        clipping = check_clipping(own.begin(step, info), own, info.shapes)
        if clipping.statistics:
            own.observe(step, made_up(clipping, step, info), info)
    later = check_clipping(own.begin(STEPS, info), own, info.shapes)
    _check_rule(found, later)
    if not _alike(said, _values(first)):
        found.add(
            "the rule or a statistic of a clipping changes when later steps are observed",
            "Take the numbers that they use in begin(), as local variables, and not from self when they are called",
        )
    if not all(same_clipping(first, each.begin(0, info)) for each in (other, clipper.fresh())):
        found.add(
            "what one run observes changes the clipping of another one",
            "Let fresh() return a copy that begins anew, such as copy.copy(self) with its state set back",
        )
    if repr(own) != words:
        found.add(
            f"its repr changes during a run, from {words} to {own!r}",
            "Show settings alone: a checkpoint gives its state to a style with the same repr, and to no other",
        )


def made_up(clipping: Clipping, step: int, info: RunInfo) -> dict[str, float]:
    """Noisy sums that could be: noise may make them negative, or larger than all examples together."""
    generator = torch.Generator().manual_seed(step)
    stds = clipping.stds(info.noise_multiplier)[1]
    made = {}
    for statistic, std in zip(clipping.statistics, stds, strict=True):
        share, noise = torch.rand((), generator=generator), torch.randn((), generator=generator)
        made[statistic.name] = float(share * statistic.bound * info.expected_batch + 3 * std * noise)
    return made


def _norms(clipping: Clipping) -> Tensor:
    """[examples, blocks]: all blocks alike, and each of them on its own."""
    sizes, blocks = torch.tensor(SIZES), len(clipping.blocks)
    mixed = sizes[torch.randint(len(SIZES), (3 * len(SIZES), blocks), generator=torch.Generator().manual_seed(0))]
    return torch.cat([sizes[:, None].expand(-1, blocks), mixed]) * torch.tensor(clipping.bounds)


def same_clipping(one: object, other: object) -> bool:
    """Whether two clippings do the same."""
    if not isinstance(one, Clipping) or not isinstance(other, Clipping) or one.blocks != other.blocks:
        return False
    stated = [[(each.name, each.bound, each.noise_weight) for each in c.statistics] for c in (one, other)]
    return stated[0] == stated[1] and _alike(_values(one), _values(other))


def _values(clipping: Clipping) -> list[Tensor]:
    """What rule and statistics say of `_norms`."""
    norms = _norms(clipping)
    functions = [clipping.rule, *(statistic.values for statistic in clipping.statistics)]
    return [function(norms.clone()).double() for function in functions]


def _alike(one: Iterable[Tensor], other: Iterable[Tensor]) -> bool:
    return settings.same_tensors(dict(enumerate(one)), dict(enumerate(other)))
