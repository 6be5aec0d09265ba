"""The sensitivity audit: neighbouring batches with hostile members, without noise, and how far the sum moves."""

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
from hoarfrost.audit.canaries import TENSORS, Examples, Freezing, LinearLoss, total_sensitivity, worst_case_norms
from hoarfrost.audit.no_op_optimizer import NoOpOptimizer
from hoarfrost.audit.result import Audit
from hoarfrost.clipping import Clipper, Local
from hoarfrost.errors import InvalidValue
from hoarfrost.noise import Keystream
from hoarfrost.private import make_private
from hoarfrost.sampling import Poisson

WIDTH = 8  # of each tensor of the default model
Batch = tuple[int, ...]
TOLERANCE = 1e-5  # of the sensitivity: the sums are float32
# In a network the others' gradients are rounded otherwise when a batch has one example more: up to 1e-4 was seen.
TOLERANCE_OF_NETWORKS = 1e-3
HOSTILE: dict[str, Callable[[Tensor], Tensor]] = {
    "half the sensitivity": lambda x: x / 2,
    "just below the sensitivity": lambda x: x * (1 - 1e-4),
    "just above it": lambda x: x * (1 + 1e-4),
    "a thousand times it": lambda x: x * 1e3,
    "1e18": lambda x: x * 1e18,
    "1e30": lambda x: x * 1e30,
    "1e-30": lambda x: x * 1e-30,
    "zero": torch.zeros_like,
    "inf": lambda x: torch.full_like(x, torch.inf),
    "one inf": lambda x: _with_first(x, torch.inf),
    "NaN": lambda x: torch.full_like(x, torch.nan),
    "one NaN": lambda x: _with_first(x, torch.nan),
    "one coordinate": lambda x: _with_first(torch.zeros_like(x), 1e6),
    "cancelling halves": lambda x: _cancelling(x),
}
"""An example whose gradient is about as long as the sensitivity becomes one that is made to break the step."""


@dataclass(frozen=True, kw_only=True)
class SensitivityAudit(Audit):
    """How far one example moved the clipped sum, as a share of what the clipper states."""

    kind: ClassVar[str] = "sensitivity"

    clip: str
    model: str
    freeze: str
    sensitivity: tuple[float, ...]  # as stated, for each group
    neighbours: int
    movement: float  # the largest, over the sensitivity; infinite if a release was not finite
    worst: str  # the neighbours for which it was the largest

    def figures(self) -> tuple[str, ...]:
        return (
            f"sensitivity audit: {self.clip}, {self.model}, {self.freeze}, {self.neighbours} neighbouring batches",
            f"largest movement {self.movement:.6g} of the stated sensitivity ({self.worst})",
        )


