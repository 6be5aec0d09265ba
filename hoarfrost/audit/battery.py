"""The configurations that audits try: the examples with which components are registered, in every combination."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from hoarfrost.audit.canaries import ByFreezer, Freezing, OneTensor
from hoarfrost.audit.harness import OptimizerFactory
from hoarfrost.audit.step_audit import StepAudit, step
from hoarfrost.clipping import Clipper
from hoarfrost.freezing import Layers, Random
from hoarfrost.registry import loaded


def clipping() -> dict[str, Clipper]:
    """The clipping styles, by name.

    >>> clipping()["local"]
    Local(norm=0.7)
    """
    found: dict[str, Clipper] = {}
    for kind, style in loaded("clip").items():
        examples = list(style.examples())
        found |= {kind if len(examples) == 1 else str(each): each for each in examples}
    return found


def freezing() -> dict[str, Freezing]:
    """The ways to freeze, by name: the freezers, two of them at once, and what has nothing to do with freezers."""
    pairs = [pair for freezer in loaded("freeze").values() for pair in freezer.examples()]
    pairs.append((Random(rate=0.3, redraw="never") & Layers(first=1, step=0), 0.4))
    ways = (Freezing(), OneTensor(), *(ByFreezer(freezer, share=share) for freezer, share in pairs))
    return {way.name: way for way in ways}


def optimizers() -> dict[str, OptimizerFactory]:
    """The optimizers, by name."""
    found: dict[str, OptimizerFactory] = {}
    for optimizer in loaded("optimizer").values():
        assert optimizer.target is not None  # it is loaded
        found |= {name: partial(optimizer.target, **keys) for name, keys in optimizer.examples()}
    return found


@dataclass(frozen=True)
class Configuration:
    """A clipping style, a way to freeze and an optimizer, by their names."""

    clip: str
    freeze: str
    optimizer: str

    def __str__(self) -> str:
        return f"{self.clip}, {self.freeze}, {self.optimizer}"

    def step(self, noise_multiplier: float = 1.0, canaries: int = 512, rounds: int = 100) -> StepAudit:
        """The step audit of this configuration."""
        return step(
            noise_multiplier=noise_multiplier, clip=clipping()[self.clip], freeze=freezing()[self.freeze],
            optimizer=optimizers()[self.optimizer], canaries=canaries, rounds=rounds,
        )  # fmt: skip


def configurations() -> Iterator[Configuration]:
    """Every clipping style with every freezing and with every optimizer, and each of these with every other.

    All combinations of local clipping. Of any other style each freezing with one of the optimizers in turn: all
    combinations of three would be hundreds.

    >>> "local, nothing frozen, SGD" in map(str, configurations())
    True
    """
    ways, movers = list(freezing()), list(optimizers())
    for number, style in enumerate(clipping()):
        for f, way in enumerate(ways):
            for o, mover in enumerate(movers):
                if style == "local" or f == o == 0 or (number + f + o) % len(movers) == 0:
                    yield Configuration(style, way, mover)
