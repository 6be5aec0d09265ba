"""Finding the dearest value that a budget still pays for, in few evaluations: each may take a second."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Search:
    """`cost` grows from the cheapest value to the dearest, which may be the smaller one; values are above 0."""

    cost: Callable[[float], float]
    budget: float
    cheapest: float
    dearest: float
    tolerance: float
    whole: bool = False
    _seen: list[tuple[float, float]] = field(default_factory=list)

    def start(self, guess: float) -> float | None:
        """The dearest value within the budget, or one within the tolerance of it; None if the cheapest is beyond it."""
        bracket = self._bracket(guess)
        if bracket is None:
            return None
        within, beyond = bracket
        while (value := self._between(within, beyond)) is not None:
            if self._affordable(value):
                within = value
            else:
                beyond = value
        return within

    def _bracket(self, guess: float) -> tuple[float, float] | None:
        """A value within the budget and one beyond it; twice the dearest value if that is within."""
        up = 1 if self.dearest > self.cheapest else -1
        value, stretch = self._clamped(guess), 1.01
        within = beyond = None
        while within is None or beyond is None:
            if self._affordable(value):
                within, direction = value, up
                if value == self.dearest:
                    return value, value
            else:
                beyond, direction = value, -up
                if value == self.cheapest:
                    return None
            # Cost grows at least with the root of the steps or the inverse of the noise, so that a leap by the squared
            # ratio lands past the edge, mostly not far; if it does not, the next one is longer.
            cost = self._seen[-1][1]
            ratio = cost / self.budget if 0 < cost < math.inf else 2.0
            leap = min(max(ratio, 1 / ratio) ** 2, 1.5) * stretch
            stretch **= 2
            value = self._clamped(value * leap**direction)
        return within, beyond

    def _between(self, within: float, beyond: float) -> float | None:
        """A value strictly between the two, where the edge should be; None if they are near enough."""
        low, high = sorted((within, beyond))
        if high <= low * (1 + self.tolerance) or (self.whole and high - low <= 1):
            return None
        # The secant converges in three or four turns; a bisection now and then, in case the cost has a kink.
        value = self._secant() if len(self._seen) % 4 else math.sqrt(low * high)
        # Half a tolerance off the ends, so that a secant that has arrived closes the gap from the other side.
        value = min(max(value, low * (1 + self.tolerance / 2)), high / (1 + self.tolerance / 2))
        return min(max(round(value), low + 1), high - 1) if self.whole else value

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
