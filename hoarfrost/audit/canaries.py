"""What the audits feed to the step: a model without secrets, and examples made to be found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from hoarfrost.clipping import Clipper
from hoarfrost.freezing import Facts, Freezer, Live
from hoarfrost.masks import as_tensor

TENSORS = 3  # so that there are several left when one is frozen


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
        self.places = [slice(stop - width, stop) for width, stop in zip(widths, stops, strict=True)]

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x[:, place]) for part, place in zip(self.parts, self.places, strict=True)], 1).sum(1)


class Freezing:
    """How some coordinates of an audited model are held still; this one leaves all of them live.

    Another way to freeze is a subclass: `options` prepares the model and says what `make_private` is handed, `live`
    which coordinates are then live, and `share` how many of them, about (from it follows how large a model must be).
    """

    name = "nothing frozen"
    share = 1.0

    def options(self, model: nn.Module) -> dict[str, Any]:
        """Prepares the model; the result goes to `make_private`."""
        return {}

    def live(self, model: nn.Module, step: int) -> dict[str, Tensor]:
        """For each parameter: a mask of the coordinates that are live in this step, counted from 0."""
        return {name: torch.full_like(p, p.requires_grad, dtype=torch.bool) for name, p in model.named_parameters()}


class OneTensor(Freezing):
    """One whole tensor is switched off with requires_grad."""

    name = "one tensor frozen"
    share = (TENSORS - 1) / TENSORS

    def options(self, model: nn.Module) -> dict[str, Any]:
        tensors = list(model.parameters())
        tensors[len(tensors) // 2].requires_grad_(False)
        return {}


class ByFreezer(Freezing):
    """A freezer of the library. Every step is an epoch here: what is drawn per epoch is drawn anew for every step."""

    def __init__(self, freezer: Freezer, share: float = 1.0) -> None:
        self.freezer, self.share, self.name = freezer, share, str(freezer)

    def options(self, model: nn.Module) -> dict[str, Any]:
        return {"freeze": self.freezer}

    def live(self, model: nn.Module, step: int) -> dict[str, Tensor]:
        shapes = {name: p.shape for name, p in model.named_parameters()}
        facts = Facts(shapes, tuple((name,) for name in shapes), steps=None, sample_rate=1.0, steps_within=int)
        live = self.freezer.live(step, facts)
        return {name: as_tensor(live[name], p.shape).to(p.device) for name, p in model.named_parameters()}


class InOneStep(Freezer):
    """What another freezer lets move in one step of its run, in every step: neighbouring batches can be compared."""

    def __init__(self, freezer: Freezer, step: int, facts: Facts) -> None:
        self._name, self._live = f"{freezer} in step {step}", dict(freezer.live(step, facts))
        self.clips_everything, self.velocity_flows = freezer.clips_everything, freezer.velocity_flows
        self.observes = freezer.observes

    def __repr__(self) -> str:
        return self._name

    def key(self, step: int, facts: Facts) -> None:
        return None

    def live(self, step: int, facts: Facts) -> Live:
        return self._live


class Examples(Dataset):
    """Rows of one tensor, fetched a whole batch at a time."""

    def __init__(self, rows: Tensor):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        return self.rows[index]

    def __getitems__(self, index: list[int]) -> Tensor:
        return self.rows[torch.tensor(index, device=self.rows.device)]

    def loader(self) -> DataLoader[Tensor]:
        """For `make_private`; with a generator of its own, so that an audit leaves torch's random state as it was."""
        return DataLoader(self, collate_fn=_collate, generator=torch.Generator())


def _collate(rows: Tensor | list[Tensor]) -> Tensor:
    return rows if isinstance(rows, Tensor) else torch.stack(rows)


def total_sensitivity(clip: Clipper) -> float:
    """How far one example moves all groups together, as the clipper states it."""
    return math.hypot(*clip.sensitivity)


def loudest(clip: Clipper) -> Tensor:
    """The norms, one for each group, of the example that the clipper lets through most of: the longest such example.

    The longest, because a step that does not clip at all would let a short one through just as well.

    >>> from hoarfrost.clipping import Local
    >>> loudest(Local(0.5))
    tensor([500000.])
    """
    stated = torch.tensor(clip.sensitivity)
    low, high, points = 1e-4, 1e6, 401
    for _ in range(3):  # a clipper that drops what is too long is loudest right below the drop: look ever closer there
        scales = torch.logspace(math.log10(low), math.log10(high), points)
        norms = scales[:, None] * stated
        kept = torch.linalg.vector_norm(clip.factors(norms) * norms, dim=1).nan_to_num(0.0)
        best = int((kept >= (1 - 1e-4) * kept.max()).nonzero()[-1])
        low, high = float(scales[max(0, best - 1)]), float(scales[min(points - 1, best + 1)])
    return norms[best]
