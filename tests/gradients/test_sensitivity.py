"""Adding or removing one example, however hostile, moves the clipped sum by at most the stated sensitivity."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hoarfrost.clipping.base import GONE
from hoarfrost.gradients import contributions, costs
from hoarfrost.masks import resolve_mask
from tests.gradients.settings import Tied
from tests.support.engines import clipped_sums, engine_for, flat
from tests.support.every_way import MODELS

C = 0.7
ALLOWED = C * (1 + 1e-5)


def pairs_that_cancel(x: Tensor) -> Tensor:
    """Positions that undo each other almost exactly: the norm is the small rest of large products."""
    half = x.shape[1] // 2
    x[:, half : 2 * half] = -x[:, :half] * (1 + 1e-6)
    return x * 1e4


HOSTILE: dict[str, Callable[[Tensor], Tensor]] = {
    "ordinary": lambda x: x,
    "zero": torch.zeros_like,
    "a thousand times larger": lambda x: x * 1e3,
    "1e18": lambda x: x * 1e18,
    "1e30": lambda x: x * 1e30,
    "tiny": lambda x: x * 1e-30,
    "inf": lambda x: torch.full_like(x, torch.inf),
    "one inf": lambda x: x.index_fill(-1, torch.tensor([0]), torch.inf),
    "NaN": lambda x: torch.full_like(x, torch.nan),
    "one coordinate": lambda x: torch.zeros_like(x).index_fill(-1, torch.tensor([1]), 1e6),
    "cancelling": pairs_that_cancel,
}


def linear_loss(output: Tensor) -> Tensor:
    return output.sum() * 3


@pytest.mark.parametrize("kind", MODELS)
def test_one_example_moves_the_sum_by_at_most_the_sensitivity(kind: str) -> None:
    """110 neighbours for each of ten models, hostile ones among them."""
    torch.manual_seed(0)
    make, shape = MODELS[kind]
    engine = engine_for(make(), C)
    moved = []
    for _ in range(10):
        base = torch.randn(4, *shape)
        base[0] *= -30  # an example against which a joint clip would show
        before = clipped_sums(engine, base, linear_loss)
        for name, change in HOSTILE.items():
            after = clipped_sums(engine, torch.cat([base, change(torch.randn(1, *shape))]), linear_loss)
            distance = float((flat(after) - flat(before)).norm())
            assert distance <= ALLOWED, f"{name}: {distance}"
            moved.append(distance)
    assert max(moved) > 0.99 * C  # the test would see it: some neighbour uses the whole sensitivity


@pytest.mark.parametrize("shape", [(1, 784), (1, 2, 784), (1, 40, 4, 4)], ids=["product", "Gram", "pixels"])
def test_tiny_inputs_with_huge_gradients_do_not_slip_under_the_norm(shape: tuple[int, ...]) -> None:
    """Their squares vanish in float32, one after the other; their product is a gradient longer than C."""
    layer = nn.Conv2d(40, 48, 3, padding=1, bias=False) if len(shape) == 4 else nn.Linear(784, 700, bias=False)
    engine = engine_for(layer, C)
    for tiny, huge in ((2.6e-23, 2e18), (1e-22, 1e16), (1e-25, 3e18), (1e-19, 1e17)):
        sums = clipped_sums(engine, torch.full(shape, tiny), lambda output, huge=huge: output.sum() * huge)
        assert float(flat(sums).norm()) <= ALLOWED


def test_tied_words_move_the_sum_by_at_most_the_sensitivity() -> None:
    torch.manual_seed(0)
    engine = engine_for(Tied(), C)
    for _ in range(100):
        base, other = torch.randint(11, (3, 6)), torch.randint(11, (1, 6)) * int(torch.randint(2, ()))
        loss = lambda output: output.square().sum() * 50  # noqa: E731
        distance = (
            flat(clipped_sums(engine, torch.cat([base, other]), loss)) - flat(clipped_sums(engine, base, loss))
        ).norm()
        assert float(distance) <= ALLOWED


def test_an_example_without_a_finite_norm_contributes_exactly_nothing() -> None:
    torch.manual_seed(0)
    for make, shape in MODELS.values():
        engine = engine_for(make(), C)
        base = torch.randn(3, *shape)
        bad = torch.cat([base[:2], torch.full((1, *shape), torch.nan), base[2:]])
        before, after = clipped_sums(engine, base, linear_loss), clipped_sums(engine, bad, linear_loss)
        assert flat(after).isfinite().all()
        torch.testing.assert_close(flat(after), flat(before), rtol=1e-5, atol=1e-6)


def test_without_rounding_up_a_cancelling_example_would_slip_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rounding term is what holds the Gram norms: taken away, the same neighbours move the sum too far."""
    monkeypatch.setattr(contributions.rounding, "ROUNDING", 0.0)
    torch.manual_seed(0)
    make, shape = MODELS["sequence (Gram)"]
    engine = engine_for(make(), C)
    worst = 0.0
    for _ in range(60):
        base = torch.randn(2, *shape)
        after = clipped_sums(engine, torch.cat([base, pairs_that_cancel(torch.randn(1, *shape))]), linear_loss)
        worst = max(worst, float((flat(after) - flat(clipped_sums(engine, base, linear_loss))).norm()))
    assert worst > ALLOWED


