"""What the audits feed to a step: a model whose gradients are known, and canary examples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from hoarfrost.clipping import Clipper, Clipping
from hoarfrost.freezing import Freezer, Live
from hoarfrost.info import RunInfo
from hoarfrost.masks import as_tensor
from hoarfrost.observers import Observer, Released

LENGTH = 10**6  # steps of an audited run, of which the first few are taken
TENSORS = 3  # or more: so that there are several left when one is frozen
MOST_STAGES = 16  # that are audited of a style that changes by itself in ever so many steps


class LinearLoss(nn.Module):
    """⟨θ, x⟩ with θ in several tensors: an example's gradient is the example itself, whatever the weights.

    >>> model = LinearLoss([2, 3])
    >>> model(torch.randn(4, 5)).shape
    torch.Size([4])
    """

    def __init__(self, widths: Sequence[int]):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(width, 1, bias=False) for width in widths)
        stops = list(accumulate(widths))
        self.slices = [slice(stop - width, stop) for width, stop in zip(widths, stops, strict=True)]

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x[:, columns]) for part, columns in zip(self.parts, self.slices, strict=True)], 1).sum(1)


class Freezing:
    """Which coordinates of an audited model are frozen. This one freezes none.

    A subclass freezes some: `options` prepares the model and returns arguments for `make_private`, `live` returns the
    live coordinates, and `share` is about the fraction of them (it decides how large the model must be).
    """

    name = "nothing frozen"
    share = 1.0

    def options(self, model: nn.Module) -> dict[str, Any]:
        """Prepares the model; returns further arguments for `make_private`."""
        return {}

    def live(self, model: nn.Module, step: int, info: RunInfo) -> dict[str, Tensor]:
        """A mask for each parameter: the coordinates that are live in this step (the first step is 0)."""
        return {name: torch.full_like(p, p.requires_grad, dtype=torch.bool) for name, p in model.named_parameters()}

    def released(self, live: Mapping[str, Tensor]) -> list[str]:
        """The parameters of which anything is released, and which take a share of the noise."""
        return [name for name, mask in live.items() if mask.any()]


class OneTensor(Freezing):
    """One whole tensor is frozen with requires_grad."""

    name = "one tensor frozen"
    share = (TENSORS - 1) / TENSORS

    def options(self, model: nn.Module) -> dict[str, Any]:
        tensors = list(model.parameters())
        tensors[len(tensors) // 2].requires_grad_(False)
        return {}


class ByFreezer(Freezing):
    """A freezer of the library. Every step counts as an epoch: what is drawn per epoch is redrawn in every step."""

    def __init__(self, freezer: Freezer, share: float = 1.0) -> None:
        self.freezer, self.share, self.name = freezer, share, str(freezer)

    def options(self, model: nn.Module) -> dict[str, Any]:
        return {"freeze": self.freezer}

    def live(self, model: nn.Module, step: int, info: RunInfo) -> dict[str, Tensor]:
        live = self.freezer.live(step, info)
        return {name: as_tensor(live[name], p.shape).to(p.device) for name, p in model.named_parameters()}

    def released(self, live: Mapping[str, Tensor]) -> list[str]:
        return list(live) if self.freezer.observes else super().released(live)  # it sees noise on what is frozen, too


class InOneStep(Freezer):
    """Another freezer's mask of one step, used in every step, so that neighbouring batches can be compared."""

    def __init__(self, freezer: Freezer, step: int, info: RunInfo) -> None:
        self._name, self._live = f"{freezer} in step {step}", dict(freezer.live(step, info))
        self.clips_everything, self.velocity_flows = freezer.clips_everything, freezer.velocity_flows
        self.observes = freezer.observes

    def __repr__(self) -> str:
        return self._name

    def key(self, step: int, info: RunInfo) -> None:
        return None

    def live(self, step: int, info: RunInfo) -> Live:
        return self._live


class OneClipping(Clipper):
    """Another style's clipping of one step, used in every step, so that what several steps release can be compared."""

    def __init__(self, clipper: Clipper, step: int = 0) -> None:
        self._clipper, self._step = clipper.fresh(), step

    def __repr__(self) -> str:
        return repr(self._clipper)

    def begin(self, step: int, info: RunInfo) -> Clipping:
        return self._clipper.begin(self._step, info)


class AsInRun(Clipper):
    """A run's style as it clips in one of that run's steps, on whatever model is audited.

    On the run's own network it is that very clipping. On another one the clipping's blocks are given the tensors of
    that model in turn: norms, rules, bounds, noise and statistics are those of the run.

    Args:
        clipper: the style, which goes on to follow noisy statistics.
        step: of the run.
        info: of the run.
        name: in which it is shown.

    >>> from hoarfrost.clipping import Local, PerGroup
    >>> run = RunInfo({"0.weight": (3, 2), "0.bias": (3,)})
    >>> style = AsInRun(PerGroup({"*.weight": Local(1.5), "*.bias": Local(0.3)}), 0, run)
    >>> for block in clipping_of(style, LinearLoss([1, 1])).blocks:
    ...     print(block.name, block.parameters, block.bound)
    *.weight ('parts.0.weight',) 1.5
    *.bias ('parts.1.weight',) 0.3
    """

    def __init__(self, clipper: Clipper, step: int, info: RunInfo, name: str | None = None) -> None:
        self._clipper, self._step, self._info, self._name = clipper.fresh(), step, info, name or repr(clipper)
        self._last: tuple[Clipping, list[str], Clipping] | None = None  # the same object while nothing changes

    def __repr__(self) -> str:
        return self._name

    @property
    def blocks(self) -> int:
        """How many there are."""
        return len(self._clipper.begin(self._step, self._info).blocks)

    def begin(self, step: int, info: RunInfo) -> Clipping:
        clipping, names = self._clipper.begin(self._step, self._info), list(info.shapes)
        if clipping.block_of.keys() >= set(names):
            return clipping
        if self._last is None or self._last[0] is not clipping or self._last[1] != names:
            number = len(clipping.blocks)
            blocks = [replace(block, parameters=tuple(names[i::number])) for i, block in enumerate(clipping.blocks)]
            self._last = clipping, names, replace(clipping, blocks=tuple(blocks))
        return self._last[2]

    def observe(self, step: int, statistics: Mapping[str, float], info: RunInfo) -> None:
        self._clipper.observe(self._step, statistics, replace(self._info, expected_batch=info.expected_batch))

    def fresh(self) -> AsInRun:
        return AsInRun(self._clipper, self._step, self._info, self._name)


