"""Noise of the size asked for, on every element, once, and independent of everything."""

import copy
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from scipy import stats

from hoarfrost.errors import InvalidValue, NotPrivate
from hoarfrost.noise import Noise, gaussian

MILLION = 1_000_000


@pytest.fixture(autouse=True)
def small_device_chunks(monkeypatch):
    """A CPU stands in for the device: chunks that suit its cache, and boundaries to cross."""
    monkeypatch.setattr(gaussian, "DEVICE_CHUNK", 1 << 16)


def draw(seed: int = 0, size: int = MILLION, dtype: torch.dtype = torch.float32, chacha: bool = False) -> np.ndarray:
    return Noise(seed, _chacha=chacha).standard((size,), dtype=dtype).double().numpy()


def standard_normal(z: np.ndarray) -> bool:
    """Whether a million numbers could be N(0, 1): moments, distribution, tails."""
    n = len(z)
    return (
        abs(z.mean()) < 4 / n**0.5
        and abs(z.std() - 1) < 0.003
        and abs(stats.skew(z)) < 4 * (6 / n) ** 0.5
        and abs(stats.kurtosis(z)) < 4 * (24 / n) ** 0.5
        and stats.kstest(z, "norm").pvalue > 1e-3
        and 4.2 < np.abs(z).max() < 6.67
        and all(
            stats.binomtest(int((side * z > x).sum()), n, stats.norm.sf(x)).pvalue > 1e-4
            for x in (2, 3, 4)
            for side in (-1, 1)
        )
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("chacha", [False, True], ids=["aes", "chacha"])
def test_the_numbers_are_standard_normal(dtype, chacha):
    assert standard_normal(draw(dtype=dtype, chacha=chacha))


@pytest.mark.parametrize(
    "fault",
    [
        lambda z: 1.006 * z,
        lambda z: z + 0.01,
        lambda z: z.clip(-4, 4),
        lambda z: np.where(np.abs(z) > 3.5, z / 2, z),
        lambda z: stats.t(30).ppf(stats.norm.cdf(z)) / (30 / 28) ** 0.5,
    ],
    ids=["too wide", "shifted", "clipped at 4", "tails folded in", "heavy tails"],
)
def test_a_distribution_that_is_slightly_wrong_would_be_noticed(fault):
    assert not standard_normal(fault(draw()))


@pytest.mark.parametrize("std", [1e-6, 0.3, 40.0])
def test_the_noise_has_the_standard_deviation_asked_for(std):
    z = torch.zeros(1000, 1000)
    Noise(1).add_([z], [std])
    assert float(z.std()) == pytest.approx(std, rel=0.005)


def test_noise_is_added_to_what_is_there():
    tensor = torch.full((100_000,), 7.0)
    Noise(2).add_([tensor], [0.1])
    assert float(tensor.mean()) == pytest.approx(7, abs=0.002)
    assert float(tensor.std()) == pytest.approx(0.1, rel=0.02)


def test_a_standard_deviation_of_zero_leaves_a_tensor_untouched():
    still, noisy = torch.randn(1000), torch.zeros(1000)
    before = still.clone()
    Noise().add_([still, noisy], [0.0, 1.0])
    assert torch.equal(still, before)
    assert (noisy != 0).all()


@pytest.mark.parametrize("chacha", [False, True], ids=["aes", "chacha"])
def test_neighbours_halves_tensors_and_steps_are_independent(chacha, monkeypatch):
    """Every way in which numbers could hang together by their place: correlations of order 1/√n only."""
    monkeypatch.setattr(gaussian, "CPU_CHUNK", 1 << 17)
    monkeypatch.setattr(gaussian, "DEVICE_CHUNK", 1 << 15)
    monkeypatch.setattr(gaussian, "_scratch", gaussian._Scratch())
    noise = Noise(5, _chacha=chacha)
    size = 1 << 18
    first, second, next_step = torch.zeros(size), torch.zeros(size), torch.zeros(size)
    noise.add_([first, second], [1.0, 1.0])
    noise.add_([next_step], [1.0])
    lags = [1, 2, 1 << 14, 1 << 15, 1 << 16, 1 << 17]
    pairs = [(first, second), (first, next_step), (second, next_step)]
    pairs += [(first[:-lag], first[lag:]) for lag in lags]
    for a, b in pairs:
        for f in (lambda t: t, torch.abs, torch.square):
            assert abs(np.corrcoef(f(a).numpy(), f(b).numpy())[0, 1]) < 4.5 / len(a) ** 0.5


def test_no_number_is_used_twice():
    noise = Noise(3)
    drawn = torch.cat([noise.standard((50_000,), dtype=torch.float64) for _ in range(6)])
    assert len(drawn.unique()) == len(drawn)


def many_shapes(chunk: int) -> list[torch.Tensor]:
    """Small and large, at chunk boundaries and across them."""
    sizes = [64] * 50 + [1, chunk - 3201, chunk, chunk + 1, 3, 2 * chunk + 5, 0, 7]
    return [torch.zeros(size) for size in sizes]


@pytest.mark.parametrize("chacha", [False, True], ids=["aes", "chacha"])
def test_many_tensors_of_any_size_get_noise_everywhere_once(chacha):
    tensors = many_shapes(gaussian.DEVICE_CHUNK if chacha else gaussian.CPU_CHUNK // 4)
    stds = [1 + i % 3 for i in range(len(tensors))]
    Noise(4, _chacha=chacha).add_(tensors, stds)
    flat = torch.cat([t / std for t, std in zip(tensors, stds, strict=True)])
    assert (flat != 0).all()
    assert float(flat.std()) == pytest.approx(1, rel=0.005)
    assert stats.kstest(flat.numpy(), "norm").pvalue > 1e-3
    assert len(flat.double().unique()) > 0.95 * len(flat)  # float32 has a few coincidences, never a repeated chunk


def test_tensors_get_the_same_noise_as_one_long_tensor():
    """One flat stream, cut where the tensors end: nothing is drawn per tensor."""
    pieces = many_shapes(gaussian.CPU_CHUNK // 4)
    whole = torch.zeros(sum(t.numel() for t in pieces))
    Noise(6).add_(pieces, [1.0] * len(pieces))
    Noise(6).add_([whole], [1.0])
    assert torch.equal(torch.cat(pieces), whole)


def test_the_noise_does_not_depend_on_the_number_of_threads():
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            tensors = many_shapes(gaussian.CPU_CHUNK // 4)
            Noise(7).add_(tensors, [0.5] * len(tensors))
            results.append(torch.cat(tensors))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


LAYOUTS = {
    "transposed": lambda: torch.zeros(300, 500).t(),
    "channels last": lambda: torch.zeros(20, 30, 25, 10).to(memory_format=torch.channels_last),
    "every other row": lambda: torch.zeros(600, 500)[::2],
    "a column block": lambda: torch.zeros(500, 600)[:, 100:400],
    "with an empty dimension": lambda: torch.zeros(150_000, 1, 1).permute(1, 0, 2),
    "a scalar": lambda: torch.zeros(()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_memory_layout_gets_noise_on_each_of_its_elements_and_no_other(layout):
    tensor = LAYOUTS[layout]()
    Noise(8).add_([tensor], [1.0])
    assert (tensor != 0).all()
    if tensor.numel() > 1:
        assert float(tensor.std()) == pytest.approx(1, rel=0.01)
    touched = torch.empty(0).set_(tensor.untyped_storage()).count_nonzero()
    assert touched == tensor.numel()


def test_float64_noise_has_more_than_float32_precision():
    """Otherwise the low bits of a float64 gradient would come out bare."""
    z = Noise(9).standard((1000,), dtype=torch.float64)
    assert (z.float().double() != z).float().mean() > 0.99


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_tensors_take_noise(dtype):
    z = torch.zeros(200_000, dtype=dtype)
    Noise(10).add_([z], [0.5])
    assert float(z.float().std()) == pytest.approx(0.5, rel=0.01)


def test_mixed_precisions_in_one_call_are_independent():
    narrow, wide = torch.zeros(100_000), torch.zeros(100_000, dtype=torch.float64)
    Noise(11).add_([narrow, wide], [1.0, 1.0])
    assert abs(np.corrcoef(narrow.numpy(), wide.numpy())[0, 1]) < 0.015


def test_a_parameter_takes_noise_without_a_graph():
    weight = torch.nn.Parameter(torch.zeros(10, 10))
    Noise().add_([weight], [1.0])
    assert weight.is_leaf
    assert weight.grad_fn is None
    assert (weight != 0).all()


def test_seeds_repeat_and_no_seed_never_does():
    assert torch.equal(Noise(1).standard((100,)), Noise(1).standard((100,)))
    assert not torch.equal(Noise(1).standard((100,)), Noise(2).standard((100,)))
    assert not torch.equal(Noise().standard((100,)), Noise().standard((100,)))
    assert Noise(0).seeded
    assert not Noise().seeded


def test_torchs_own_seed_has_no_influence():
    torch.manual_seed(0)
    first = Noise().standard((10,))
    torch.manual_seed(0)
    assert not torch.equal(first, Noise().standard((10,)))


def test_a_seeded_run_can_be_taken_up_where_it_was_left():
    whole = Noise(1)
    steps = [whole.standard((10,)) for _ in range(4)]
    resumed = Noise(1)
    resumed.skip_to(3)
    assert torch.equal(resumed.standard((10,)), steps[3])
    assert resumed.draws == 4


def test_two_ciphers_of_one_seed_are_unrelated():
    aes, chacha = draw(size=100_000), draw(size=100_000, chacha=True)
    assert abs(np.corrcoef(aes, chacha)[0, 1]) < 0.015


def test_nothing_to_do_is_done():
    Noise().add_([], [])
    Noise().add_([torch.zeros(0)], [1.0])


SHARED = torch.zeros(10)


@pytest.mark.parametrize(
    ("tensors", "stds", "message"),
    [
        ([torch.zeros(2)], [], "2 tensors, 1 stds"),
        ([torch.zeros(2)], [-1.0], "must not be negative"),
        ([torch.zeros(2)], [float("nan")], "must be a number"),
        ([torch.zeros(2)], [float("inf")], "must be finite"),
        ([torch.zeros(2, dtype=torch.int64)], [1.0], "torch.int64"),
        ([torch.zeros(2, dtype=torch.complex64)], [1.0], "torch.complex64"),
        ([SHARED, SHARED], [1.0, 1.0], "share memory"),
        ([SHARED[:6], SHARED[5:]], [1.0, 1.0], "share memory"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_touched(tensors, stds, message):
    untouched = torch.zeros(3)
    with pytest.raises(InvalidValue, match=message):
        Noise().add_([untouched, *tensors], [1.0, *stds])
    assert (untouched == 0).all()


def test_noise_cannot_be_copied():
    with pytest.raises(NotPrivate, match="copied"):
        copy.deepcopy(Noise())


# Small tensors are served from numbers that were drawn ahead.


def test_small_tensors_get_normal_numbers_none_of_them_twice():
    noise, found = Noise(), []
    for _ in range(1500):
        parts = [torch.zeros(9, 37), torch.zeros(331)]
        noise.add_(parts, [1.0, 1.0])
        found += [part.flatten() for part in parts]
    z = torch.cat(found)
    # Box and Muller's float32 numbers coincide now and then; stretches of them do not.
    assert len({tuple(stretch) for stretch in z[: len(z) // 4 * 4].view(-1, 4).tolist()}) == len(z) // 4
    assert stats.kstest(z.double().numpy(), "norm").pvalue > 1e-6


def test_small_tensors_have_the_standard_deviations_asked_for():
    noise, narrow, wide = Noise(), torch.zeros(2000, 5), torch.zeros(2000, 5)
    for a, b in zip(narrow, wide, strict=True):
        noise.add_([a, b], [0.5, 3.0])
    assert narrow.std() == pytest.approx(0.5, rel=0.05)
    assert wide.std() == pytest.approx(3.0, rel=0.05)


def test_a_forked_child_does_not_use_what_its_parent_drew_ahead():
    noise = Noise()
    noise.standard((3,))  # so that there are numbers left to be used twice
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, noise.standard((64,)).numpy().tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = np.frombuffer(os.read(read, 256), dtype=np.float32)
    os.close(read), os.close(write)
    assert not np.isin(theirs, noise.standard((64,)).numpy()).any()


def test_threads_that_take_small_tensors_at_once_get_different_numbers():
    noise = Noise()
    with ThreadPoolExecutor(8) as pool:
        found = torch.stack(list(pool.map(lambda _: noise.standard((64,)), range(4000))))
    assert len({tuple(row) for row in found.tolist()}) == 4000
