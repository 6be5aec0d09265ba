"""A random set of coordinates: exactly as many as were asked for, and anyone can compute it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from hoarfrost.freezing import Channels, Random, RandomTensors, RunInfo
from hoarfrost.masks import as_tensor
from tests import oracle
from tests.support.freezing import PLAN, make, net, step

SHAPES: dict[str, tuple[int, ...]] = {
    "conv.weight": (5, 3, 3, 3), "conv.bias": (5,), "norm.weight": (5,), "odd.weight": (7, 1), "odd.scale": (),
    "linear.weight": (4, 11), "linear.bias": (4,),
}  # fmt: skip


def info(sample_rate: float = 0.1, shapes: dict[str, tuple[int, ...]] | None = None) -> RunInfo:
    sizes = {name: torch.Size(shape) for name, shape in (shapes or SHAPES).items()}
    return RunInfo(sizes, tuple((name,) for name in sizes), 100, sample_rate, int)


def written_out(freezer: Random, number: int) -> dict[str, Tensor]:
    return {n: as_tensor(mask, info().shapes[n]) for n, mask in freezer.live(number, info()).items()}


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.7, 0.9, 0.95])
def test_exactly_as_many_elements_are_live_over_the_whole_model(rate: float) -> None:
    total = sum(size.numel() for size in info().shapes.values())
    for number in (0, 10, 20, 90):
        live = sum(int(mask.sum()) for mask in written_out(Random(rate), number).values())
        assert live == round(total * (1 - Fraction(str(rate))))


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.8])
def test_whole_rows_and_whole_tensors_are_as_many(rate: float) -> None:
    for number in (0, 10, 50):
        rows = Random(rate, granularity="channel").live(number, info())
        # One row for weight and bias together: the convolution's and its norm's own, 7 and 1 of the odd one, 4.
        heights = {"conv": 5, "norm": 5, "odd.weight": 7, "odd.scale": 1, "linear": 4}
        live = 0
        for layer in heights:
            found = [rows[name] for name in SHAPES if name.startswith(layer)]
            kept = [[0] * each if isinstance(each, bool) else each.index.tolist() for each in found]
            assert all(each == kept[0] for each in kept)  # a layer's weight and bias are frozen together
            live += len(kept[0])
        assert live == round(sum(heights.values()) * (1 - Fraction(str(rate))))
        assert all(isinstance(rows[name], Channels) for name, shape in SHAPES.items() if shape)

        tensors = Random(rate, granularity="tensor").live(number, info())
        assert sum(tensors.values()) == round(len(SHAPES) * (1 - Fraction(str(rate))))
        fixed = RandomTensors(1 - rate, seed=5)
        assert fixed.live(number, info()) == fixed.live(0, info())
        assert sum(fixed.live(0, info()).values()) == sum(tensors.values())


def test_anyone_can_compute_the_set() -> None:
    """From the seed and the epoch, on every machine, today and later."""
    words = oracle.public_words("hoarfrost freezing seed 7", 3, sum(size.numel() for size in info().shapes.values()))
    slow = set(sorted(range(len(words)), key=lambda place: words[place])[: round(len(words) * 0.4)])
    masks = torch.cat([mask.flatten() for mask in written_out(Random(0.6, seed=7), 30).values()])
    assert set(masks.nonzero().flatten().tolist()) == slow


@pytest.mark.parametrize("settings", [{}, {"redraw": "step"}, {"redraw": "never"}, {"seed": 4}])
def test_it_is_drawn_when_it_should_be(settings: dict[str, Any]) -> None:
    freezer = Random(0.5, **settings)
    drawn = [torch.cat([m.flatten() for m in written_out(freezer, number).values()]) for number in range(30)]
    drawn_by = {"step": lambda number: number, "never": lambda number: 0}
    group = drawn_by.get(settings.get("redraw", ""), lambda number: number // 10)
    for a in range(30):
        for b in range(a):
            assert torch.equal(drawn[a], drawn[b]) == (group(a) == group(b)), (a, b)
            assert (freezer.key(a, info()) == freezer.key(b, info())) == (group(a) == group(b))
    other = torch.cat([m.flatten() for m in written_out(Random(0.5, **{**settings, "seed": 5}), 0).values()])
    assert not torch.equal(drawn[0], other)


def test_every_coordinate_gets_its_turn() -> None:
    """Live in 3 of 10 epochs on average, wherever it lies, and independently of its neighbour."""
    epochs, freezer = 2000, Random(0.7, seed=1)
    drawn = torch.stack(
        [torch.cat([m.flatten() for m in written_out(freezer, 10 * e).values()]) for e in range(epochs)]
    )
    deviation = (0.3 * 0.7 / epochs) ** 0.5
    assert (drawn.float().mean(0) - 0.3).abs().max() < 5 * deviation
    together = (drawn[:, 1:] & drawn[:, :-1]).float().mean()
    assert abs(together - 0.09) < 0.003
    again = (drawn[1:] & drawn[:-1]).float().mean()
    assert abs(again - 0.09) < 0.003


@pytest.mark.parametrize(("rate", "cooling"), [(0.9, 4), (0.5, 10), (0.7, 1), (0.7, None), (0.9, 2)])
def test_the_frozen_share_grows_with_the_epochs(rate: float, cooling: int | None) -> None:
    total = sum(size.numel() for size in info().shapes.values())
    for epoch in range(10):
        share = rate if cooling in (None, 1) else rate * min(epoch / (cooling - 1), 1)
        live = sum(int(mask.sum()) for mask in written_out(Random(rate, cooling), 10 * epoch).values())
        assert abs(live - total * (1 - share)) <= 0.5 + 1e-9


def test_masks_do_not_depend_on_the_optimizers_groups() -> None:
    found = []
    for reverse in (False, True):
        model = net()
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(parameters[::-1] if reverse else parameters, lr=0.1)
        private = make(model, optimizer, freeze=Random(0.5), **PLAN)
        step(private)
        found.append({name: mask.mask for name, mask in private.optimizer.controller.masks.items()})
    for name, mask in found[0].items():
        assert torch.equal(mask, found[1][name])


def test_what_was_drawn_is_what_moves() -> None:
    model, freezer = net(), Random(0.75, redraw="step", seed=2)
    private = make(model, freeze=freezer, sample_rate=1.0, noise_multiplier=1.0, steps=4)
    shapes = {name: p.shape for name, p in model.named_parameters()}
    for number in range(4):
        before = {name: p.clone() for name, p in model.named_parameters()}
        step(private)
        live = freezer.live(number, RunInfo(shapes, (), 4, 1.0, int))
        for name, p in model.named_parameters():
            assert torch.equal(p != before[name], live[name])