# With some coordinates frozen: every way in which live elements are computed, and examples made for each of them.

WAYS = ["product", "gathered", "pieces", "picked", "written"]
B, LARGE, SUBNORMAL = 8, 2.5e38, 1.4e-45


def huge_times_tiny(x: Tensor, g: Tensor, feature: int) -> None:
    """The product is of an ordinary size, and one side of it is not: scaled up by its factor it would overflow."""
    x[0], g[0] = 1e-40, LARGE


def huge_times_zero(x: Tensor, g: Tensor, feature: int) -> None:
    g[0] = LARGE


def subnormal(x: Tensor, g: Tensor, feature: int) -> None:
    """Scaled down by its factor, it would be rounded up to what it was."""
    x[0], g[0] = 3e38, SUBNORMAL


def one_large_among_many_small(x: Tensor, g: Tensor, feature: int) -> None:
    """Squares that vanish next to a large one as they are added up one after the other."""
    g[0] = 1.0
    x[0] = 2.4e-4
    x[0].view(-1)[0] = 1.0


def all_mass_on_frozen_coordinates(x: Tensor, g: Tensor, feature: int) -> None:
    """All of its mass where nothing moves, and enough to overflow there once it is scaled."""
    x[0].select(feature, 1).view(-1)[0] = 1e19
    g[0].view(-1)[0] = 1e19


MADE = [huge_times_tiny, huge_times_zero, subnormal, one_large_among_many_small, all_mass_on_frozen_coordinates]
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    # a layer, the shape of an example, and which dimension of it counts features
    "linear": (lambda: nn.Linear(3000, 4, bias=False), (3000,), 0),
    "sequence": (lambda: nn.Linear(30, 4, bias=False), (5, 30), 1),
    "convolution": (lambda: nn.Conv1d(4, 5, 3, bias=False), (4, 12), 0),
}


@pytest.mark.parametrize("made", MADE, ids=lambda made: made.__name__)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layer", LAYERS)
def test_with_coordinates_frozen_one_example_moves_no_more(
    layer: str, way: str, made: Callable[[Tensor, Tensor, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    cheapest = costs.cheapest
    monkeypatch.setattr(costs, "cheapest", lambda times: way if way in times else cheapest(times))
    build, shape, feature = LAYERS[layer]
    torch.manual_seed(0)
    model = build()
    model.weight.data.mul_(1e-6)  # so that the outputs are finite
    mask = torch.rand(model.weight.shape) < 0.9
    mask.view(len(mask), -1)[:, 0] = True
    mask[:, 1] = False
    x = torch.zeros(B, *shape)
    g = torch.zeros_like(model(x).detach())
    made(x, g, feature)
    exact = copy.deepcopy(model).double()
    (exact(x.double()) * g.double()).sum().backward()
    norm = float((exact.weight.grad * mask).norm()) * B  # the loss is a mean over B examples
    for clip_norm in {0.7, 1e3, *(share * norm for share in (0.51, 0.6, 0.9) if norm > 1e-20)}:
        copied = copy.deepcopy(model)
        engine = engine_for(copied, clip_norm, loss_reduction="mean")
        engine.masks = {"weight": resolve_mask(mask, copied.weight)}
        total = clipped_sums(engine, x, lambda output: (output * g).sum())["weight"].double()
        assert (total[~mask] == 0).all()
        assert total.norm() <= clip_norm * (1 + 1e-6)
        if made is one_large_among_many_small:
            assert engine.dropped == 0
            assert total.norm() >= min(clip_norm, norm) * (1 - 1e-3)  # and it is not thrown away


def test_many_small_squares_after_a_large_one_are_counted() -> None:
    """Without a mask too: 100,000 squares, each of which vanishes next to the first."""
    x = torch.full((1, 1, 100_000), 2.4e-4)
    x[0, 0, 0] = 1.0
    for model in (nn.Linear(100_000, 2, bias=False), nn.Conv1d(1, 1, 100_000, bias=False)):
        total = flat(clipped_sums(engine_for(model, 0.5), x, lambda output: output.sum())).double()
        assert 0.4999 < total.norm() <= 0.5


def test_rows_of_a_larger_matrix_are_counted_as_a_matrix_of_their_own() -> None:
    """The projections of an attention layer: a side of a product that its factor would make overflow is in the norm."""
    part = resolve_mask(torch.rand(6, 3) < 0.5, torch.zeros(6, 3))
    a, g = torch.full((1, 2, 3), 1e-40), torch.full((1, 2, 2), LARGE)
    assert (contributions.Block(a, g, 2, 6).masked(part).squared_norms() > GONE**2).all()


def test_several_uses_of_a_parameter_are_counted_like_one() -> None:
    """Where their gradients must be written out together, with and without a mask."""
    a, g = torch.full((1, 2, 3), 1e-40), torch.full((1, 2, 2), LARGE)
    reused = contributions.Reused([contributions.Outer(a, g), contributions.Dense(torch.zeros(1, 2, 3))])
    part = resolve_mask(torch.tensor([[True, False, True], [True, True, False]]), torch.zeros(2, 3))
    assert (reused.squared_norms() > GONE**2).all()
    assert (reused.masked(part).squared_norms() > GONE**2).all()
