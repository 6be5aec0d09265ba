"""Finding the dearest value that a budget still pays for, in few evaluations: each may take a second."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

Between = Callable[[float, float, float], float | None]


@dataclass
class Search:
    """Values lie on a logarithmic scale; `cost` grows from the cheapest to the dearest, which may be the smaller one."""

    cost: Callable[[float], float]
    budget: float
    cheapest: float
    dearest: float
    whole: bool = False
    _seen: list[tuple[float, float]] = field(default_factory=list)

    def from_guess(self, guess: float, between: Between) -> float | None:
        """The dearest value within the budget; None if even the cheapest is beyond it.

        `between(value, within, beyond)` moves a proposed value strictly between the two, or says None: near enough.
        """
        bracket = self._bracket(guess)
        if bracket is None:
            return None
        within, beyond = bracket
        while beyond is not None:
            # The secant converges in three or four turns; a bisection now and then, in case the cost has a kink.
            crossing = self._secant() if len(self._seen) % 4 else math.sqrt(within * beyond)
            value = between(crossing, within, beyond)
            if value is None:
                break
            if self._affordable(value):
                within = value
            else:
                beyond = value
        return within

    def _bracket(self, guess: float) -> tuple[float, float | None] | None:
        """A value within the budget and one beyond it; None in place of the latter if every value is within."""
        value, stretch = self._clamped(guess), 1.01
        within = beyond = None
        while True:
            if self._affordable(value):
                within = value
                if beyond is not None or value == self.dearest:
                    return within, beyond
                to_dearer = 1
            else:
                beyond = value
                if within is not None:
                    return within, beyond
                if value == self.cheapest:
                    return None
                to_dearer = -1
            cost = self._seen[-1][1]
            # Cost grows at least with the square root of the steps or the inverse of the noise: a leap by the squared
            # ratio lands beyond the budget's edge, mostly not far; and if it does not, the next one is longer.
            ratio = cost / self.budget if 0 < cost < math.inf else 2.0
            leap = min(max(ratio, 1 / ratio) ** 2, 1.5) * stretch
            stretch **= 2
            value = self._clamped(value * leap ** (to_dearer if self.dearest > self.cheapest else -to_dearer))

    def _affordable(self, value: float) -> bool:
        cost = self.cost(value)
        self._seen.append((value, cost))
        return cost <= self.budget

    def _secant(self) -> float:
        """Where the line through the last two evaluations, both scales logarithmic, meets the budget."""
        (x0, c0), (x1, c1) = self._seen[-2:]
        if not (0 < c0 < math.inf and 0 < c1 < math.inf and c0 != c1):
            return math.sqrt(x0 * x1)
        slope = math.log(x1 / x0) / math.log(c1 / c0)
        return x1 * math.exp(min(max(slope * math.log(self.budget / c1), -50), 50))

    def _clamped(self, value: float) -> float:
        value = min(max(value, min(self.cheapest, self.dearest)), max(self.cheapest, self.dearest))
        return round(value) if self.whole else value
