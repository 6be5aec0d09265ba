"""The table of clipping styles. Adding a style to the library is adding one row.

Every row runs in `test_styles.py`, on losses that are scaled so that half of the examples' gradients are longer than 1.
Norms in the table are of that order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hoarfrost.clipping import (
    Adaptive,
    Automatic,
    Clipper,
    Clipping,
    FlatStyle,
    Global,
    Local,
    PerGroup,
    PerLayer,
    Schedule,
    Statistic,
)  # fmt: skip
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


# The styles in plain numbers, written without the library's.


def one_block(norm: float, factor: Callable[[float], float]) -> Callable[[Known], oracle.Rule]:
    return lambda known: oracle.Rule([known.names], [norm], lambda norms: [factor(norms[0])])


def shortened(norm: float) -> Callable[[float], float]:
    return lambda length: min(1.0, norm / length) if length else 1.0


def local(norm: float) -> Callable[[Known], oracle.Rule]:
    return one_block(norm, shortened(norm))


def kept_or_dropped(norm: float, edge: float = 0.05) -> Callable[[float], float]:
    """Whole up to the edge, nothing above the norm, in proportion between."""

    def factor(length: float) -> float:
        if length <= (1 - edge) * norm:
            return 1.0
        return 0.0 if length >= norm else (norm - length) / (edge * norm)

    return factor


def lengthened(norm: float, stability: float) -> Callable[[float], float]:
    return lambda length: norm / (length + stability) if length + stability else 0.0


def blockwise(
    blocks: Callable[[list[str]], list[list[str]]],
    bounds: Callable[[int], list[float]],
    factors: Callable[[float], Callable[[float], float]] | list[Callable[[float], float]],
    *,
    proportional: bool = False,
) -> Callable[[Known], oracle.Rule]:
    """Blocks that are clipped apart from each other."""

    def rule(known: Known) -> oracle.Rule:
        found = blocks(known.names)
        limits = bounds(len(found))
        each = factors[: len(found)] if isinstance(factors, list) else [factors(limit) for limit in limits]
        return oracle.Rule(
            found, limits, lambda norms: [factor(norm) for factor, norm in zip(each, norms, strict=True)],
            noise_weights=limits if proportional else [],
        )  # fmt: skip

    return rule


def by_layer(names: list[str]) -> list[list[str]]:
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    return [[name for name in names if name.rpartition(".")[0] == layer] for layer in layers]


def by_kind(names: list[str]) -> list[list[str]]:
    """Biases and the rest, if there are both."""
    biases = [name for name in names if name.endswith("bias")]
    return [found for found in ([name for name in names if name not in biases], biases) if found]


def fraction_below(norm: float) -> Callable[[float], float]:
    """1/2 far below the norm, -1/2 far above, in proportion from 0.95 to 1.05 of it; and a hundredth less than that."""
    return lambda length: 0.99 * max(-0.5, min(0.5, 0.5 - (length - 0.95 * norm) / (0.1 * norm)))


def followed(start: float, counts: list[float], batch: float, quantile: float, rate: float) -> float:
    """The norm after these noisy counts."""
    norm = start
    for count in counts:
        above = max(-1.0, min(1.0, count / 0.99 / batch + 0.5 - quantile))
        norm *= math.exp(-rate * above)
    return norm


def count_weight(cost: float, moves: float) -> float:
    """The noise weight with which a count of 1/2 takes that share of the privacy, beside blocks that move so much."""
    return 0.5 / (moves * math.sqrt(cost / (1 - cost)))


def adaptive(
    start: float, quantile: float, rate: float, cost: float, factor: Callable[[float], Callable[[float], float]]
) -> Callable[[Known], oracle.Rule]:
    def rule(known: Known) -> oracle.Rule:
        counts = [seen["count of all parameters"] for seen in known.seen]
        norm = followed(start, counts, known.expected_batch, quantile, rate)
        below = fraction_below(norm)
        count = oracle.Count(lambda norms: below(norms[0]), bound=0.5, noise_weight=count_weight(cost, norm))
        clip = factor(norm)
        return oracle.Rule(
            [known.names], [norm], lambda norms: [clip(norms[0])], counts={"count of all parameters": count}
        )

    return rule


def adaptive_layers(start: float, cost: float) -> Callable[[Known], oracle.Rule]:
    """A norm and a count for every layer."""

    def rule(known: Known) -> oracle.Rule:
        blocks = by_layer(known.names)
        names = [f"count of {block[0].rpartition('.')[0] or 'the model'}" for block in blocks]
        norms = [followed(start, [seen[name] for seen in known.seen], known.expected_batch, 0.5, 0.2) for name in names]
        moves = math.sqrt(sum(norm**2 for norm in norms))
        share = cost / len(blocks)
        weight = 0.5 / (moves * math.sqrt(share / (1 - cost)))
        counts = {
            name: oracle.Count(lambda found, at=at, norm=norm: fraction_below(norm)(found[at]), 0.5, weight)
            for at, (name, norm) in enumerate(zip(names, norms, strict=True))
        }
        return oracle.Rule(
            blocks, norms, lambda found: [shortened(n)(f) for n, f in zip(norms, found, strict=True)], counts=counts
        )

    return rule


def in_turn(*rules: Callable[[Known], oracle.Rule]) -> Callable[[Known], oracle.Rule]:
    """One rule after the other, a step each; the last one goes on."""
    return lambda known: rules[min(known.step, len(rules) - 1)](known)


def weights_and_biases(weights: FlatStyle, biases: FlatStyle, **options: Any) -> Clipper:
    """A group for biases, in models that have some."""

    class Either(PerGroup):
        def blocks(self, info: RunInfo) -> Any:
            found = {"rest": [n for n in info.shapes if not n.endswith("bias")]}
            found["biases"] = [n for n in info.shapes if n.endswith("bias")]
            styles = {"rest": weights, "biases": biases}
            return {key: (tuple(names), styles[key]) for key, names in found.items() if names}

    return Either({"*": weights}, **options)


@dataclass(frozen=True)
class Summing(Clipper):
    """Sums the norms, as a statistic that is larger than it may be: it is cut to its bound."""

    norm: float

    def begin(self, step: int, info: RunInfo) -> Clipping:
        length = Statistic("length", lambda norms: norms[:, 0], bound=0.5, noise_weight=3.0)
        return Clipping.flat(info.shapes, self.norm, Local(self.norm).factors, (length,))


def summing(norm: float) -> Callable[[Known], oracle.Rule]:
    length = oracle.Count(lambda norms: norms[0], bound=0.5, noise_weight=3.0)
    return lambda known: oracle.Rule(
        [known.names], [norm], lambda norms: [shortened(norm)(norms[0])], counts={"length": length}
    )


def every(*bounds: float) -> Callable[[int], list[float]]:
    """The bounds of so many blocks: the last one again and again."""
    return lambda number: [bounds[min(at, len(bounds) - 1)] for at in range(number)]


TABLE = [
    Style("Local(1)", Local(1.0), local(1.0)),
    Style("Local(0.7)", Local(0.7), local(0.7)),
    Style("Local that never clips", Local(1e4), local(1e4), clips=False),
    Style("Local that always clips", Local(1e-3), local(1e-3), clips=False),
    Style("Global(1)", Global(1.0), one_block(1.0, kept_or_dropped(1.0))),
    Style("Global, a wide edge", Global(1.3, edge=0.6), one_block(1.3, kept_or_dropped(1.3, 0.6))),
    Style("Global that drops all", Global(1e-3), one_block(1e-3, kept_or_dropped(1e-3)), clips=False),
    Style("Automatic(0.9)", Automatic(0.9), one_block(0.9, lengthened(0.9, 0.01))),
    Style("Automatic, half at 0.5", Automatic(1.0, 0.5), one_block(1.0, lengthened(1.0, 0.5))),
    Style("normalised", Automatic(0.9, stability=0), one_block(0.9, lengthened(0.9, 0.0))),
    Style("Adaptive", Adaptive(start=0.9, rate=0.4, cost=0.1), adaptive(0.9, 0.5, 0.4, 0.1, shortened)),
    Style(
        "Adaptive, global",
        Adaptive(quantile=0.7, start=1.1, rate=0.3, style="global", cost=0.05),
        adaptive(1.1, 0.7, 0.3, 0.05, kept_or_dropped),
    ),
    Style("a statistic that is cut", Summing(0.9), summing(0.9)),
    Style("PerLayer(Local)", PerLayer(Local(0.5)), blockwise(by_layer, every(0.5), shortened)),
    Style("PerLayer(Global)", PerLayer(Global(0.6)), blockwise(by_layer, every(0.6), kept_or_dropped)),
    Style(
        "PerLayer(Automatic)",
        PerLayer(Automatic(0.4, 0.1)),
        blockwise(by_layer, every(0.4), lambda norm: lengthened(norm, 0.1)),
    ),
    Style("PerLayer(Adaptive)", PerLayer(Adaptive(start=0.5, cost=0.2)), adaptive_layers(0.5, 0.2)),
    Style(
        "PerGroup, equal noise",
        weights_and_biases(Local(0.8), Global(0.25)),
        blockwise(by_kind, every(0.8, 0.25), [shortened(0.8), kept_or_dropped(0.25)]),
    ),
    Style(
        "PerGroup, proportional noise",
        weights_and_biases(Global(0.8), Local(0.25), noise="proportional"),
        blockwise(by_kind, every(0.8, 0.25), [kept_or_dropped(0.8), shortened(0.25)], proportional=True),
    ),
    Style(
        "Schedule",
        Schedule((0, Local(0.6)), (1, Global(1.2)), (2, PerLayer(Local(0.5))), by="step"),
        in_turn(
            local(0.6), one_block(1.2, kept_or_dropped(1.2)),
            blockwise(by_layer, every(0.5), shortened),
        ),
    ),
]  # fmt: skip
