"""The configurations that audits try. A new clipper, freezer or optimizer is listed here, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product, starmap

from torch.optim import SGD, Adam, AdamW, RMSprop

from hoarfrost.audit.canaries import ByFreezer, Freezing, OneTensor
from hoarfrost.audit.harness import OptimizerFactory
from hoarfrost.audit.step_audit import StepAudit, step
from hoarfrost.clipping import Clipper, Local
from hoarfrost.freezing import Layers, Random, RandomTensors

CLIPPING: dict[str, Clipper] = {
    "local": Local(0.7),  # not 1: a missing factor would go unnoticed
}
FREEZING: dict[str, Freezing] = {
    freeze.name: freeze
    for freeze in (
        Freezing(),
        OneTensor(),
        ByFreezer(Layers(first=1, step=0), share=2 / 3),
        # The same mask in every step, so that neighbouring batches can be compared.
        ByFreezer(Random(rate=0.5, redraw="never"), share=0.4),
        ByFreezer(Random(rate=0.5, redraw="never", granularity="channel"), share=2 / 3),
        ByFreezer(Random(rate=0.3, redraw="never") & Layers(first=1, step=0), share=0.4),
        ByFreezer(RandomTensors(share=2 / 3), share=2 / 3),
    )
}
OPTIMIZERS: dict[str, OptimizerFactory] = {
    "SGD": partial(SGD, lr=0.1),
    "momentum": partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "Nesterov": partial(SGD, lr=0.1, momentum=0.9, nesterov=True),
    "RMSprop": partial(RMSprop, lr=0.01, momentum=0.5),
    "Adam": partial(Adam, lr=0.01),
    "AdamW": partial(AdamW, lr=0.01, weight_decay=0.1),
}


@dataclass(frozen=True)
class Configuration:
    """A clipping style, freezing and an optimizer, by their names in the tables above."""

    clip: str
    freeze: str
    optimizer: str

    def __str__(self) -> str:
        return f"{self.clip}, {self.freeze}, {self.optimizer}"

    def step(self, noise_multiplier: float = 1.0, canaries: int = 512, rounds: int = 100) -> StepAudit:
        """The step audit of this configuration."""
        return step(
            noise_multiplier=noise_multiplier, clip=CLIPPING[self.clip], freeze=FREEZING[self.freeze],
            optimizer=OPTIMIZERS[self.optimizer], canaries=canaries, rounds=rounds,
        )  # fmt: skip


def configurations() -> Iterator[Configuration]:
    """Every clipping style with every freezing and every optimizer.

    >>> print(next(configurations()))
    local, nothing frozen, SGD
    """
    return starmap(Configuration, product(CLIPPING, FREEZING, OPTIMIZERS))
