"""The sampling audit: are batches Poisson samples at the accounted sampling rate?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import binom, gamma

from hoarfrost import validate
from hoarfrost.audit.canaries import Examples
from hoarfrost.audit.result import ALPHA, Audit
from hoarfrost.errors import InvalidValue
from hoarfrost.sampling import PoissonLoader

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SamplingAudit(Audit):
    """How often records were drawn, compared with Poisson sampling."""

    kind: ClassVar[str] = "sampling"

    sample_rate: float
    records: int
    steps: int
    rate_measured: float
    batch_variance_ratio: float  # variance of the batch size, over that of Poisson sampling
    record_variance_ratio: float  # the same for how often each record was drawn
    unit: str = "one example"  # what a record is

    def figures(self) -> tuple[str, ...]:
        return (
            f"sampling audit: {self.steps} batches from {self.records} records, each {self.unit}",
            f"sampling rate {self.sample_rate:.6g} claimed, {self.rate_measured:.6g} measured",
            f"variance over that of Poisson sampling: {self.batch_variance_ratio:.3f} for batch sizes, "
            f"{self.record_variance_ratio:.3f} for how often a record is drawn",
        )


def sampling(
    *,
    sample_rate: float,
    records: int = 1000,
    steps: int = 500,
    per_person: int | None = None,
    seed: int | None = None,
) -> SamplingAudit:
    """Draws batches from the real loader and compares them with Poisson sampling.

    Batches of a fixed size have no variance; in batches from a shuffled data set all records are drawn equally often;
    a wrong rate shows in the mean.

    Args:
        sample_rate: q, the accounted one.
        records, steps: how many records there are, and how many batches are drawn.
        per_person: records are people with several rows, of whom each brings so many at most, as in `make_private`.
        seed: repeats the batches, for experiments.

    Guarantees:
        Correct sampling raises an alarm with probability of about 3e-6. A pass says that rate, batch sizes and the
        number of times that a record is drawn agree with Poisson sampling, as far as so many draws can tell; at the
        default sizes and q = 0.1 a rate that is 3 % off is detected. Dependence that changes none of these is not.

    >>> sampling(sample_rate=0.1, records=200, steps=100, seed=1).passed
    True
    """
    validate.rate(sample_rate=sample_rate)
    validate.whole(records=records, steps=steps)
    if min(records, steps) * sample_rate < 1:
        raise InvalidValue(
            f"{records} records and {steps} steps are too few at sampling rate {sample_rate:g}: "
            f"give at least {math.ceil(1 / sample_rate)} of both"
        )
    own = np.ones(records, np.int64) if per_person is None else np.arange(records) % (2 * per_person) + 1
    owner = np.repeat(np.arange(records), own)  # of each row
    loader = PoissonLoader(
        Examples(torch.arange(len(owner))).loader(), sample_rate=sample_rate, steps=steps, seed=seed,
        person=None if per_person is None else owner, per_person=per_person,
    )  # fmt: skip
    sizes: list[int] = []
    drawn = np.zeros(records, np.int64)
    repeated = unlike = False
    while loader.steps_drawn < steps:
        for batch in loader:
            rows = np.bincount(batch.numpy(), minlength=len(owner))
            repeated |= bool(rows.max() > 1)
            brought = np.bincount(owner, weights=rows, minlength=records)
            there = brought > 0
            unlike |= bool((brought[there] != np.minimum(own, per_person or 1)[there]).any())
            sizes.append(int(there.sum()))
            drawn += there
    batch_sizes = np.array(sizes)
    alarms = [*_faults(batch_sizes, drawn, repeated, sample_rate)]
    if unlike and not repeated:
        alarms.append(f"a person brings another number of rows than all they have, or {per_person} of them")
    return SamplingAudit(
        alarms=tuple(alarms), unit=loader.unit,
        sample_rate=sample_rate, records=records, steps=steps, rate_measured=float(drawn.sum() / (records * steps)),
        batch_variance_ratio=_variance_ratio(batch_sizes, records, sample_rate),
        record_variance_ratio=_variance_ratio(drawn, steps, sample_rate),
    )  # fmt: skip


def sufficient_size(sample_rate: float) -> int:
    """How many records, and steps, `sampling` needs at this rate."""
    return max(1000, math.ceil(5 / sample_rate))


def _faults(sizes: Counts, drawn: Counts, repeated: bool, rate: float) -> Iterator[str]:
    steps, records = len(sizes), len(drawn)
    if repeated:
        yield "a batch holds a record more than once"
    total, trials = int(sizes.sum()), steps * records
    p = 2 * min(binom.cdf(total, trials, rate), binom.sf(total - 1, trials, rate))
    if p < ALPHA:
        yield f"records are drawn at a rate of {total / trials:.6g}, not {rate:.6g} (p = {p:.1g})"
    for what, sums, among in (
        ("batch sizes vary", sizes, records),
        ("how often a record is drawn varies", drawn, steps),
    ):
        p = _variance_p_value(sums, among, rate)
        if p < ALPHA:
            yield f"{what} {_variance_ratio(sums, among, rate):.3g} times as much as in Poisson sampling (p = {p:.1g})"


def _variance_ratio(sums: Counts, trials: int, rate: float) -> float:
    """Variance about the stated mean, over that of a binomial distribution; 1 where both are 0."""
    variance = trials * rate * (1 - rate)
    measured = float(np.square(sums - trials * rate).mean())
    return measured / variance if variance else 1.0 if measured == 0 else np.inf


def _variance_p_value(sums: Counts, trials: int, rate: float) -> float:
    """Two-sided p-value, from a gamma distribution with the statistic's mean and variance.

    It is a chi-square where the sums are nearly Gaussian; small sums have heavier tails, by their fourth cumulant.
    """
    variance = trials * rate * (1 - rate)
    if variance == 0:
        return float((sums == trials).all())
    scale = 2 + (1 - 6 * rate * (1 - rate)) / variance
    value, shape = _variance_ratio(sums, trials, rate) * len(sums), len(sums) / scale
    return 2 * float(min(gamma.cdf(value, shape, scale=scale), gamma.sf(value, shape, scale=scale)))
