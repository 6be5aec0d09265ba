"""The clipped sum of one logical batch, and the clipping that made it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from hoarfrost.clipping import Clipping
from hoarfrost.tickets import Ticket


@dataclass
class ClippedSum:
    """What one logical batch adds up to so far.

    Args:
        clipping: fixed before the first chunk. It states how far one example can have moved the sums.
        sums: by parameter name; what no example reached is missing.
        statistics: the sums of the clipping's statistics, by name, float64.
        last: the last chunk of the batch, once a backward pass has reached it.
    """

    clipping: Clipping
    sums: dict[str, Tensor] = field(default_factory=dict)
    statistics: dict[str, Tensor] = field(default_factory=dict)
    last: Ticket | None = None

    def add(self, name: str, clipped: Tensor) -> None:
        """Adds what a backward pass brought for one parameter."""
        self.sums[name] = self.sums[name].add_(clipped) if name in self.sums else clipped

    def count(self, norms: Tensor) -> None:
        """Adds the examples with these norms, [examples, blocks], to the statistics."""
        for statistic in self.clipping.statistics:
            total = statistic.total(norms)
            self.statistics[statistic.name] = self.statistics.get(statistic.name, 0.0) + total

    def drop(self) -> None:
        """Forgets what was summed; the batch can still be released, as nothing but noise."""
        self.sums, self.statistics = {}, {}
