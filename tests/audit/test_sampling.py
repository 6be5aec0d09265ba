"""The sampling audit: other ways to draw batches are told from Poisson sampling, every time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hoarfrost import audit
from hoarfrost.audit import sampling_audit
from hoarfrost.errors import InvalidValue
from hoarfrost.sampling import Poisson

Draw = Callable[[Poisson, np.random.Generator, int], Any]


def shuffled(poisson: Poisson, random: np.random.Generator, step: int) -> Any:
    """Batches of one shuffled order, epoch after epoch."""
    per_epoch = round(1 / poisson.sample_rate)
    order = np.random.default_rng(step // per_epoch).permutation(poisson.size)
    return np.array_split(order, per_epoch)[step % per_epoch]


def of_fixed_size(poisson: Poisson, random: np.random.Generator, step: int) -> Any:
    return random.choice(poisson.size, round(poisson.expected_batch), replace=False)


def with_replacement(poisson: Poisson, random: np.random.Generator, step: int) -> Any:
    return random.integers(poisson.size, size=random.poisson(poisson.expected_batch))


def a_tenth_more(poisson: Poisson, random: np.random.Generator, step: int) -> Any:
    return np.flatnonzero(random.random(poisson.size) < 1.1 * poisson.sample_rate)


def favourites(poisson: Poisson, random: np.random.Generator, step: int) -> Any:
    rates = poisson.sample_rate * np.where(np.arange(poisson.size) % 2, 0.2, 1.8)
    return np.flatnonzero(random.random(poisson.size) < rates)


def in_blocks(poisson: Poisson, random: np.random.Generator, step: int) -> Any:
    blocks = np.flatnonzero(random.random(poisson.size // 10) < poisson.sample_rate)
    return (blocks[:, None] * 10 + np.arange(10)).ravel()


WRONG: dict[Draw, str] = {
    shuffled: "how often a record is drawn varies",
    of_fixed_size: "batch sizes vary 0 times",
    with_replacement: "more than once",
    a_tenth_more: "records are drawn at a rate of 0.0",
    favourites: "how often a record is drawn varies",
    in_blocks: "batch sizes vary",
}


@pytest.mark.parametrize("draw", WRONG, ids=lambda draw: draw.__name__)
def test_other_sampling_is_caught_every_time(draw: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(5):
        random, step = np.random.default_rng(seed), iter(range(10_000))
        monkeypatch.setattr(Poisson, "draw", lambda poisson, stream, r=random, s=step: draw(poisson, r, next(s)))
        assert WRONG[draw] in str(audit.sampling(sample_rate=0.02))


@pytest.mark.parametrize("rate", [0.004, 0.1, 0.5, 1.0])
def test_the_loader_draws_poisson_samples(rate: float) -> None:
    result = audit.sampling(sample_rate=rate)
    assert result.passed, result
    assert json.loads(json.dumps(result.as_dict(), allow_nan=False))["rate_measured"] == pytest.approx(rate, rel=0.2)


def test_a_record_left_out_is_seen_where_all_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Poisson, "draw", lambda poisson, stream: np.arange(poisson.size - 1))
    assert not audit.sampling(sample_rate=1.0, records=50, steps=5).passed


def test_alarms_are_as_rare_as_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a level that can be counted: three tests at 2 % each, where batches hold one record or two."""
    monkeypatch.setattr(sampling_audit, "ALPHA", 0.02)
    random = np.random.default_rng(0)
    drawn = [random.random((300, 300)) < 0.005 for _ in range(500)]
    alarms = [list(sampling_audit._faults(each.sum(1), each.sum(0), False, 0.005)) for each in drawn]
    assert 0.03 < sum(map(len, alarms)) / 500 < 0.09


def test_too_few_draws_are_refused() -> None:
    with pytest.raises(InvalidValue, match="at least 10000 of both"):
        audit.sampling(sample_rate=1e-4)
