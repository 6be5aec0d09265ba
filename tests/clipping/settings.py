"""The table of clipping styles. Adding a style to the library is adding one row.

Every row runs in `test_styles.py`, on losses that are scaled so that half of the examples' gradients are longer than 1.
Norms in the table are of that order.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hoarfrost.clipping import Block, Clipper, Clipping, Local, Statistic
from hoarfrost.info import RunInfo
from tests import oracle


@dataclass(frozen=True)
class Known:
    """What the rule of a batch may depend on.

    Args:
        names: of the parameters that the optimizer moves, in the model's order.
        expected_batch: the public constant.
        seen: the noisy statistics of every earlier step, by name.
    """

    step: int
    names: list[str]
    expected_batch: float
    seen: list[Mapping[str, float]]


@dataclass(frozen=True)
class Style:
    """A clipping style, and the plain rule that it must amount to.

    Args:
        rule: written without the library's clipping; the oracle uses it.
        clips: some factors are below 1 and some are not. False for a style that does otherwise on any data.
    """

    name: str
    clipper: Clipper
    rule: Callable[[Known], oracle.Rule]
    clips: bool = True

    def __repr__(self) -> str:
        return self.name


# Styles for the tests alone, so that every part of the contract is used.


@dataclass(frozen=True)
class Dropping(Clipper):
    """Keeps gradients up to the norm whole, and drops longer ones."""

    norm: float

    def begin(self, step: int, info: RunInfo) -> Clipping:
        return Clipping.flat(info.shapes, self.norm, lambda norms: norms <= self.norm)


@dataclass(frozen=True)
class Normalising(Clipper):
    """Brings every gradient to the same length, short ones too."""

    length: float

    def begin(self, step: int, info: RunInfo) -> Clipping:
        return Clipping.flat(info.shapes, self.length, lambda norms: self.length / norms)


@dataclass(frozen=True)
class ByLayer(Clipper):
    """Every layer is clipped by itself, to a norm of its own: ``first``, and ``more`` for each layer after it."""

    first: float
    more: float

    def begin(self, step: int, info: RunInfo) -> Clipping:
        layers: dict[str, list[str]] = {}
        for name in info.shapes:
            layers.setdefault(name.rpartition(".")[0], []).append(name)
        blocks = [
            Block(layer, tuple(names), self.first + self.more * i) for i, (layer, names) in enumerate(layers.items())
        ]
        bounds = torch.tensor([block.bound for block in blocks])
        return Clipping(tuple(blocks), lambda norms: (bounds.to(norms) / norms).clamp(max=1))


@dataclass(frozen=True)
class ByPattern(Clipper):
    """Biases in one block and all the rest in another, each as noisy as its bound is large."""

    biases: float
    rest: float

    def begin(self, step: int, info: RunInfo) -> Clipping:
        blocks = (
            Block("rest", tuple(n for n in info.shapes if not n.endswith("bias")), self.rest, noise_weight=self.rest),
            Block("biases", tuple(n for n in info.shapes if n.endswith("bias")), self.biases, noise_weight=self.biases),
        )
        return Clipping(blocks, self.factors)

    def factors(self, norms: Tensor) -> Tensor:
        return torch.stack([self.rest / norms[:, 0], self.biases / norms[:, 1]], 1).clamp(max=1)


@dataclass
class Adaptive(Clipper):
    """The norm follows the share of gradients that are shorter than it, of which it knows a noisy count."""

    norm: float
    share: float = 0.6
    rate: float = 0.4
    bound: float = 0.5  # a count of 1 is more than the statistic allows, and is cut
    now: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.now = self.norm

    def begin(self, step: int, info: RunInfo) -> Clipping:
        now = self.now  # not self.now: this batch's norm
        short = Statistic("short", lambda norms: norms[:, 0] <= now, self.bound, noise_weight=3.0)
        return Clipping.flat(info.shapes, now, lambda norms: (now / norms).clamp(max=1), (short,))

    def observe(self, step: int, statistics: Mapping[str, float], info: RunInfo) -> None:
        share = statistics["short"] / self.bound / info.expected_batch
        self.now = min(max(self.now * math.exp(self.rate * (self.share - share)), 0.1), 2.0)

    def state(self) -> dict[str, Tensor]:
        return {"now": torch.tensor(self.now, dtype=torch.float64)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.now = float(state["now"])

    def fresh(self) -> Clipper:
        new = copy.copy(self)
        new.now = new.norm
        return new


@dataclass(frozen=True)
class Scheduled(Clipper):
    """A norm for every step."""

    norms: tuple[float, ...]

    def begin(self, step: int, info: RunInfo) -> Clipping:
        return Local(self.norms[step % len(self.norms)]).begin(step, info)


# The same in plain numbers.


def local(norm: float) -> Callable[[Known], oracle.Rule]:
    return lambda known: oracle.flat(known.names, norm)


def dropping(norm: float) -> Callable[[Known], oracle.Rule]:
    return lambda known: oracle.Rule([known.names], [norm], lambda norms: [1.0 if norms[0] <= norm else 0.0])


def normalising(length: float) -> Callable[[Known], oracle.Rule]:
    return lambda known: oracle.Rule([known.names], [length], lambda norms: [length / norms[0] if norms[0] else 0.0])


def shortened(norms: list[float], bounds: list[float]) -> list[float]:
    return [min(1.0, bound / norm) if norm else 1.0 for norm, bound in zip(norms, bounds, strict=True)]


def by_layer(first: float, more: float) -> Callable[[Known], oracle.Rule]:
    def rule(known: Known) -> oracle.Rule:
        layers = list(dict.fromkeys(name.rpartition(".")[0] for name in known.names))
        blocks = [[name for name in known.names if name.rpartition(".")[0] == layer] for layer in layers]
        bounds = [first + more * i for i in range(len(layers))]
        return oracle.Rule(blocks, bounds, lambda norms: shortened(norms, bounds))

    return rule


def by_pattern(biases: float, rest: float) -> Callable[[Known], oracle.Rule]:
    def rule(known: Known) -> oracle.Rule:
        ends = [name for name in known.names if name.endswith("bias")]
        blocks, bounds = [[name for name in known.names if name not in ends], ends], [rest, biases]
        return oracle.Rule(blocks, bounds, lambda norms: shortened(norms, bounds), noise_weights=bounds)

    return rule


def adaptive(norm: float) -> Callable[[Known], oracle.Rule]:
    def rule(known: Known) -> oracle.Rule:
        now = norm
        for seen in known.seen:
            share = 2 * seen["short"] / known.expected_batch
            now = min(2.0, max(0.1, now * math.exp(0.4 * (0.6 - share))))
        short = oracle.Count(lambda norms: 1.0 if norms[0] <= now else 0.0, bound=0.5, noise_weight=3.0)
        flat = oracle.flat(known.names, now)
        return oracle.Rule(flat.blocks, flat.bounds, flat.factors, counts={"short": short})

    return rule


def scheduled(*norms: float) -> Callable[[Known], oracle.Rule]:
    return lambda known: oracle.flat(known.names, norms[known.step % len(norms)])


TABLE = [
    Style("Local(1)", Local(1.0), local(1.0)),
    Style("Local(0.7)", Local(0.7), local(0.7)),
    Style("Local that never clips", Local(1e4), local(1e4), clips=False),
    Style("Local that always clips", Local(1e-3), local(1e-3), clips=False),
    Style("drop or keep", Dropping(1.0), dropping(1.0)),
    Style("normalising", Normalising(0.9), normalising(0.9)),
    Style("layer by layer", ByLayer(0.2, 0.35), by_layer(0.2, 0.35)),
    Style("by name pattern", ByPattern(biases=0.25, rest=0.8), by_pattern(biases=0.25, rest=0.8)),
    Style("adaptive", Adaptive(0.9), adaptive(0.9)),
    Style("by schedule", Scheduled((1.2, 0.6, 0.9)), scheduled(1.2, 0.6, 0.9)),
]
