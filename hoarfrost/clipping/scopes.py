"""Clipping layer by layer, or group by group: a norm, a style and a bound for each."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from torch import Tensor

from hoarfrost.clipping.adaptive import Adaptive
from hoarfrost.clipping.base import Clipper, Clipping
from hoarfrost.clipping.flat import FlatStyle, NoiseLevels, compose, count_of
from hoarfrost.clipping.keep_or_drop import Global
from hoarfrost.clipping.local import Local
from hoarfrost.errors import InvalidValue
from hoarfrost.info import RunInfo
from hoarfrost.registry import ClipStyle, component


class Scope(Clipper):
    """Blocks that are clipped apart from each other, each by a flat style. A subclass says which blocks there are."""

    noise: NoiseLevels

    def __post_init__(self) -> None:
        if self.noise not in ("equal", "proportional"):
            raise InvalidValue(f'noise must be "equal" or "proportional", got {self.noise!r}')
        self._own: dict[str, FlatStyle] = {}  # of each block, if its style keeps something
        self._kept: dict[str, dict[str, Tensor]] = {}  # from a checkpoint, for blocks that are not known yet
        self._found: tuple[RunInfo, Mapping[str, tuple[tuple[str, ...], FlatStyle]]] | None = None

    @abstractmethod
    def blocks(self, info: RunInfo) -> Mapping[str, tuple[tuple[str, ...], FlatStyle]]:
        """The blocks by name: their parameters and their style."""

    def check(self, info: RunInfo) -> None:
        self.begin(0, info)

    def begin(self, step: int, info: RunInfo) -> Clipping:
        if self._found is None or self._found[0] is not info:  # names are matched once for a run, not in every step
            self._found = info, self.blocks(info)
        blocks = self._found[1]
        parts = ((name, names, self._style(name, style).piece()) for name, (names, style) in blocks.items())
        return compose(tuple(parts), self.noise)

    def observe(self, step: int, statistics: Mapping[str, float], info: RunInfo) -> None:
        for name, style in self._own.items():
            if count_of(name) in statistics:
                style.follow(statistics[count_of(name)], info)

    def state(self) -> dict[str, Tensor]:
        found = {**self._kept, **{name: style.state() for name, style in self._own.items()}}
        return {f"{name}/{key}": value for name, state in found.items() for key, value in state.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self._own, self._kept = {}, {}
        for path, value in state.items():
            name, _, key = path.rpartition("/")
            self._kept.setdefault(name, {})[key] = value

    def fresh(self) -> Clipper:
        new = copy.copy(self)
        new._own, new._kept = {}, {}
        return new

    def _style(self, block: str, style: FlatStyle) -> FlatStyle:
        """The block's own copy of its style."""
        if block not in self._own:
            self._own[block] = style.fresh()
            if block in self._kept:
                self._own[block].load_state(self._kept.pop(block))
        return self._own[block]


@component(
    "clip", "per-layer",
    examples=lambda: [PerLayer(Local(0.4)), PerLayer(Global(0.4)), PerLayer(Adaptive(start=0.4, cost=0.1))],
)  # fmt: skip
@dataclass(eq=False)
class PerLayer(Scope):
    """Every layer's gradient is clipped by itself.

    Args:
        style: how each layer is clipped: each to that style's norm, or, if it is adaptive, to a norm of its own.
        noise: "equal": one level for all layers, σ·√(ΣS²) for their bounds S. "proportional": σ·√L·S in each of L.

    Guarantees:
        One example moves layer l's sum by at most its bound, and all together by √(ΣS²). Whatever the levels of noise,
        the step is one Gaussian release with the stated noise multiplier: the budget is that of flat clipping.

    >>> info = RunInfo({"a.weight": (2, 2), "a.bias": (2,), "b.weight": (1, 2)})
    >>> PerLayer(Local(3.0)).begin(0, info).stds(noise_multiplier=1.0)[0]
    (4.242640687119285, 4.242640687119285)
    """

    style: ClipStyle
    noise: Literal["equal", "proportional"] = "equal"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.style = _flat(self.style, "PerLayer")

    def blocks(self, info: RunInfo) -> Mapping[str, tuple[tuple[str, ...], FlatStyle]]:
        layers: dict[str, list[str]] = {}
        for name in info.shapes:  # the module that holds a parameter is its layer
            layers.setdefault(name.rpartition(".")[0] or "the model", []).append(name)
        return {layer: (tuple(names), self.style) for layer, names in layers.items()}


@component(
    "clip", "per-group",
    examples=lambda: [
        PerGroup({"parts.0.*": Local(0.3), "parts.1.*": Global(0.6), "parts.2.*": Local(0.5)}, noise="proportional")
    ],
)  # fmt: skip
@dataclass(eq=False)
class PerGroup(Scope):
    """Groups of parameters, by patterns of their names, are clipped apart from each other, each by a style of its own.

    Args:
        groups: a style for each pattern of parameter names, such as ``"*.bias"``. Every trained parameter matches one.
        noise: "equal": one level for all groups, σ·√(ΣS²) for their bounds S. "proportional": σ·√G·S in each of G.

    Guarantees:
        As for `PerLayer`. A pattern that matches nothing, a parameter that matches two patterns and one that matches
        none are refused.

    >>> info = RunInfo({"a.weight": (2, 2), "a.bias": (2,)})
    >>> PerGroup({"*.weight": Global(1.5), "*.bias": Global(0.3)}).begin(0, info).bounds
    (1.5, 0.3)
    """

    groups: Mapping[str, ClipStyle]
    noise: Literal["equal", "proportional"] = "equal"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.groups, Mapping) or not self.groups:
            raise InvalidValue(
                f"groups maps patterns of names to styles, such as '*.bias': Local(0.3), got {self.groups!r}"
            )
        if not all(isinstance(pattern, str) for pattern in self.groups):
            raise InvalidValue(
                f"the patterns of groups are text, such as '*.bias', got {', '.join(map(repr, self.groups))}"
            )
        self.groups = {pattern: _flat(style, f"the group {pattern!r}") for pattern, style in self.groups.items()}

    def blocks(self, info: RunInfo) -> Mapping[str, tuple[tuple[str, ...], FlatStyle]]:
        found = {
            pattern: (tuple(name for name in info.shapes if fnmatchcase(name, pattern)), style)
            for pattern, style in self.groups.items()
        }
        for pattern, (names, _) in found.items():
            if not names:
                raise InvalidValue(
                    f"no trained parameter is named like the group {pattern!r}; there are {', '.join(info.shapes)}"
                )
        for name in info.shapes:
            holding = [pattern for pattern, (names, _) in found.items() if name in names]
            if len(holding) != 1:
                which = f"in the groups {' and '.join(map(repr, holding))}" if holding else "in no group"
                raise InvalidValue(f"{name} is {which}: every trained parameter belongs to exactly one group")
        return found


def _flat(style: object, where: str) -> FlatStyle:
    if not isinstance(style, FlatStyle):
        raise InvalidValue(
            f"{where} takes a style that clips one norm, such as Local(1.0) or Global(1.0), not {style!r}"
        )
    return style
