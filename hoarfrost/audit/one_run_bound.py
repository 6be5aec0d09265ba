"""A lower bound on epsilon from guesses about canaries, after Steinke, Nasr and Jagielski (2023).

An attack guesses for some of many canaries whether they were included, each by a fair coin flip. If training is
(ε, δ)-private, hardly more than a fraction e^ε/(1 + e^ε) of the guesses can be correct: more of them refute the ε.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy import special
from torch import Tensor

from hoarfrost import validate
from hoarfrost.audit.result import Audit
from hoarfrost.errors import InvalidValue


def lower_bound(correct: int, *, guesses: int, canaries: int, delta: float, confidence: float = 0.95) -> float:
    """The largest ε that so many correct guesses refute; 0 if they refute none.

    With r guesses of which v are correct, m canaries, p = e^ε/(1 + e^ε) and B ~ Binomial(r, p), an attack on
    (ε, δ)-private training has so many correct guesses with probability at most β + 2mδα, where β = P[B ≥ v] and α is
    the largest of P[v > B ≥ v − i]/i over 1 ≤ i ≤ v. The ε is refuted where this is below 1 − confidence.

    Args:
        correct: v.
        guesses: r, fixed before the coin flips were known.
        canaries: m, including those without a guess.
        delta: 0 for pure differential privacy.

    Guarantees:
        If training is (ε, δ)-private for adding or removing one example, the bound is above ε with probability at most
        1 − confidence, whatever the attack.

    >>> round(lower_bound(190, guesses=200, canaries=1000, delta=1e-5), 2)
    2.39
    >>> lower_bound(100, guesses=200, canaries=1000, delta=1e-5)
    0.0
    """
    check_counts(guesses, canaries, delta, confidence)
    if not 0 <= correct <= guesses:
        raise InvalidValue(f"correct must lie from 0 to the {guesses} guesses, got {correct}")
    if correct == 0:
        return 0.0
    i = np.arange(1, correct + 1)

    def refuted(epsilon: float) -> bool:
        p = special.expit(epsilon)
        tail = special.bdtrc(np.arange(-1, correct), guesses, p)  # P[B ≥ k] for k from 0 to v
        beta = tail[-1]
        alpha = ((tail[correct - i] - beta) / i).max()
        return bool(beta + 2 * canaries * delta * alpha < 1 - confidence)

    # Where the sum is below 1 - confidence it grows with ε, so that the refuted ones are an interval from 0: for
    # i ≥ 2mδ it is a mixture of P[B ≥ v] and P[B ≥ v - i]; for smaller i all of {v - i, ..., v} must then lie in B's
    # upper tail, where B's probabilities fall.
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def check_counts(guesses: int, canaries: int, delta: float, confidence: float) -> None:
    """Refuses impossible numbers of guesses and canaries, and bad values of delta and confidence."""
    validate.whole(guesses=guesses, canaries=canaries)
    validate.probability(confidence=confidence)
    if delta != 0:
        validate.probability(delta=delta)
    if guesses > canaries:
        raise InvalidValue(f"{guesses} guesses about {canaries} canaries: make at most one guess per canary")


def default_guesses(canaries: int) -> int:
    """How many guesses to make: one for every ten canaries, but at least 200 if there are as many canaries.

    The extreme scores are the most certain, so a larger fraction of few guesses is correct; many guesses depend less on
    chance. For Gaussian scores at ε from 1 to 8, and for losses of small models, a tenth to a fifth of the canaries is
    near the best. And 200 correct guesses of 200 give a lower bound of about 4, which fewer could not.

    >>> default_guesses(50), default_guesses(1000), default_guesses(10_000)
    (50, 200, 1000)
    """
    return min(canaries, max(200, canaries // 10))


@dataclass(frozen=True, kw_only=True)
class OneRunAudit(Audit):
    """How many guesses were correct, and the lower bound on epsilon that follows.

    No alarm proves little: the bound may be low because the attack is weak.

    >>> print(OneRunAudit.of_counts(190, guesses=200, canaries=1000, epsilon_claimed=1.0, delta=1e-5))
    1000 canaries, 200 guesses, 190 of them correct (95.0 %)
    lower bound on epsilon: 2.39 at delta 1e-05, with 95 % confidence; claimed: 1
    ALARM: training leaks more than claimed (a correct training alarms in at most 5 % of audits)
    """

    kind: ClassVar[str] = "one run"

    canaries: int
    guesses: int
    correct: int
    epsilon_lower: float
    epsilon_lower_max: float  # `epsilon_lower` if every guess were correct: a claim of this or more is never refuted
    epsilon_claimed: float  # of this training; infinite without noise
    delta: float
    confidence: float
    seeded: bool

    @classmethod
    def of(
        cls,
        scores: Tensor,
        included: Tensor,
        *,
        epsilon_claimed: float,
        delta: float,
        guesses: int | None = None,
        confidence: float = 0.95,
        seeded: bool = False,
    ) -> OneRunAudit:
        """Guesses from scores: half of the guesses are "included", for the highest, half "left out", for the lowest.

        Args:
            scores: one for each canary [m], higher if it looks trained on; computed from the trained model by a rule
                that was fixed beforehand.
            included: whether the canary was trained on [m], by a fair coin flip of its own.
            guesses: by default `default_guesses`. Trying several and keeping the best bound makes the confidence false;
                to compare k of them, raise it to 1 − (1 − confidence)/k.

        Guarantees:
            The coin flips are read after all guesses are made.

        >>> included = torch.rand(1000) < 0.5
        >>> OneRunAudit.of(included + 0.01 * torch.randn(1000), included, epsilon_claimed=1.0, delta=1e-5).correct
        200
        """
        if scores.shape != included.shape or scores.dim() != 1 or included.dtype != torch.bool:
            raise InvalidValue(
                "scores and included must be two tensors [canaries], the latter of bools; got shapes "
                f"{tuple(scores.shape)} and {tuple(included.shape)} of {included.dtype}"
            )
        canaries = len(scores)
        number = default_guesses(canaries) if guesses is None else guesses
        check_counts(number, canaries, delta, confidence)
        # If losses overflow, guesses are arbitrary, which is as valid as any other attack.
        order = scores.nan_to_num().argsort(stable=True)
        left_out, kept = order[: number // 2], order[canaries - (number - number // 2) :]
        correct = int((~included[left_out]).sum()) + int(included[kept].sum())
        return cls.of_counts(
            correct,
            guesses=number,
            canaries=canaries,
            epsilon_claimed=epsilon_claimed,
            delta=delta,
            confidence=confidence,
            seeded=seeded,
        )

    @classmethod
    def of_counts(
        cls,
        correct: int,
        *,
        guesses: int,
        canaries: int,
        epsilon_claimed: float,
        delta: float,
        confidence: float = 0.95,
        seeded: bool = False,
    ) -> OneRunAudit:
        """The audit with so many correct guesses; see `lower_bound`."""
        validate.not_negative(epsilon_claimed=epsilon_claimed)
        lower, highest = (
            lower_bound(each, guesses=guesses, canaries=canaries, delta=delta, confidence=confidence)
            for each in (correct, guesses)
        )
        alarm = (
            "training leaks more than claimed "
            f"(a correct training alarms in at most {100 * (1 - confidence):.3g} % of audits)"
        )
        return cls(
            canaries=canaries, guesses=guesses, correct=correct, epsilon_lower=lower, epsilon_lower_max=highest,
            epsilon_claimed=epsilon_claimed, delta=delta, confidence=confidence, seeded=seeded,
            alarms=(alarm,) if lower > epsilon_claimed else (),
        )  # fmt: skip

    def figures(self) -> tuple[str, ...]:
        """The counts, and the bound, which is rounded down."""
        claimed = "nothing (not private)" if math.isinf(self.epsilon_claimed) else f"{self.epsilon_claimed:.4g}"
        out = [
            f"{self.canaries} canaries, {self.guesses} guesses, {self.correct} of them correct "
            f"({100 * self.correct / self.guesses:.1f} %)",
            f"lower bound on epsilon: {_down(self.epsilon_lower)} at delta {self.delta:g}, "
            f"with {100 * self.confidence:g} % confidence; claimed: {claimed}",
        ]
        if self.epsilon_lower_max <= self.epsilon_claimed < math.inf:
            out.append(
                "this audit could not have alarmed: with all guesses correct the lower bound is "
                f"{_down(self.epsilon_lower_max)}; use more canaries and guesses"
            )
        if self.seeded:
            out.append("seeded: repeating the audit repeats the coin flips and adds no evidence")
        return tuple(out)


def _down(epsilon: float) -> str:
    return f"{math.floor(100 * epsilon) / 100:.2f}"
