"""One clipping style after the other: mix-up training, with the learning rate that goes with each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from torch import Tensor

from hoarfrost import validate
from hoarfrost.clipping.base import Clipper, Clipping, check_clipper
from hoarfrost.clipping.keep_or_drop import Global
from hoarfrost.clipping.local import Local
from hoarfrost.errors import InvalidValue
from hoarfrost.info import RunInfo
from hoarfrost.registry import ClipStyle, NotNegative, Positive, component


@dataclass(frozen=True)
class Stage:
    """A style, when it begins, and what the learning rate is multiplied by while it is used."""

    start: float
    style: Clipper
    learning_rate: float = 1.0

    def __repr__(self) -> str:
        rate = "" if self.learning_rate == 1 else f", {self.learning_rate:g}"
        return f"({self.start:g}, {self.style!r}{rate})"


@component("clip", "schedule", examples=lambda: [Schedule((0, Local(0.7)), (1, Global(1.4), 0.5), by="step")])
class Schedule(Clipper):
    """One style after the other, each with its learning rate.

    With local clipping first and global clipping for the last steps, this is the mix-up training of "On the Convergence
    and Calibration of Deep Learning with Differential Privacy".

    Args:
        stages: when a style begins, the style, and, if it is not 1, what the learning rate is multiplied by while it
            is used, on top of any scheduler. The first one begins at 0.
        by: what stages begin by: the "fraction" of the run's steps, the "step", the "epoch" (both from 0), or the
            "epsilon" spent.

    Guarantees:
        Which style clips a batch follows from the step's number alone: the schedule costs nothing, and each step has
        the noise that its own style asks for.

    >>> info = RunInfo({"weight": (2, 2)}, steps=200)
    >>> mixed = Schedule((0.0, Local(1.0)), (0.95, Global(75.0), 0.01))
    >>> [mixed.begin(step, info).bounds for step in (0, 189, 190)]
    [(1.0,), (1.0,), (75.0,)]
    >>> mixed.begin(190, info).learning_rate
    0.01
    """

    def __init__(
        self,
        *stages: tuple[float, Clipper] | tuple[float, Clipper, float],
        by: Literal["fraction", "step", "epoch", "epsilon"] = "fraction",
    ) -> None:
        if by not in ("fraction", "step", "epoch", "epsilon"):
            raise InvalidValue(f'by must be "fraction", "step", "epoch" or "epsilon", got {by!r}')
        if not stages or not all(isinstance(stage, tuple | list) and len(stage) in (2, 3) for stage in stages):
            raise InvalidValue("a schedule has stages such as (0.95, Global(75.0)) or (0.95, Global(75.0), 0.01)")
        self.by, self.stages = by, tuple(Stage(*stage) for stage in stages)
        self._last: tuple[Stage, Clipping, Clipping] | None = None  # the same object while nothing changes
        starts = [stage.start for stage in self.stages]
        for stage in self.stages:
            check_clipper(stage.style)
            validate.not_negative(start=stage.start)
            validate.finite(start=stage.start, learning_rate=stage.learning_rate)
            validate.positive(learning_rate=stage.learning_rate)
            if by in ("step", "epoch"):
                validate.count(start=stage.start)
        if starts[0] != 0:
            raise InvalidValue(f"the first stage of a schedule begins at 0, not at {starts[0]:g}")
        if any(later <= earlier for earlier, later in pairwise(starts)):
            raise InvalidValue(f"a schedule goes forward: its stages begin at {', '.join(f'{s:g}' for s in starts)}")
        if by == "fraction" and starts[-1] >= 1:
            raise InvalidValue(f"a stage that begins at the fraction {starts[-1]:g} begins after the end of the run")

    @classmethod
    def from_recipe(
        cls,
        styles: Sequence[ClipStyle],
        starts: Sequence[NotNegative],
        learning_rates: Sequence[Positive] = (),
        by: Literal["fraction", "step", "epoch", "epsilon"] = "fraction",
    ) -> Schedule:
        """As a recipe writes it.

        Args:
            styles: the styles, one after the other.
            starts: when each of them begins; the first at 0.
            learning_rates: what the learning rate is multiplied by while each is used; by default 1.
        """
        rates = learning_rates or [1.0] * len(styles)
        if not len(styles) == len(starts) == len(rates):
            raise InvalidValue("styles, starts and learning_rates have an entry for every stage")
        whole = by in ("step", "epoch")
        begins = [int(start) if whole and start == int(start) else start for start in starts]
        return cls(*zip(begins, styles, rates, strict=True), by=by)

    def __repr__(self) -> str:
        by = "" if self.by == "fraction" else f", by={self.by!r}"
        return f"Schedule({', '.join(map(repr, self.stages))}{by})"

    def begins(self, stage: Stage, info: RunInfo) -> int:
        """The first step of a stage."""
        if self.by == "step":
            return int(stage.start)
        if self.by == "epoch":
            return info.first_step(int(stage.start))
        if self.by == "epsilon":
            return info.steps_within(stage.start) if stage.start else 0
        if info.steps is None:
            raise InvalidValue("a schedule by fractions needs to know how long the run is: give epochs= or steps=")
        return math.floor(stage.start * info.steps + 1e-6)  # 0.29 of 100 is 28.999999999999996

    def check(self, info: RunInfo) -> None:
        begins = [self.begins(stage, info) for stage in self.stages]
        for stage, first in zip(self.stages, begins, strict=True):
            stage.style.check(info)
            if info.steps is not None and first >= info.steps:
                raise InvalidValue(f"the stage {stage!r} would begin after {first} steps, and the run has {info.steps}")
        for (stage, first), (_, then) in pairwise(zip(self.stages, begins, strict=True)):
            # Before a run has begun, every epsilon counts as spent at once.
            if first == then and (self.by != "epsilon" or then > 0):
                raise InvalidValue(
                    f"the stage {stage!r} would have no step: it and the next one begin after {first} steps"
                )

    def begin(self, step: int, info: RunInfo) -> Clipping:
        stage = self._stage(step, info)
        clipping = stage.style.begin(step, info)
        if stage.learning_rate == 1:
            return clipping
        if self._last is None or self._last[0] is not stage or self._last[1] is not clipping:
            rate = stage.learning_rate * clipping.learning_rate
            self._last = stage, clipping, replace(clipping, learning_rate=rate)
        return self._last[2]

    def observe(self, step: int, statistics: Mapping[str, float], info: RunInfo) -> None:
        self._stage(step, info).style.observe(step, statistics, info)

    def state(self) -> dict[str, Tensor]:
        return {
            f"{number}/{key}": value
            for number, stage in enumerate(self.stages)
            for key, value in stage.style.state().items()
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        for number, stage in enumerate(self.stages):
            prefix = f"{number}/"
            # Also where there is nothing: a style that had nothing to keep forgets what it has learned since.
            stage.style.load_state(
                {k.removeprefix(prefix): value for k, value in state.items() if k.startswith(prefix)}
            )

    def fresh(self) -> Clipper:
        return type(self)(*((s.start, s.style.fresh(), s.learning_rate) for s in self.stages), by=self.by)

    def _stage(self, step: int, info: RunInfo) -> Stage:
        return [stage for stage in self.stages if self.begins(stage, info) <= step][-1]
