"""The paper's own problem: its moments are those of samples, its optimum is the theorem's, and pruning lowers R."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from hoarfrost.errors import InvalidValue
from hoarfrost.measure import SignalAndNoise, pruning_on_signal_and_noise
from hoarfrost.measure.signal_and_noise import Layers, descend, largest

PROBLEMS = {
    "small": SignalAndNoise(signal=2, noise=3, hidden=4),
    "no width": SignalAndNoise(signal=1, noise=1, hidden=1),
    "strong": SignalAndNoise(signal=3, noise=2, hidden=5, strength=3.0, spread=0.5),
    "weak": SignalAndNoise(signal=2, noise=4, hidden=3, strength=0.4, spread=2.0),
}


def sampled(problem: SignalAndNoise, count: int) -> tuple[Tensor, Tensor]:
    """Examples as the paper draws them."""
    generator = torch.Generator().manual_seed(7)
    y = torch.randint(2, (count, 1), generator=generator).double() * 2 - 1
    noise = torch.randn(count, problem.signal + problem.noise, generator=generator, dtype=torch.float64)
    v = torch.cat([torch.ones(problem.signal), torch.zeros(problem.noise)]).double()
    return y * v * problem.strength / math.sqrt(problem.signal) + problem.spread * noise, y


def weights(problem: SignalAndNoise) -> tuple[Layers, Tensor]:
    """Weights that are not balanced, and a mask."""
    generator = torch.Generator().manual_seed(3)
    shape = problem.hidden, problem.signal + problem.noise
    mask = (torch.rand(shape, generator=generator) < 0.6).double()
    first = 0.5 * torch.randn(shape, generator=generator, dtype=torch.float64) * mask
    return Layers(first, 0.5 * torch.randn(1, problem.hidden, generator=generator, dtype=torch.float64)), mask


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_moments_are_those_of_samples(name: str) -> None:
    """By autograd, one example after the other; a sample's moments are off by five standard errors at most."""
    problem = PROBLEMS[name]
    layers, mask = weights(problem)
    x, y = sampled(problem, 200_000)

    def loss_of(first: Tensor, second: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (second @ ((first * mask) @ x) - y).square().sum()

    gradients = torch.func.vmap(torch.func.grad(loss_of, (0, 1)), (None, None, 0, 0))(*layers, x, y)
    flat = torch.cat([part.flatten(1) for part in gradients], 1)
    losses = torch.func.vmap(loss_of, (None, None, 0, 0))(*layers, x, y)
    expected = torch.cat([part.flatten() for part in problem.gradient(layers, mask)])
    for sample, exact in (
        (flat, expected),
        (losses, torch.tensor(problem.loss(layers))),
        (flat.square().sum(1), torch.tensor(problem.mean_square(layers, mask))),
    ):
        error = sample.std(0) / math.sqrt(len(sample))
        assert ((sample.mean(0) - exact).abs() <= 5 * error + 1e-12).all()
    spread = (flat - expected).square().sum(1)
    error = spread.std() / math.sqrt(len(flat)) / expected.square().sum()
    assert abs(problem.ratio(layers, mask) - spread.mean() / expected.square().sum()) <= 5 * error


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_gradient_is_the_losss(name: str) -> None:
    problem = PROBLEMS[name]
    layers, mask = weights(problem)
    for part, found, live in zip(layers, problem.gradient(layers, mask), (mask, torch.ones(1)), strict=True):
        for index in range(part.numel()):
            step = torch.zeros_like(part)
            step.view(-1)[index] = 1e-6
            moved = [Layers(*(p + s * step if p is part else p for p in layers)) for s in (1, -1)]
            slope = (problem.loss(moved[0]) - problem.loss(moved[1])) / 2e-6
            assert float(found.flatten()[index]) == pytest.approx(
                slope * float(live.expand_as(part).flatten()[index]), abs=1e-7
            )


@pytest.mark.parametrize("name", PROBLEMS)
def test_training_ends_at_the_theorems_optimum(name: str) -> None:
    problem = PROBLEMS[name]
    start = problem.start(1)
    assert (start.second.T @ start.second).allclose(start.first @ start.first.T)
    found = descend(problem, start, torch.ones_like(start.first), steps=20_000, lr=0.02)
    w = (found.layers.second @ found.layers.first)[0]
    assert w.allclose(problem.best, atol=1e-6)
    assert found.losses[-1] == pytest.approx(problem.best_loss, abs=1e-9)
    assert found.layers.first[:, problem.signal :].abs().max() < 1e-5  # W_n = 0
    balance = found.layers.second.T @ found.layers.second - found.layers.first @ found.layers.first.T
    assert balance.abs().max() < 0.02  # exactly 0 in gradient flow, whose steps are infinitely small
    off = Layers(found.layers.first, found.layers.second * 1.01)
    assert problem.loss(off) > found.losses[-1]


def test_the_optimum_is_the_regression_of_a_sample() -> None:
    problem = PROBLEMS["strong"]
    x, y = sampled(problem, 200_000)
    solved = torch.linalg.lstsq(x, y).solution[:, 0]
    assert (solved - problem.best).abs().max() < 0.02
    assert 0.5 * float((x @ solved - y[:, 0]).square().mean()) == pytest.approx(problem.best_loss, rel=0.02)


def test_pruning_lowers_the_ratio_here() -> None:
    """Measured on this problem, not a law: the paper's Figure 11."""
    before, found = pruning_on_signal_and_noise(SignalAndNoise(), keeps=(1.0, 0.5, 0.1))
    assert [each.keep for each in found] == pytest.approx([1.0, 0.5, 0.1])
    assert before.layers.first[:, 10:].norm() < 1e-3 * before.layers.first.norm()
    ratios = [each.ratios for each in found]
    # Later nothing is left to learn: all means go to zero, that of the most pruned first, and all ratios to infinity.
    assert all(whole > half > tenth for whole, half, tenth in zip(*(r[:30] for r in ratios), strict=True))
    assert ratios[-1][100] > ratios[0][100] > 1e6
    tenth = found[-1].layers.first
    assert int((tenth != 0).sum()) == 200
    assert (tenth[:, 10:] == 0).all()  # just the signal is left
    for each in found:
        assert each.losses[-1] < each.losses[0]
        assert len(each.losses) == len(each.ratios) == 301


def test_nothing_left_to_learn_is_an_infinite_ratio() -> None:
    problem = SignalAndNoise(signal=1, noise=1, hidden=1)
    none = Layers(torch.zeros(1, 2).double(), torch.zeros(1, 1).double())
    assert problem.ratio(none, torch.ones(1, 2).double()) == math.inf


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidValue, match="noise must be a whole number, 1 or above, got 0"):
        SignalAndNoise(noise=0)
    with pytest.raises(InvalidValue, match=r"keep must lie in \(0, 1\], got 0"):
        largest(torch.ones(2, 2), 0)
    assert largest(torch.ones(2, 2), 1e-9).sum() == 1
