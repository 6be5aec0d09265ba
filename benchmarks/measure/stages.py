"""Signal loss and mean squared error without random freezing, less those with it, at three stages of a run.

At a stage the same examples are clipped with nothing frozen and with a random share frozen, at the same weights.
"""

import argparse
from dataclasses import replace
from typing import ClassVar

import torch

from benchmarks.measure.arms import DENSE, FASHION, SHORT, Rows, missing, trained
from hoarfrost.masks import PartialMask
from hoarfrost.measure import Frozen
from hoarfrost.measure.measurement import Row
from hoarfrost.observers import Released
from hoarfrost.registry import component
from hoarfrost.registry.types import Whole

RATES = (0.1, 0.3, 0.5, 0.7, 0.9)


@component("measure", "rates")
class Rates(Frozen):
    """`Frozen` for several rates of random freezing, none of which has a say in the run.

    Args:
        sample: the number of examples.
        every: it looks at every so many steps, from the end of the first such stretch on.
    """

    kind = "rates"
    rows_by_rate: ClassVar[list[Row]] = []

    def __init__(self, outside: object, sample: Whole = 256, every: Whole = 100) -> None:
        super().__init__(outside, sample, every)  # type: ignore[arg-type]

    def looks(self, step: int) -> bool:
        return (step + 1) % self.every == 0

    def on_release(self, released: Released) -> None:
        generator = torch.Generator().manual_seed(released.step)
        for rate in RATES:
            drawn = {n: torch.rand(shape, generator=generator) >= rate for n, shape in released.info.shapes.items()}
            masks: dict[str, bool | PartialMask] = {
                name: bool(mask.all()) if mask.all() or not mask.any() else PartialMask(mask)
                for name, mask in drawn.items()
            }
            self.rate = rate
            super().on_release(replace(released, masks=masks))

    def found(self, step: int, **figures: object) -> None:
        self.rows_by_rate.append({"stage": step + 1, "rate": self.rate, **figures})


def main(options: argparse.Namespace) -> None:
    """Trains without freezing, and looks three times on the way."""
    rows = Rows("stages", options)
    for arm, seed in missing(rows, ["Fashion-MNIST"], options):
        Rates.rows_by_rate.clear()
        every, sample = (1, 8) if options.quick else (100, 256)
        measure = f"measure=[{{kind='rates', every={every}, sample={sample}}}]"
        trained("stages", arm, seed, FASHION, (*SHORT, DENSE, measure), options)
        found = [
            {
                "stage": row["stage"], "rate": row["rate"],
                **{
                    f"{key}_without_less_with": row["unfrozen"][key] - row["frozen"][key]
                    for key in ("signal_loss", "mse")
                },
            }
            for row in Rates.rows_by_rate
        ]  # fmt: skip
        rows.add({"arm": arm, "seed": seed, "stages": found})
