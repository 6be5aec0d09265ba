"""From guesses to a lower bound on epsilon, after Steinke, Nasr and Jagielski (2023).

Somebody guesses, for some of many fair coins, which way they fell. If all that is known of the coins comes from a
training that is (ε, δ)-private, hardly more than a share e^ε/(1 + e^ε) of these guesses can be right: more right ones
than that refute the ε.
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


def lower_bound(right: int, *, guesses: int, canaries: int, delta: float, confidence: float = 0.95) -> float:
    """The largest ε that so many right guesses refute; 0 if they refute none.

    With r guesses of which v are right, m canaries, p = e^ε/(1 + e^ε) and B ~ Binomial(r, p), (ε, δ)-private training
    lets a guesser be so lucky with a probability of at most β + 2mδα, where β = P[B ≥ v] and α is the largest of
    P[v > B ≥ v − i]/i over 1 ≤ i ≤ v. The ε is refuted where this is below 1 − confidence.

    Args:
        right: v, of the guesses that were made.
        guesses: r, a number that was fixed before the coins were known.
        canaries: m, those that the guesser abstained from included.
        delta: 0 for pure differential privacy.

    Guarantees:
        Of trainings that are (ε, δ)-private for adding or removing one example, at most a share 1 − confidence gets a
        bound above ε, whatever the guesser did.

    >>> round(lower_bound(190, guesses=200, canaries=1000, delta=1e-5), 2)
    2.39
    >>> lower_bound(100, guesses=200, canaries=1000, delta=1e-5)
    0.0
    """
    check_counts(guesses, canaries, delta, confidence)
    if not 0 <= right <= guesses:
        raise InvalidValue(f"right must lie from 0 to the {guesses} guesses, got {right}")
    if right == 0:
        return 0.0
    back = np.arange(1, right + 1)  # i

    def refuted(epsilon: float) -> bool:
        p = special.expit(epsilon)
        at_least = special.bdtrc(np.arange(-1, right), guesses, p)  # P[B ≥ k] for k from 0 to v
        luck = at_least[-1]
        near = (at_least[right - back] - luck) / back
        return bool(luck + 2 * canaries * delta * near.max() < 1 - confidence)

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
    """So many guesses can be made about so many canaries, and judged."""
    validate.whole(guesses=guesses, canaries=canaries)
    validate.probability(confidence=confidence)
    if delta != 0:
        validate.probability(delta=delta)
    if guesses > canaries:
        raise InvalidValue(f"{guesses} guesses about {canaries} canaries: at most one is made about each")


def default_guesses(canaries: int) -> int:
    """How many guesses to make about so many canaries: a tenth, but 200 if there are as many.

    The guesser is surest of the extremes, so few guesses are right more often; many guesses leave less to luck. For
    Gaussian scores at ε from 1 to 8, and for losses of small models, a tenth to a fifth is near the best. And 200 right
    guesses of 200 show an ε of about 4, which fewer could not.

    >>> default_guesses(50), default_guesses(1000), default_guesses(10_000)
    (50, 200, 1000)
    """
    return min(canaries, max(200, canaries // 10))


@dataclass(frozen=True, kw_only=True)
class OneRunAudit(Audit):
    """What the guesser achieved, and what it says about the claim.

    No alarm proves little: the bound may be low because the guesser is weak.

    >>> print(OneRunAudit.of_counts(190, guesses=200, canaries=1000, claimed=1.0, delta=1e-5))
    1000 canaries, 200 guesses, 190 of them right (95.0 %)
    epsilon is at least 2.39 at delta 1e-05, with 95 % confidence; claimed: 1
    ALARM: training leaks more than it claims, or this is one of the 5 % of audits that may be that unlucky
    """

    kind: ClassVar[str] = "one run"

    canaries: int
    guesses: int
    right: int
    lower: float  # epsilon is at least this
    highest: float  # what `lower` would be had every guess been right: a claim from here on is never refuted
    claimed: float  # epsilon, of this very training; infinite without noise
    delta: float
    confidence: float
    seeded: bool

    @classmethod
    def of(
        cls,
        scores: Tensor,
        inside: Tensor,
        *,
        claimed: float,
        delta: float,
        guesses: int | None = None,
        confidence: float = 0.95,
        seeded: bool = False,
    ) -> OneRunAudit:
        """Guesses from scores: half of the guesses are "in", for the highest, and half are "out", for the lowest.

        Args:
            scores: a number for each canary [m], the higher the more it looks trained on; computed from the trained
                model by a rule that was fixed beforehand.
            inside: whether it was trained on [m], by a fair coin of its own.
            guesses: by default `default_guesses`. Trying several and keeping the best bound would make the confidence a
                lie; to compare k of them, raise it to 1 − (1 − confidence)/k.

        Guarantees:
            The coins are looked at after all guesses are made.

        >>> inside = torch.rand(1000) < 0.5
        >>> OneRunAudit.of(inside + 0.01 * torch.randn(1000), inside, claimed=1.0, delta=1e-5).right
        200
        """
        if scores.shape != inside.shape or scores.dim() != 1 or inside.dtype != torch.bool:
            raise InvalidValue(
                "scores and inside must be two tensors [canaries], the latter of bools; got shapes "
                f"{tuple(scores.shape)} and {tuple(inside.shape)} of {inside.dtype}"
            )
        canaries = len(scores)
        number = default_guesses(canaries) if guesses is None else guesses
        check_counts(number, canaries, delta, confidence)
        # A model whose losses overflow leaves arbitrary guesses, which are as valid as any other.
        order = scores.nan_to_num().argsort(stable=True)
        outs, ins = order[: number // 2], order[canaries - (number - number // 2) :]
        right = int((~inside[outs]).sum()) + int(inside[ins].sum())
        return cls.of_counts(
            right, guesses=number, canaries=canaries, claimed=claimed, delta=delta, confidence=confidence, seeded=seeded
        )

    @classmethod
    def of_counts(
        cls,
        right: int,
        *,
        guesses: int,
        canaries: int,
        claimed: float,
        delta: float,
        confidence: float = 0.95,
        seeded: bool = False,
    ) -> OneRunAudit:
        """The audit in which so many guesses were right; see `lower_bound`."""
        validate.not_negative(claimed=claimed)
        lower, highest = (
            lower_bound(each, guesses=guesses, canaries=canaries, delta=delta, confidence=confidence)
            for each in (right, guesses)
        )
        alarm = (
            "training leaks more than it claims, or this is one of the "
            f"{100 * (1 - confidence):.3g} % of audits that may be that unlucky"
        )
        return cls(
            canaries=canaries, guesses=guesses, right=right, lower=lower, highest=highest, claimed=claimed, delta=delta,
            confidence=confidence, seeded=seeded, alarms=(alarm,) if lower > claimed else (),
        )  # fmt: skip

    def figures(self) -> tuple[str, ...]:
        """What was guessed and what it shows. The bound is rounded down."""
        claimed = "nothing (not private)" if math.isinf(self.claimed) else f"{self.claimed:.4g}"
        out = [
            f"{self.canaries} canaries, {self.guesses} guesses, {self.right} of them right "
            f"({100 * self.right / self.guesses:.1f} %)",
            f"epsilon is at least {_down(self.lower)} at delta {self.delta:g}, with {100 * self.confidence:g} % "
            f"confidence; claimed: {claimed}",
        ]
        if self.highest <= self.claimed < math.inf:
            out.append(
                f"this audit could not have alarmed: had all guesses been right, it would show {_down(self.highest)}; "
                "make more of them, about more canaries"
            )
        if self.seeded:
            out.append("seeded: the same coins fall again, so that repeating it adds no evidence")
        return tuple(out)


def _down(epsilon: float) -> str:
    return f"{math.floor(100 * epsilon) / 100:.2f}"
