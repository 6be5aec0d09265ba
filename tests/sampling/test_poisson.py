"""Poisson sampling, tested as a distribution: each test of it must also notice a sampler that is slightly wrong."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from hoarfrost import budget
from hoarfrost.epochs import first_step, rate_of, steps_in
from hoarfrost.errors import InvalidValue, NotPrivate
from hoarfrost.noise import Keystream
from hoarfrost.private import assemble
from hoarfrost.sampling import Poisson, PoissonLoader

STEPS, SIZE, RATE = 500, 1000, 0.05


def inclusions(sampling: Poisson, seed: int, steps: int = STEPS) -> np.ndarray:
    """[steps, size] of 0 and 1."""
    stream = Keystream("test", seed=seed)
    included = np.zeros((steps, sampling.size), dtype=np.int64)
    for step in range(steps):
        included[step, sampling.draw(stream)] = 1
    return included


def p_record_counts(included: np.ndarray, q: float) -> float:
    """Each record's count over the steps is Binomial(steps, q): chi-square, two-sided."""
    steps, size = included.shape
    counts = included.sum(0)
    score = ((counts - steps * q) ** 2 / (steps * q * (1 - q))).sum()
    return 2 * min(stats.chi2.cdf(score, size), stats.chi2.sf(score, size))


def p_batch_sizes(included: np.ndarray, q: float) -> float:
    """Batch sizes are Binomial(size, q): chi-square against its bins, plus mean and variance."""
    steps, size = included.shape
    sizes = included.sum(1)
    law = stats.binom(size, q)
    edges = np.unique(law.ppf(np.linspace(0, 1, 11)[1:-1]))
    expected = np.diff(np.concatenate(([0], law.cdf(edges), [1]))) * steps
    observed = np.bincount(np.searchsorted(edges, sizes), minlength=len(expected))
    shape = stats.chisquare(observed, expected).pvalue
    mean = 2 * stats.norm.sf(abs(sizes.mean() - law.mean()) / (law.std() / steps**0.5))
    spread = ((sizes - law.mean()) ** 2).sum() / law.var()
    variance = 2 * min(stats.chi2.cdf(spread, steps), stats.chi2.sf(spread, steps))
    return min(1, 3 * min(shape, mean, variance))


def p_independent_steps(included: np.ndarray, q: float) -> float:
    """How many records two neighbouring batches share is a sum of Bernoulli(q²)."""
    steps, size = included.shape
    shared = int((included[:-1] * included[1:]).sum())
    pairs = (steps - 1) * size
    # Neighbouring pairs of steps have a step in common, which widens the variance.
    variance = pairs * q**2 * (1 - q**2) + 2 * (steps - 2) * size * q**3 * (1 - q)
    return 2 * stats.norm.sf(abs(shared - pairs * q**2) / variance**0.5)


TESTS = {
    "record counts": p_record_counts,
    "batch sizes": p_batch_sizes,
    "independent steps": p_independent_steps,
}


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("seed", range(4))
def test_batches_are_poisson(test, seed):
    assert TESTS[test](inclusions(Poisson(sample_rate=RATE, size=SIZE), seed), RATE) > 1e-3


def test_batches_without_a_seed_are_poisson():
    stream = Keystream("test")
    sampling = Poisson(sample_rate=RATE, size=SIZE)
    included = np.zeros((STEPS, SIZE), dtype=np.int64)
    for step in range(STEPS):
        included[step, sampling.draw(stream)] = 1
    assert min(test(included, RATE) for test in TESTS.values()) > 1e-7