def stages(clipper: Clipper, info: RunInfo) -> list[AsInRun]:
    """A run's style in every step in which it does something new by itself, and not by what it observes.

    Of more than 16 such steps 16, from the first to the last.

    >>> from hoarfrost.clipping import Global, Local, Schedule
    >>> stages(Schedule((0.0, Local(1.0)), (0.5, Global(2.0))), RunInfo({"weight": (2,)}, steps=8))[1]
    Schedule((0, Local(norm=1.0)), (0.5, Global(norm=2.0, edge=0.05))) from step 4 on
    """
    style, last = clipper.fresh(), None
    known: dict[object, list[Clipping]] = {}
    steps: list[int] = []
    for step in range(info.steps or 1):
        clipping = style.begin(step, info)
        if clipping is not last:
            stated = tuple((each.name, each.bound, each.noise_weight) for each in clipping.statistics)
            alike = known.setdefault((clipping.blocks, stated, clipping.learning_rate), [])
            if not any(_same_rules(clipping, other) for other in alike):
                alike.append(clipping)
                steps.append(step)
        last = clipping
    if len(steps) > MOST_STAGES:
        steps = [steps[i * (len(steps) - 1) // (MOST_STAGES - 1)] for i in range(MOST_STAGES)]
    names = [f"{clipper!r} from step {step} on" if len(steps) > 1 else repr(clipper) for step in steps]
    return [AsInRun(clipper, step, info, name) for step, name in zip(steps, names, strict=True)]


def _same_rules(one: Clipping, other: Clipping) -> bool:
    norms = torch.logspace(-2, 2, 101)[:, None] * torch.tensor(one.bounds)
    pairs = zip(one.statistics, other.statistics, strict=True)
    return torch.equal(one.factors(norms), other.factors(norms)) and all(
        torch.equal(a.of(norms), b.of(norms)) for a, b in pairs
    )


class LastRelease(Observer):
    """What the last step released."""

    last: Released

    def on_release(self, released: Released) -> None:
        self.last = released


class Examples(Dataset):
    """Rows of one tensor as a data set. A batch is read at once."""

    def __init__(self, rows: Tensor):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        return self.rows[index]

    def __getitems__(self, index: list[int]) -> Tensor:
        return self.rows[torch.tensor(index, device=self.rows.device)]

    def loader(self) -> DataLoader[Tensor]:
        """A loader for `make_private`, with its own generator: an audit leaves torch's random state as it was."""
        return DataLoader(self, collate_fn=_collate, generator=torch.Generator())


def _collate(rows: Tensor | list[Tensor]) -> Tensor:
    return rows if isinstance(rows, Tensor) else torch.stack(rows)


def clipping_of(clip: Clipper, model: nn.Module) -> Clipping:
    """How the style clips the first batch of a run on this model."""
    return clip.fresh().begin(0, info_of(model))


def tensors_for(clip: Clipper) -> int:
    """How many tensors a linear loss needs: one for every block at least."""
    with torch.random.fork_rng(devices=[]):
        return max(TENSORS, len(clipping_of(clip, LinearLoss([1] * TENSORS)).blocks))


def info_of(model: nn.Module) -> RunInfo:
    """Every parameter counts as a layer of its own."""
    shapes = {name: p.shape for name, p in model.named_parameters()}
    return RunInfo(shapes, tuple((name,) for name in shapes), steps=LENGTH)


def worst_case_norms(clipping: Clipping) -> Tensor:
    """The gradient norms, one for each block, at which the clipped gradient is largest; the largest such norms.

    The largest, because a step that does not clip at all would treat a small gradient correctly.

    >>> from hoarfrost.clipping import Local
    >>> worst_case_norms(clipping_of(Local(0.5), nn.Linear(2, 1)))
    tensor([500000.])
    """
    stated = torch.tensor(clipping.bounds)
    low, high, points = 1e-4, 1e6, 401
    for _ in range(3):  # a style that drops long gradients keeps most right below the drop: refine there
        scales = torch.logspace(math.log10(low), math.log10(high), points)
        norms = scales[:, None] * stated
        # Norms are rounded up a little where coordinates are frozen: what is kept here must be kept there, too.
        factors = torch.minimum(clipping.factors(norms), clipping.factors(norms * (1 + 1e-4)))
        clipped = torch.linalg.vector_norm(factors * norms, dim=1).nan_to_num(0.0)
        best = int((clipped >= (1 - 1e-4) * clipped.max()).nonzero()[-1])
        low, high = float(scales[max(0, best - 1)]), float(scales[min(points - 1, best + 1)])
    return norms[best]