def sensitivity(
    *,
    clip: Clipper = Local(1.0),  # noqa: B008 - frozen
    model: nn.Module | None = None,
    shape: tuple[int, ...] | None = None,
    loss: Callable[[Tensor], Tensor] | None = None,
    freeze: Freezing = Freezing(),  # noqa: B008 - has no state
    views: int = 1,
    max_physical_batch: int | None = None,
    rounds: int = 2,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> SensitivityAudit:
    """Adds hostile examples to batches, through the real step with its noise switched off, and measures the difference.

    Args:
        clip: the clipping style, which states the sensitivity.
        model, shape: a model to try it on, and the shape of one of its (floating-point) inputs. By default a loss that
            is linear in its parameters, so that any gradient can be had. A copy is audited, in evaluation mode: dropout
            would make two runs differ that should differ in one example.
        loss: the mean loss over a batch, of the model's output alone; by default the sum of an example's outputs.
        freeze: what is frozen; for the default model, examples with all of their mass there are tried as well.
        views, max_physical_batch: as `make_private` has them.
        rounds: so many generated sets of batches.
        seed: for the generated examples.

    Guarantees:
        Deterministic but for the rounding of sums. A pass says that none of these neighbours moved the sum by more than
        (1 + 1e-5) times the sensitivity, or (1 + 1e-3) times for a model of one's own, in which other examples'
        gradients are rounded differently in batches of different sizes; other neighbours might. It says nothing about
        noise (`step`).

    >>> result = sensitivity(rounds=1)
    >>> result.passed, result.movement > 0.999
    (True, True)
    """
    validate.whole(rounds=rounds)
    if (model is None) != (shape is None):
        raise InvalidValue("a model needs the shape of one example, and the shape needs a model: give both or neither")
    name = "linear loss" if model is None else type(model).__name__
    audited = _linear_loss() if model is None else copy.deepcopy(model).eval()
    audited.to(device)
    options = {**freeze.options(audited), "views": views, "max_physical_batch": max_physical_batch}
    frozen = None  # which of the inputs are the gradients of frozen coordinates
    if model is None:
        frozen = ~torch.cat([mask.flatten() for mask in freeze.live(audited, 0).values()]).cpu()
    neighbours = _Neighbours()
    generator = torch.Generator().manual_seed(seed)
    for _ in range(rounds):
        x = torch.randn((WIDTH * TENSORS,) if shape is None else shape, generator=generator)
        _generate(neighbours, clip, x, frozen, generator)

    sums = _clipped_sums(audited, clip, neighbours, loss or _sum_of_outputs, options, device)
    moved = [(_movement(sums[base], sums[more], clip), pair) for pair, base, more in neighbours.pairs]
    movement, worst = max(moved, key=lambda found: found[0])
    alarm = f"{worst} moves the clipped sum by {movement:.6g} times the sensitivity that the clipper states"
    return SensitivityAudit(
        alarms=(alarm,) if movement > 1 + (TOLERANCE if model is None else TOLERANCE_OF_NETWORKS) else (),
        clip=str(clip), model=name, freeze=freeze.name, sensitivity=clip.sensitivity,
        neighbours=len(moved), movement=movement, worst=worst,
    )  # fmt: skip


class _Neighbours:
    """Examples, and pairs of batches (of their numbers) that differ in one of them."""

    def __init__(self) -> None:
        self.rows: list[Tensor] = []
        self.pairs: list[tuple[str, Batch, Batch]] = []

    def row(self, example: Tensor) -> int:
        self.rows.append(example)
        return len(self.rows) - 1


def _generate(to: _Neighbours, clip: Clipper, x: Tensor, frozen: Tensor | None, generator: torch.Generator) -> None:
    """Hostile members made of the direction ``x``, each added to several batches."""
    stated = total_sensitivity(clip)
    aside = None
    if frozen is not None:
        aside = torch.where(frozen, x, 0.0)
        x = torch.where(frozen, 0.0, x)
        x = x * stated / x.norm()
    loud = x * float(worst_case_norms(clip)[0] / clip.sensitivity[0])
    hostile = {name: change(x) for name, change in HOSTILE.items()}
    hostile |= {"as loud as can be": loud, "hardly louder": loud * (1 + 1e-6), "a little louder": loud * 1.001}
    if aside is not None and aside.any():
        hostile |= {"only frozen coordinates": aside * 1e3, "frozen and live coordinates": aside * 1e3 + x}

    # Against the opposing one a sum that is clipped as a whole turns round, where nothing else would show it.
    opposing = to.row(x * -1e3)
    ordinary = [to.row(torch.randn(x.shape, generator=generator) * stated / x.numel() ** 0.5) for _ in range(4)]
    broken = [to.row(torch.full_like(x, torch.nan)), to.row(torch.full_like(x, torch.inf)), ordinary[0]]
    batches = {"nobody": [], "an opposing example": [opposing], "others": [*ordinary, opposing], "broken ones": broken}
    for name, example in hostile.items():
        number = to.row(example)
        for among, base in (batches | {"two like it": [number, number]}).items():
            to.pairs.append((f"{name} among {among}", (*base,), (*base, number)))


def _clipped_sums(
    model: nn.Module,
    clip: Clipper,
    neighbours: _Neighbours,
    loss: Callable[[Tensor], Tensor],
    options: dict[str, Any],
    device: torch.device | str,
) -> dict[Batch, list[Tensor]]:
    """What the real step releases for each batch, [coordinates] for each group of the clipper."""
    batches = list(dict.fromkeys(batch for _, base, more in neighbours.pairs for batch in (base, more)))
    examples = Examples(torch.stack(neighbours.rows).to(device))
    # Far more examples are expected than there are in any batch, so that a division by their own number would show.
    private = make_private(
        model, NoOpOptimizer(model.parameters()), examples.loader(), sample_rate=1.0, noise_multiplier=0.0,
        delta=0.5, clip=clip, **options,
    )  # fmt: skip
    poisson = private.loader.poisson
    private.loader.poisson = _Scripted(sample_rate=poisson.sample_rate, size=poisson.size, script=iter(batches))
    named = dict(model.named_parameters())
    group_of = dict(zip(named, clip.groups(list(named)), strict=True))
    sums: dict[Batch, list[Tensor]] = {}
    for batch in batches:
        for x in private.loader:
            private.optimizer.zero_grad()
            loss(private.model(x)).backward()
            private.optimizer.step()
        parts: list[list[Tensor]] = [[] for _ in clip.sensitivity]
        for name, p in named.items():
            if p.grad is not None:
                parts[group_of[name]].append(p.grad.flatten().double() * private.expected_batch)
        sums[batch] = [torch.cat(part) if part else torch.zeros(0) for part in parts]
    return sums


@dataclass(frozen=True, kw_only=True)
class _Scripted(Poisson):
    """Draws what is in the script: the step is the real one, and which examples take part is known."""

    script: Iterator[Batch]

    def draw(self, stream: Keystream) -> npt.NDArray[np.int64]:
        stream.next_draw()
        return np.array(next(self.script), dtype=np.int64)


def _movement(before: list[Tensor], after: list[Tensor], clip: Clipper) -> float:
    """How far the sum moved, over the stated sensitivity; that of the group in which it moved furthest."""
    shares = [float((b - a).norm()) / stated for a, b, stated in zip(before, after, clip.sensitivity, strict=True)]
    return max(share if math.isfinite(share) else math.inf for share in shares)


def _linear_loss() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        return LinearLoss([WIDTH] * TENSORS)


def _sum_of_outputs(output: Tensor) -> Tensor:
    return output.flatten(1).sum(1).mean() if output.dim() > 1 else output.mean()


def _with_first(x: Tensor, value: float) -> Tensor:
    return x.index_fill(-1, torch.tensor([0]), value)


def _cancelling(x: Tensor) -> Tensor:
    """Halves that undo each other almost exactly: a norm that is the small rest of large products."""
    half = x.shape[0] // 2
    x = x.clone()
    x[half : 2 * half] = -x[:half] * (1 + 1e-6)
    return x * 1e4