def shuffled_fixed_batches() -> np.ndarray:
    included = np.zeros((STEPS, SIZE), dtype=np.int64)
    random, batch = np.random.default_rng(0), round(SIZE * RATE)
    for epoch in np.split(included, STEPS * batch // SIZE):
        for row, chosen in zip(epoch, np.split(random.permutation(SIZE), SIZE // batch), strict=True):
            row[chosen] = 1
    return included


def fixed_size_draws() -> np.ndarray:
    included = np.zeros((STEPS, SIZE), dtype=np.int64)
    random = np.random.default_rng(0)
    for row in included:
        row[random.choice(SIZE, round(SIZE * RATE), replace=False)] = 1
    return included


def some_records_twice_as_often() -> np.ndarray:
    rates = np.full(SIZE, RATE)
    rates[:50], rates[50:100] = 2 * RATE, 0
    return (np.random.default_rng(0).random((STEPS, SIZE)) < rates).astype(np.int64)


def every_batch_twice() -> np.ndarray:
    return inclusions(Poisson(sample_rate=RATE, size=SIZE), 0, STEPS // 2).repeat(2, axis=0)


@pytest.mark.parametrize(
    ("faulty", "noticed_by"),
    [
        (shuffled_fixed_batches, {"record counts", "batch sizes", "independent steps"}),
        (fixed_size_draws, {"batch sizes"}),
        (lambda: inclusions(Poisson(sample_rate=RATE * 1.1, size=SIZE), 0), {"record counts", "batch sizes"}),
        (some_records_twice_as_often, {"record counts"}),
        (every_batch_twice, {"independent steps", "record counts"}),
    ],
    ids=["shuffled fixed batches", "fixed size", "q x 1.1", "unequal records", "repeated batches"],
)
def test_a_sampler_that_is_not_poisson_would_be_noticed(faulty, noticed_by):
    included = faulty()
    assert {name for name, test in TESTS.items() if test(included, RATE) < 1e-6} >= noticed_by


def test_pairs_of_records_are_independent():
    included = inclusions(Poisson(sample_rate=0.3, size=40), 1, steps=4000)
    correlations = np.corrcoef(included.T)[np.triu_indices(40, 1)]
    assert np.abs(correlations).max() < 4.8 / 4000**0.5


def test_a_rate_of_one_takes_everybody():
    assert Poisson(sample_rate=1.0, size=7).draw(Keystream("test")).tolist() == list(range(7))
    assert Poisson(sample_rate=1, size=7).draw(Keystream("test")).tolist() == list(range(7))


def test_a_tiny_rate_gives_mostly_empty_batches():
    sizes = inclusions(Poisson(sample_rate=1e-4, size=1000), 2, steps=2000).sum(1)
    assert stats.binomtest(int((sizes == 0).sum()), 2000, (1 - 1e-4) ** 1000).pvalue > 1e-3


@pytest.mark.parametrize("rate", [1e-30, 2.0**-70])
def test_a_rate_below_the_resolution_never_takes_more_than_was_accounted_for(rate):
    assert len(Poisson(sample_rate=rate, size=100_000).draw(Keystream("test"))) == 0


def test_a_rate_just_below_one_is_not_taken_for_one():
    rate = 1 - 2.0**-53
    assert len(Poisson(sample_rate=rate, size=100_000).draw(Keystream("test"))) == 100_000


class Fixed(Keystream):
    """A stream whose words are given."""

    def __init__(self, words: list[int]) -> None:
        super().__init__("test")
        self.words = np.array(words, dtype="<u8").tobytes()

    def read(self, size: int, draw: int, chunk: int) -> bytearray:
        return bytearray(self.words[:size])


def test_inclusion_is_the_exact_comparison_with_q():
    exact = int(Fraction(0.3) * 2**64)
    stream = Fixed([0, exact - 1, exact, 2**64 - 1])
    assert Poisson(sample_rate=0.3, size=4).draw(stream).tolist() == [0, 1]


@pytest.mark.parametrize("size", [1, 65_535, 65_536, 65_537, 200_000])
def test_every_record_can_be_drawn_whatever_the_size(size):
    drawn = Poisson(sample_rate=0.5, size=size).draw(Keystream("test", seed=1))
    assert drawn.dtype == np.int64
    assert (np.diff(drawn) > 0).all()
    assert stats.binomtest(len(drawn), size, 0.5).pvalue > 1e-3
    both_ends = [Poisson(sample_rate=0.5, size=size).draw(Keystream("test", seed=s)) for s in range(20)]
    assert any(0 in d for d in both_ends)
    assert any(size - 1 in d for d in both_ends)


def test_a_draw_takes_the_streams_next_number_even_when_it_needs_no_bits():
    stream = Keystream("test")
    Poisson(sample_rate=1.0, size=3).draw(stream)
    Poisson(sample_rate=0.5, size=3).draw(stream)
    assert stream.draws == 2


def test_the_expected_batch_is_a_real_number():
    assert Poisson(sample_rate=0.1, size=99).expected_batch == pytest.approx(9.9)
    assert Poisson(sample_rate=rate_of(99, 10, None), size=99).expected_batch == pytest.approx(10)
    assert rate_of(99, 9.9, None) == pytest.approx(0.1)


@pytest.mark.parametrize("rate", [1.0, 0.7, 2 / 3, 0.3, 0.1, 256 / 60_000, 1e-3])
@pytest.mark.parametrize("epochs", [1, 3, 60, 1000])
def test_the_lengths_of_epochs_add_up(rate, epochs):
    lengths = [first_step(e + 1, rate) - first_step(e, rate) for e in range(epochs)]
    assert 0 <= sum(lengths) - steps_in(epochs, rate) <= 1
    assert -1e-6 <= sum(lengths) - epochs / rate < 1
    assert min(lengths) >= 1
    assert max(lengths) - min(lengths) <= 1
    assert lengths[0] == max(lengths)


def test_a_run_does_not_account_for_another_rate_than_the_sampler_s():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = PoissonLoader(torch.utils.data.TensorDataset(torch.zeros(99, 2)), batch_size=10)
    plan = budget.Plan(size=99, sample_rate=0.1, noise_multiplier=1.5, delta=1e-5)
    with pytest.raises(NotPrivate, match=r"the plan accounts for 0\.1"):
        assemble(model, optimizer, loader, plan)
    private = assemble(model, optimizer, loader, replace(plan, sample_rate=10 / 99))
    assert private.plan.event(20) == budget.Gaussian(noise_multiplier=1.5, sample_rate=10 / 99, steps=20)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Poisson(sample_rate=0.0, size=10), "sample_rate"),
        (lambda: Poisson(sample_rate=1.1, size=10), "sample_rate"),
        (lambda: Poisson(sample_rate=float("nan"), size=10), "sample_rate"),
        (lambda: Poisson(sample_rate=0.1, size=0), "size"),
        (lambda: Poisson(sample_rate=0.1, size=10.0), "size"),
        (lambda: rate_of(10, 0, None), "batch_size"),
        (lambda: rate_of(10, 11, None), "at most 10"),
    ],
)
def test_impossible_settings_are_refused(make, message):
    with pytest.raises(InvalidValue, match=message):
        make()


def test_settings_cannot_be_changed_afterwards():
    with pytest.raises(AttributeError):
        Poisson(sample_rate=0.1, size=10).sample_rate = 0.2
