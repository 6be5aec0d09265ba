"""Weights that are small before training are frozen."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping
from typing import Literal

import torch
from torch import Tensor

from hoarfrost import validate
from hoarfrost.errors import InvalidValue
from hoarfrost.freezing.base import Freezer
from hoarfrost.freezing.random import smallest
from hoarfrost.info import RunInfo
from hoarfrost.masks import Live
from hoarfrost.registry import Rate, component

Per = Literal["model", "layer"]


class Fixed(Freezer):
    """The same elements are live for the whole run, chosen from weights before it begins."""

    def __init__(self) -> None:
        self._masks: dict[str, Tensor] = {}

    def fresh(self) -> Freezer:
        return copy.copy(self)

    def key(self, step: int, info: RunInfo) -> Hashable:
        return None

    def live(self, step: int, info: RunInfo) -> Live:
        return {name: self._masks.get(name, True) for name in info.shapes}

    def state(self) -> dict[str, Tensor]:
        return dict(self._masks)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self._masks = {name: mask.bool() for name, mask in state.items()}


@component("freeze", "largest")
class Largest(Fixed):
    """The weights that are largest in magnitude before training are live; small ones are frozen at the value they have.

    Args:
        share: the share of all weights that is live.
        per: "model" ranks all weights together, "layer" those of each tensor on their own.

    >>> info = RunInfo({"weight": torch.Size([2, 2])}, (("weight",),), 100, 0.1, int)
    >>> largest = Largest(share=0.5)
    >>> largest.start({"weight": torch.tensor([[3.0, -1.0], [2.0, -4.0]])})
    >>> largest.live(0, info)["weight"].tolist()
    [[True, False], [False, True]]
    """

    def __init__(self, share: Rate, per: Per = "model") -> None:
        super().__init__()
        validate.rate(share=share)
        self.share, self.per = share, check_per(per)

    def __repr__(self) -> str:
        return f"Largest(share={self.share}, per={self.per!r})"

    def start(self, weights: Mapping[str, Tensor]) -> None:
        self._masks = largest_of(weights, self.share, self.per)


def check_per(per: Per) -> Per:
    """How weights are ranked."""
    if per not in ("model", "layer"):
        raise InvalidValue(f'per must be "model" or "layer", got {per!r}')
    return per


def largest_of(weights: Mapping[str, Tensor], share: float, per: str) -> dict[str, Tensor]:
    """Masks of the share of the weights that is largest in magnitude, on the weights' devices.

    >>> {n: m.tolist() for n, m in largest_of({"a": torch.tensor([3., -4., 1., 0.])}, 0.5, "layer").items()}
    {'a': [True, True, False, False]}
    """
    if per == "layer":
        return {name: _largest(weight, share) for name, weight in weights.items()}
    flat = torch.cat([weight.detach().flatten().float().cpu() for weight in weights.values()])
    parts = _largest(flat, share).split([weight.numel() for weight in weights.values()])
    pairs = zip(weights.items(), parts, strict=True)
    return {name: part.view(weight.shape).to(weight.device) for (name, weight), part in pairs}


def _largest(weights: Tensor, share: float) -> Tensor:
    magnitudes = weights.detach().float().abs().flatten().cpu().numpy()
    frozen = len(magnitudes) - round(share * len(magnitudes))
    return torch.from_numpy(~smallest(magnitudes, frozen)).view(weights.shape).to(weights.device)
