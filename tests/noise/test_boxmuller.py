"""Words to Gaussian numbers: exact where it can be checked exactly."""

import numpy as np
import pytest
import torch
from scipy import stats

from hoarfrost.noise.boxmuller import WORD, box_muller


def normals(words: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty(words.numel(), dtype=dtype)
    box_muller(words, torch.empty_like(out[: len(out) // 2]), out)
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_extreme_word_gives_a_finite_number(dtype):
    limit = torch.iinfo(WORD[dtype])
    extremes = torch.tensor([0, -1, 1, -2, limit.min, limit.min + 1, limit.max, limit.max - 1], dtype=WORD[dtype])
    radii, angles = torch.cartesian_prod(extremes, extremes).unbind(1)
    assert normals(torch.cat((radii, angles)), dtype).isfinite().all()


@pytest.mark.parametrize(("dtype", "reach"), [(torch.float32, 6.66), (torch.float64, 9.42)])
def test_the_smallest_word_makes_the_longest_tail(dtype, reach):
    words = torch.tensor([0, -1, 0, 0], dtype=WORD[dtype])
    assert normals(words, dtype)[:2].tolist() == pytest.approx([reach, reach], abs=0.005)


def test_the_radius_is_never_that_of_a_negative_logarithm():
    """Words around the largest radius argument, where float32 rounds up to exactly 1."""
    near = torch.arange(2**31 - 100_000, 2**31, dtype=torch.int64).to(torch.int32)
    words = torch.cat((near, -near, torch.zeros(2 * len(near), dtype=torch.int32)))
    radius = normals(words, torch.float32)[: 2 * len(near)]
    assert radius.isfinite().all()
    assert radius.min() >= 0
    assert radius.max() < 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_formula_is_that_of_box_and_muller(dtype):
    bits = 8 * dtype.itemsize
    words = torch.from_numpy(np.random.default_rng(0).integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 2000))
    k = words.to(torch.float64).numpy()
    radius = np.sqrt(-2 * np.log(np.abs(k[:1000] + 0.5) / 2 ** (bits - 1)))
    angle = np.pi * k[1000:] / 2 ** (bits - 1)
    expected = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))
    got = normals(words.to(WORD[dtype]), dtype).numpy()
    np.testing.assert_allclose(got, expected, atol=3e-6 if dtype == torch.float32 else 1e-13)


def test_equally_spaced_words_give_the_normal_distribution_far_into_the_tails():
    """A grid instead of random bits: the distribution of r² shows without sampling error."""
    words = torch.arange(-(2**19), 2**19, dtype=torch.int64).mul(2**12).add(2**11).to(torch.int32)
    r = normals(torch.cat((words, torch.zeros_like(words))), torch.float32)[: len(words)]
    tail = [(float((r > x).double().mean()), stats.chi2.sf(x * x, 2)) for x in (0.5, 1, 2, 3, 4, 4.5)]
    assert all(got == pytest.approx(expected, rel=0.1) for got, expected in tail)
