"""How clipping and noise turn and shorten the gradient of a batch."""

from __future__ import annotations

from hoarfrost.measure.gram import Gram
from hoarfrost.measure.measurement import Adding, Measurement, Row, live_only, scaled
from hoarfrost.observers import Released, Sums
from hoarfrost.registry import Whole, component

PAIRS = ("UB", "BP", "UP")


@component("measure", "distortion")
class Distortion(Measurement):
    """Signals of the step's batch, whole and for each layer: U as it is, B clipped, P with noise; their lengths, and
    the angles between them.

    All three are divided by the expected batch size, and are over live coordinates: what is frozen is in none of them.
    Angles are in radians. The angle γ^BP between clipped and noised gradient is never 0 on average, whatever is
    sometimes said: noise has a length.

    Args:
        every: it looks at every so many steps, beginning with the first.

    >>> distortion = Distortion(every=5)
    >>> distortion.looks(10), distortion.looks(11)
    (True, False)
    """

    kind = "distortion"

    def __init__(self, every: Whole = 10) -> None:
        super().__init__(every)
        self._unclipped = Adding()

    def on_sums(self, sums: Sums) -> None:
        self._unclipped.add(sums.unclipped())

    def on_release(self, released: Released) -> None:
        size = 1 / released.info.expected_batch
        gram = Gram.of(
            {
                "P": {name: t.float() for name, t in released.gradients.items()},  # first: it has every parameter
                "U": scaled(live_only(self._unclipped.take(), released), size),
                "B": scaled(live_only(released.clipped, released), size),
            }
        )
        self.found(released.step, **signals(gram), layers={name: signals(each) for name, each in gram.layers().items()})


def signals(gram: Gram) -> Row:
    """Lengths and angles of U, B and P."""
    return {
        "norms": {name: gram.norm(name) for name in "UBP"},
        "angles": {pair: gram.angle(*pair) for pair in PAIRS},
    }
