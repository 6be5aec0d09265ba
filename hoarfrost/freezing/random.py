"""Freezing a growing random set of coordinates: random freeze with gradual cooling."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from hoarfrost import validate
from hoarfrost.errors import InvalidValue
from hoarfrost.freezing.base import Freezer
from hoarfrost.info import RunInfo
from hoarfrost.masks import Channels, Live, Mask
from hoarfrost.noise.keystream import MAX_BYTES, Keystream
from hoarfrost.registry import Natural, Rate, Share, Whole, component

Granularity = Literal["element", "channel", "tensor"]


@component(
    "freeze",
    "random",
    # The same ones in every step, or neighbouring batches could not be compared.
    examples=lambda: [
        (Random(rate=0.5, redraw="never"), 0.4),
        (Random(rate=0.5, redraw="never", granularity="channel"), 2 / 3),
    ],
)
@dataclass(frozen=True)
class Random(Freezer):
    """A random share of the coordinates is frozen, drawn anew for every epoch.

    Args:
        rate: the share that is frozen (r*), from 0 to below 1.
        cooling: the number of epochs (e*) in which the share grows from 0 to ``rate``: in epoch e (from 0) it is
            r*·min(e/(e* − 1), 1). By default the full rate from the beginning.
        redraw: when the set is drawn anew: for every "epoch", for every "step", or "never".
        granularity: what is frozen: single elements ("element"); "channel" for whole output rows, of a layer's weight
            and bias together, which makes a step cheaper; "tensor" for whole parameters.
        velocity: "stands": what is frozen does not move by one bit. "flows": its gradient is zero, but momentum (and
            weight decay) go on moving it, as in the paper.
        posterior: clip first and freeze afterwards, for comparison: the norm then counts what is frozen.
        seed: a public number. The set is a function of seed, epoch and the model's parameters, in their order: anyone
            can compute it, and it is never stored.

    Guarantees:
        Exactly round(d·(1 − r)) of the model's d elements (or of its channels, or of its tensors) are live. The choice
        ignores the data and costs no privacy.

    >>> info = RunInfo({"weight": torch.Size([10, 20]), "bias": torch.Size([10])}, (("weight", "bias"),), 100, 0.1, int)
    >>> live = Random(rate=0.9).live(0, info)
    >>> int(live["weight"].sum() + live["bias"].sum())
    21
    >>> [round(Random(rate=0.9, cooling=4).rate_in(epoch), 2) for epoch in range(6)]
    [0.0, 0.3, 0.6, 0.9, 0.9, 0.9]
    """

    rate: Share
    cooling: Whole | None = None
    redraw: Literal["epoch", "step", "never"] = "epoch"
    granularity: Granularity = "element"
    velocity: Literal["stands", "flows"] = "stands"
    posterior: bool = False
    seed: Natural = 0

    def __post_init__(self) -> None:
        validate.not_negative(rate=self.rate)
        if self.rate >= 1:
            raise InvalidValue(f"rate must be below 1, got {self.rate}: with nothing live there is nothing to train")
        validate.count(seed=self.seed)
        if self.cooling is not None:
            validate.whole(cooling=self.cooling)
        for name, known in (
            ("redraw", ("epoch", "step", "never")),
            ("granularity", ("element", "channel", "tensor")),
            ("velocity", ("stands", "flows")),
        ):
            if getattr(self, name) not in known:
                raise InvalidValue(f"{name} is one of {', '.join(known)}, got {getattr(self, name)!r}")

    @property
    def velocity_flows(self) -> bool:  # type: ignore[override]
        return self.velocity == "flows"

    @property
    def clips_everything(self) -> bool:  # type: ignore[override]
        return self.posterior

    def rate_in(self, epoch: int) -> float:
        """The share that is frozen in an epoch."""
        if self.cooling is None or self.cooling == 1:
            return self.rate
        return self.rate * min(epoch / (self.cooling - 1), 1.0)

    def check(self, info: RunInfo) -> None:
        units = sum(_units(self.granularity, info).values())
        if live_of(units, self.rate) == 0:
            raise InvalidValue(f"{self!r} leaves none of the model's {units} {self.granularity}s to train")

    def key(self, step: int, info: RunInfo) -> Hashable:
        return self._draw(step, info)

    def _draw(self, step: int, info: RunInfo) -> tuple[float, int] | None:
        """The share that is frozen, and which draw it is; None if nothing does."""
        epoch = info.epoch_of(step)
        rate = self.rate_in(epoch)
        return (rate, {"epoch": epoch, "step": step, "never": 0}[self.redraw]) if rate > 0 else None

    def live(self, step: int, info: RunInfo) -> Live:
        drawn = self._draw(step, info)
        if drawn is None:
            return dict.fromkeys(info.shapes, True)
        rate, draw = drawn
        units = _units(self.granularity, info)
        total = sum(units.values())
        chosen = smallest(random_words(self.seed, draw, total), live_of(total, rate))
        return dict(_masks(self.granularity, info, units, chosen))


@component("freeze", "random_tensors", examples=lambda: [(RandomTensors(share=2 / 3), 2 / 3)])
class RandomTensors(Random):
    """A random share of the model's tensors is live, the same ones for the whole run.

    Args:
        share: the share of the tensors that is live.
        seed: a public number; which tensors are live follows from it.

    >>> RandomTensors(share=0.25).rate
    0.75
    """

    def __init__(self, share: Rate, seed: Natural = 0) -> None:
        validate.rate(share=share)
        super().__init__(rate=1 - share, granularity="tensor", redraw="never", seed=seed)

    def __repr__(self) -> str:
        return f"RandomTensors(share={1 - self.rate:g}, seed={self.seed})"


def live_of(units: int, rate: float) -> int:
    """How many of so many are live.

    >>> live_of(15, 0.9), round(15 * (1 - 0.9))
    (2, 1)
    """
    return round(units * (1 - Fraction(str(rate))))  # 15 · (1 - 0.9) is 1.5, and not just below


def random_words(seed: int, draw: int, number: int) -> npt.NDArray[np.uint32]:
    """Public random numbers, the same on every machine and in every version: a function of seed and draw alone."""
    stream = Keystream("freezing", seed)
    size, pieces = 4 * number, []
    for chunk, start in enumerate(range(0, size, MAX_BYTES)):
        pieces.append(np.frombuffer(stream.read(min(MAX_BYTES, size - start), draw, chunk), dtype="<u4"))
    return np.concatenate(pieces) if pieces else np.empty(0, np.uint32)


def smallest(values: npt.NDArray, number: int) -> npt.NDArray[np.bool_]:
    """Which values are among the ``number`` smallest; of equal ones the first.

    >>> smallest(np.array([5, 1, 5, 3]), 3).tolist()
    [True, True, False, True]
    """
    if number == 0:
        return np.zeros(len(values), bool)
    edge = np.partition(values, number - 1)[number - 1]
    chosen: npt.NDArray[np.bool_] = values < edge
    ties = np.flatnonzero(values == edge)
    chosen[ties[: number - int(chosen.sum())]] = True
    return chosen


def _units(granularity: Granularity, info: RunInfo) -> dict[str, int]:
    """What is drawn, by name: the elements or the tensor of a parameter, or the rows of a layer."""
    if granularity == "element":
        return {name: prod(shape) for name, shape in info.shapes.items()}
    if granularity == "tensor":
        return dict.fromkeys(info.shapes, 1)
    return {_layer(name, shape): _height(shape) for name, shape in info.shapes.items()}


def _masks(
    granularity: Granularity, info: RunInfo, units: Mapping[str, int], chosen: npt.NDArray[np.bool_]
) -> Iterator[tuple[str, Mask]]:
    ends = np.cumsum(list(units.values()))
    parts = {name: chosen[end - size : end] for (name, size), end in zip(units.items(), ends, strict=True)}
    for name, shape in info.shapes.items():
        if granularity == "element":
            yield name, torch.from_numpy(parts[name].reshape(shape))
        elif granularity == "tensor":
            yield name, bool(parts[name][0])
        else:
            rows = parts[_layer(name, shape)]
            yield name, Channels(torch.from_numpy(np.flatnonzero(rows))) if len(shape) else bool(rows[0])


def _layer(name: str, shape: torch.Size) -> str:
    """A layer's weight and bias have as many rows, and are frozen together."""
    return f"{name.rpartition('.')[0]} {_height(shape)}"


def _height(shape: torch.Size) -> int:
    return shape[0] if len(shape) else 1
