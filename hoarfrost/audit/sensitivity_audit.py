"""The sensitivity audit: how far a hostile example moves the clipped sum of neighbouring batches, without noise."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from hoarfrost import validate
from hoarfrost.audit.canaries import (
    LENGTH,
    AsInRun,
    Examples,
    Freezing,
    LastRelease,
    LinearLoss,
    OneClipping,
    info_of,
    tensors_for,
    worst_case_norms,
)
from hoarfrost.audit.no_op_optimizer import NoOpOptimizer
from hoarfrost.audit.result import Audit
from hoarfrost.budget import Plan
from hoarfrost.clipping import Clipper, Clipping, Local
from hoarfrost.errors import InvalidValue
from hoarfrost.noise import Keystream
from hoarfrost.private import assemble
from hoarfrost.sampling import Poisson, PoissonLoader

WIDTH = 8  # of each tensor of the default model
Batch = tuple[int, ...]
TOLERANCE = 1e-5  # of the sensitivity: the sums are float32
# In a network, one more example in a batch changes how the others' gradients are rounded: up to 1e-4 was measured.
TOLERANCE_OF_NETWORKS = 1e-3
HOSTILE: dict[str, Callable[[Tensor], Tensor]] = {
    "half the sensitivity": lambda x: x / 2,
    "the sensitivity itself": lambda x: x,
    "just below the sensitivity": lambda x: x * (1 - 1e-4),
    "just above the sensitivity": lambda x: x * (1 + 1e-4),
    "1000 x the sensitivity": lambda x: x * 1e3,
    "1e18 x the sensitivity": lambda x: x * 1e18,
    "1e30 x the sensitivity": lambda x: x * 1e30,
    "1e-30 x the sensitivity": lambda x: x * 1e-30,
    "1e-40 x the sensitivity": lambda x: x * 1e-40,
    "zero": torch.zeros_like,
    "all inf": lambda x: torch.full_like(x, torch.inf),
    "one inf": lambda x: _with_first(x, torch.inf),
    "all NaN": lambda x: torch.full_like(x, torch.nan),
    "one NaN": lambda x: _with_first(x, torch.nan),
    "one large coordinate": lambda x: _with_first(torch.zeros_like(x), 1e6),
    "cancelling halves": lambda x: _cancelling(x),
}
"""How to turn an example whose gradient norm is about the sensitivity into a hostile one."""


@dataclass(frozen=True, kw_only=True)
class SensitivityAudit(Audit):
    """The measured sensitivity, over the one that the clipper states."""

    kind: ClassVar[str] = "sensitivity"

    clip: str
    model: str
    freeze: str
    sensitivity: tuple[float, ...]  # as stated, for each block
    pairs: int  # of neighbouring batches
    ratio: float  # the largest measured sensitivity over the stated one; infinite if a release was not finite
    worst_pair: str  # for which the ratio was the largest
    unit: str = "one example"  # in which neighbouring batches differ

    def figures(self) -> tuple[str, ...]:
        return (
            f"sensitivity audit: {self.clip}, {self.model}, {self.freeze}, {self.pairs} pairs of neighbouring batches, "
            f"{self.unit} apart",
            f"measured sensitivity {self.ratio:.6g} times the stated one ({self.worst_pair})",
        )


def sensitivity(
    *,
    clip: Clipper = Local(1.0),  # noqa: B008 - frozen
    model: nn.Module | None = None,
    shape: tuple[int, ...] | None = None,
    loss: Callable[[Tensor], Tensor] | None = None,
    freeze: Freezing = Freezing(),  # noqa: B008 - has no state
    views: int = 1,
    per_person: int | None = None,
    max_physical_batch: int | None = None,
    rounds: int = 2,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> SensitivityAudit:
    """Adds hostile examples to batches, takes the real step without noise, and measures how far the sum moves.

    Args:
        clip: the clipping style, which states the sensitivity. All batches are clipped as its first one.
        model, shape: a model, and the shape of one of its (floating-point) inputs. By default a loss that is linear in
            its parameters, so that examples with any gradient can be made. A copy is audited, in evaluation mode, since
            dropout would add differences of its own.
        loss: the mean loss over a batch, of the model's output alone; by default the sum of an example's outputs.
        freeze: what is frozen; with the default model, gradients on frozen coordinates are tried as well.
        views, per_person, max_physical_batch: as for `make_private`. With ``per_person``, everybody has one row to
            one more than so many, all of them hostile in the same way, and neighbouring batches differ in a whole
            person.
        rounds: how many sets of batches are generated.
        seed: of the generated examples.

    Guarantees:
        Deterministic up to the rounding of sums. A pass says that no example moved the sum by more than (1 + 1e-5)
        times the stated sensitivity, or (1 + 1e-3) times for a given model, where the batch size changes how gradients
        are rounded. Neighbouring batches that were not tried might. It says nothing about noise (`step`).

    >>> result = sensitivity(rounds=1)
    >>> result.passed, result.ratio > 0.999
    (True, True)
    """
    validate.whole(rounds=rounds)
    if (model is None) != (shape is None):
        raise InvalidValue("give both model and shape (of one example), or neither")
    name = "linear loss" if model is None else type(model).__name__
    tensors = tensors_for(clip) if model is None else 0
    audited = _linear_loss(tensors) if model is None else copy.deepcopy(model).eval()
    audited.to(device)
    options = freeze.options(audited)
    frozen = None  # which of the inputs are the gradients of frozen coordinates
    if model is None:
        frozen = ~torch.cat([mask.flatten() for mask in freeze.live(audited, 0, info_of(audited)).values()]).cpu()
    # Neighbours are made for the clipping of the first step, and no other one clips them.
    one, neighbours = OneClipping(AsInRun(clip, 0, info_of(audited))), _Neighbours()
    clipping = one.begin(0, info_of(audited))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(rounds):
        x = torch.randn((WIDTH * tensors,) if shape is None else shape, generator=generator)
        _generate(neighbours, clipping, x, frozen, generator)

    sums = _clipped_sums(
        audited, one, neighbours, loss or _sum_of_outputs, options, views=views,
        per_person=per_person, max_physical_batch=max_physical_batch, device=device,
    )  # fmt: skip
    ratios = [(_ratio(sums[base], sums[more], clipping), pair) for pair, base, more in neighbours.pairs]
    ratio, worst = max(ratios, key=lambda found: found[0])
    alarm = f"{worst}: moves the clipped sum by {ratio:.6g} times the stated sensitivity"
    return SensitivityAudit(
        alarms=(alarm,) if ratio > 1 + (TOLERANCE if model is None else TOLERANCE_OF_NETWORKS) else (),
        clip=str(clip), model=name, freeze=freeze.name, sensitivity=clipping.bounds,
        pairs=len(ratios), ratio=ratio, worst_pair=worst, unit="one example" if per_person is None else "one person",
    )  # fmt: skip


class _Neighbours:
    """Examples, and pairs of neighbouring batches: tuples of their row numbers."""

    def __init__(self) -> None:
        self.rows: list[Tensor] = []
        self.pairs: list[tuple[str, Batch, Batch]] = []

    def row(self, example: Tensor) -> int:
        self.rows.append(example)
        return len(self.rows) - 1


def _generate(
    to: _Neighbours, clipping: Clipping, x: Tensor, frozen: Tensor | None, generator: torch.Generator
) -> None:
    """Makes hostile examples in the direction ``x``, and adds each of them to several batches."""
    stated = clipping.sensitivity
    on_frozen = None
    if frozen is not None:
        on_frozen = torch.where(frozen, x, 0.0)
        x = torch.where(frozen, 0.0, x)
        x = x * stated / x.norm()
    norms = worst_case_norms(clipping)
    worst_case = x * float(norms[0] / clipping.bounds[0])
    if frozen is not None:  # gradients can be made at will: every block of this one has the norm that is worst for it
        block_of = torch.tensor([clipping.block_of[f"parts.{i // WIDTH}.weight"] for i in range(len(x))])
        for block, norm in enumerate(norms):
            part = torch.where(block_of == block, x, 0.0)
            if part.any():
                worst_case = torch.where(block_of == block, part * norm / part.norm(), worst_case)
    hostile = {name: change(x) for name, change in HOSTILE.items()}
    hostile |= {
        "worst-case norm": worst_case,
        "worst-case norm x (1 + 1e-6)": worst_case * (1 + 1e-6),
        "worst-case norm x 1.001": worst_case * 1.001,
    }
    if on_frozen is not None and on_frozen.any():
        hostile |= {"only frozen coordinates": on_frozen * 1e3, "frozen and live coordinates": on_frozen * 1e3 + x}

    # Next to an opposing example, a sum that is clipped as a whole changes its sign. Nothing else would show that.
    opposing = to.row(x * -1e3)
    ordinary = [to.row(torch.randn(x.shape, generator=generator) * stated / x.numel() ** 0.5) for _ in range(4)]
    non_finite = [to.row(torch.full_like(x, torch.nan)), to.row(torch.full_like(x, torch.inf)), ordinary[0]]
    batches = {
        "an empty batch": [],
        "an opposing example": [opposing],
        "ordinary examples": [*ordinary, opposing],
        "non-finite examples": non_finite,
    }
    for name, example in hostile.items():
        number = to.row(example)
        # Under a mean loss, ten gradients are rounded otherwise than nine: what jumps at some norm moves them all.
        copies = {"two copies of itself": [number] * 2, "nine copies of itself": [number] * 9}
        for other, base in (batches | copies).items():
            to.pairs.append((f"{name}, added to {other}", (*base,), (*base, number)))


def _clipped_sums(
    model: nn.Module,
    clip: Clipper,
    neighbours: _Neighbours,
    loss: Callable[[Tensor], Tensor],
    options: dict[str, Any],
    *,
    views: int,
    per_person: int | None,
    max_physical_batch: int | None,
    device: torch.device | str,
) -> dict[Batch, list[Tensor]]:
    """What the real step releases for each batch: [coordinates] for each block, and [1] for each statistic."""
    batches = list(dict.fromkeys(batch for _, base, more in neighbours.pairs for batch in (base, more)))
    size = len(neighbours.rows)
    owner = [
        number for number in range(size) for _ in range(1 if per_person is None else 1 + number % (per_person + 1))
    ]
    examples = Examples(torch.stack(neighbours.rows)[owner].to(device))
    scripted = _Scripted(sample_rate=1.0, size=size, script=iter(batches))
    # The expected batch is far larger than any batch here, so that a division by the actual size would show.
    loader = PoissonLoader(
        examples.loader(), poisson=scripted, views=views, max_physical_batch=max_physical_batch,
        person=None if per_person is None else owner, per_person=per_person,
    )  # fmt: skip
    private = assemble(
        model, NoOpOptimizer(model.parameters()),
        loader,
        Plan(size=size, sample_rate=1.0, noise_multiplier=0.0, delta=0.5, steps=LENGTH, unit=loader.unit),
        clip=clip, **options,
    )  # fmt: skip
    seen = LastRelease()
    private.observe(seen)
    sums: dict[Batch, list[Tensor]] = {}
    for batch in batches:
        for x in private.loader:
            private.optimizer.zero_grad()
            loss(private.model(x)).backward()
            private.optimizer.step()
        blocks: list[list[Tensor]] = [[] for _ in seen.last.clipping.blocks]
        for name, gradient in seen.last.gradients.items():
            block = seen.last.clipping.block_of[name]
            blocks[block].append(gradient.flatten().double() * private.expected_batch)
        sums[batch] = [torch.cat(block) if block else torch.zeros(0) for block in blocks]
        sums[batch] += [torch.tensor([count], dtype=torch.float64) for count in seen.last.statistics.values()]
    return sums


@dataclass(frozen=True, kw_only=True)
class _Scripted(Poisson):
    """Draws the batches of a script instead of random ones."""

    script: Iterator[Batch]

    def draw(self, stream: Keystream) -> npt.NDArray[np.int64]:
        stream.next_draw()
        return np.array(next(self.script), dtype=np.int64)


def _ratio(before: list[Tensor], after: list[Tensor], clipping: Clipping) -> float:
    """How far the sum moved, over the stated sensitivity; the largest over all blocks and statistics."""
    bounds = [*clipping.bounds, *(statistic.bound for statistic in clipping.statistics)]
    ratios = [float((b - a).norm()) / stated for a, b, stated in zip(before, after, bounds, strict=True)]
    return max(ratio if math.isfinite(ratio) else math.inf for ratio in ratios)


def _linear_loss(tensors: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        return LinearLoss([WIDTH] * tensors)


def _sum_of_outputs(output: Tensor) -> Tensor:
    return output.flatten(1).sum(1).mean() if output.dim() > 1 else output.mean()


def _with_first(x: Tensor, value: float) -> Tensor:
    return x.index_fill(-1, torch.tensor([0]), value)


def _cancelling(x: Tensor) -> Tensor:
    """Halves that cancel almost exactly: the norm is a small difference of large products."""
    half = x.shape[0] // 2
    x = x.clone()
    x[half : 2 * half] = -x[:half] * (1 + 1e-6)
    return x * 1e4
