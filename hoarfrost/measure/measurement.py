"""What the measurements of a run have in common: when they look, and where what they find goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torch import Tensor

from hoarfrost import validate
from hoarfrost.measure.gram import Vector
from hoarfrost.observers import Observer, Released

Row = dict[str, Any]
"""What was measured in one step: numbers, None for what has no value, and tables of these."""


class Measurement(Observer):
    """Looks at every so many steps, and makes a row of what it finds. What it finds is not private.

    Args:
        every: it looks at the first step, and at every ``every``-th from there on.

    Rows are kept in ``rows``, unless ``write`` is replaced by what takes them.

    Guarantees:
        It changes nothing in the step: the same seeded run with and without it ends in the same weights.
    """

    kind: ClassVar[str]

    def __init__(self, every: int) -> None:
        validate.whole(every=every)
        self.every = every
        self.rows: list[Row] = []
        self.write: Callable[[Row], None] = self.rows.append

    def looks(self, step: int) -> bool:
        return step % self.every == 0

    def found(self, step: int, **figures: Any) -> None:
        """Hands a row on."""
        self.write({"kind": self.kind, "step": step, **figures})


class Adding:
    """A sum over the passes of one step, which may come in chunks."""

    def __init__(self) -> None:
        self.total: dict[str, Tensor] = {}

    def add(self, part: Vector) -> None:
        """Adds what one pass brings."""
        for name, t in part.items():
            self.total[name] = self.total[name] + t if name in self.total else t.detach().clone()

    def take(self) -> dict[str, Tensor]:
        """The sum, once; it begins anew."""
        total, self.total = self.total, {}
        return total


def live_only(vector: Vector, released: Released) -> dict[str, Tensor]:
    """The vector with zeros at frozen coordinates, of the parameters that the step has gradients for.

    A freezer that masks after clipping has them in its sums.
    """
    result = {}
    for name in released.gradients:
        mask = released.masks.get(name, True)
        if name in vector and mask is not False:
            result[name] = vector[name] if mask is True else mask.zero_frozen_(vector[name].clone())
    return result


def scaled(vector: Mapping[str, Tensor], by: float) -> dict[str, Tensor]:
    """Every number of it times ``by``."""
    return {name: t * by for name, t in vector.items()}
