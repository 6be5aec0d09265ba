"""Epsilon for the progress bar: an upper bound in microseconds, after every step."""

import math
from collections.abc import Iterable

from hoarfrost.budget import _rdp
from hoarfrost.budget.accountant import epsilon
from hoarfrost.budget.events import Event, Gaussian, gathered, mechanisms, noiseless
from hoarfrost.validate import probability, whole


class Readout:
    """What so many steps have cost, as a function of their number.

    Rényi divergences add up over steps, so those of one step are computed once. They overstate epsilon somewhat: near
    the end of a run that was planned for `planned` steps, the exact cost of the whole plan is the better bound.

    Args:
        noise_multiplier, sample_rate: of every step.
        delta: the probability with which epsilon may fail to hold.
        planned: how many steps will be taken, if that is known.
        before: releases made before the first step.

    Guarantees:
        An upper bound on the epsilon of so many steps and of `before` together. What the whole plan costs bounds what a
        part of it costs; beyond the plan only the divergences count.

    >>> so_far = Readout(noise_multiplier=1.54, sample_rate=0.02, delta=1e-5, planned=2000)
    >>> [round(so_far(steps), 2) for steps in (0, 1, 1000, 2000)]
    [0.0, 0.43, 2.08, 2.75]
    """

    def __init__(
        self,
        *,
        noise_multiplier: float,
        sample_rate: float,
        delta: float,
        planned: int | None = None,
        before: Event | Iterable[Event] = (),
    ) -> None:
        probability(delta=delta)
        step = Gaussian(noise_multiplier=noise_multiplier, sample_rate=sample_rate)
        others = gathered(before)
        first = mechanisms(others)
        self._start = 0.0 if not first else epsilon(others, delta, "rdp")
        self._noiseless = any(map(noiseless, first | mechanisms([step])))
        if not self._noiseless:
            self._before = _rdp.divergence(first)
            self._step = _rdp.divergence(mechanisms([step]))
            self._convert = _rdp.Conversion(delta)
        self._planned, self.total = 0, math.inf
        if planned is not None:
            whole(planned=planned)
            run = Gaussian(noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=planned)
            self._planned, self.total = planned, epsilon((run, *others), delta)

    def __call__(self, steps: int) -> float:
        """Epsilon after so many steps."""
        if steps <= 0:
            return min(self._start, self.total)
        if self._noiseless:
            return math.inf
        so_far = self._convert(self._before + steps * self._step)
        return min(so_far, self.total) if steps <= self._planned else so_far
