"""Whether a tensor that is made of nothing, or expanded, has a row for each example.

``torch.zeros(len(x), 4)`` has one, and ``torch.zeros(4, 4)`` has none; in a batch of four, both look alike. The place
in the code tells them apart: it is watched while the model runs on two examples, and on three.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

T = torch.Tensor
REPETITIONS = {T.repeat, torch.tile, T.tile}
EXPANSIONS = {T.expand, T.expand_as, torch.broadcast_to, T.broadcast_to} | REPETITIONS
Site = tuple[CodeType, int]  # a place in the code


def site() -> Site:
    """The place in the model's code that called the operation which is looked at."""
    frame: FrameType = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame):
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


class Sizes(TorchFunctionMode):
    """Notes the shapes of what is made of nothing or expanded, by the place where it is."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: dict[Site, list[tuple[int, ...]]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and (func in EXPANSIONS or not any(isinstance(a, Tensor) for a in args)):
            self.shapes.setdefault(site(), []).append(tuple(result.shape))
        return result


def counting(two: Sizes, three: Sizes) -> dict[Site, int | None]:
    """Along which dimension places make something that is longer for three examples than for two; None: along none."""
    both = ((place, shapes, three.shapes[place]) for place, shapes in two.shapes.items() if place in three.shapes)
    return {place: _longer(few, many) for place, few, many in both}


def _longer(few: list[tuple[int, ...]], many: list[tuple[int, ...]]) -> int | None:
    if few == many:
        return None
    pairs = ((a, b) for one, other in zip(few, many, strict=False) for a, b in [(one, other)] if len(a) == len(b))
    dims = (dim for a, b in pairs for dim, (m, n) in enumerate(zip(a, b, strict=True)) if m != n)
    return next(dims, 0)


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__", "")
    return bool(name.partition(".")[0] == "torch" or name.startswith("hoarfrost.gradients"))
