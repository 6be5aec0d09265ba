"""Lines, random directions and surfaces of the loss: as one example after the other gives them."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hoarfrost.errors import InvalidValue
from hoarfrost.measure import Connectivity, connectivity, directions, loss_surface, random_directions
from hoarfrost.measure.directions import largest_cosine, unflattened, unit
from hoarfrost.measure.surface import filter_normalised
from tests.measure import slow_models as slow

Examples = list[tuple[Tensor, Tensor]]


def conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3))


def with_buffers() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3))
    model(torch.randn(50, 1, 4, 4) * 3 + 1)  # statistics of its own
    return model


def tied() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 3))
    model[2].weight = model[1].weight  # type: ignore[union-attr]
    return model


def with_a_dead_filter() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.Linear(4, 3))
    with torch.no_grad():
        model[1].weight[2] = 0  # type: ignore[index, operator, union-attr]
    return model


def half_frozen() -> nn.Module:
    model = conv()
    model[0].requires_grad_(False)  # type: ignore[index]
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "conv": conv,
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3, bias=False)),
    "buffers": with_buffers,
    "tied": tied,
    "a dead filter": with_a_dead_filter,
    "half frozen": half_frozen,
    "float64": lambda: conv().double(),
}


def two(name: str, count: int = 7) -> tuple[nn.Module, nn.Module, Examples]:
    torch.manual_seed(3)
    first, second = MODELS[name](), MODELS[name]()
    dtype = next(first.parameters()).dtype
    x, y = torch.randn(count, 1, 4, 4, dtype=dtype), torch.randint(3, (count,))
    return first, second, list(zip(x, y, strict=True))


def batched(examples: Examples, size: int) -> Examples:
    """Of unlike sizes: the last one is smaller, and an empty one is in between."""
    x, y = (torch.stack(list(part)) for part in zip(*examples, strict=True))
    found = [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]
    return [*found[:1], (x[:0], y[:0]), *found[1:]]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("count", "size", "points"), [(7, 3, 5), (1, 1, 2), (8, 8, 30)])
def test_the_losses_on_a_line_are_those_of_the_models_there(name: str, count: int, size: int, points: int) -> None:
    first, second, examples = two(name, count)
    found = connectivity(first, second, batched(examples, size), points=points)
    expected = slow.line(first, second, examples, points)
    assert found.losses == pytest.approx(expected, rel=2e-5)
    assert found.instability == pytest.approx(max(expected) - (expected[0] + expected[-1]) / 2, abs=2e-5)
    squares = [
        ((q.double() - p.double()) ** 2).sum().item()
        for p, q in zip(first.parameters(), second.parameters(), strict=True)
    ]
    assert found.distance == pytest.approx(math.sqrt(sum(squares)), rel=1e-6)
    assert found.alphas == pytest.approx([i / (points - 1) for i in range(points)])


@pytest.mark.parametrize("name", MODELS)
def test_the_ends_are_the_models_to_the_last_bit_and_buffers_are_the_firsts(name: str) -> None:
    first, second, examples = two(name)
    batches = batched(examples, 7)
    there, back = connectivity(first, second, batches), connectivity(second, first, batches)
    assert there.losses[0] == connectivity(first, first, batches).losses[11]
    if name != "buffers":
        assert there.losses[-1] == back.losses[0]
    else:
        assert there.losses[-1] != back.losses[0]


def test_a_state_dict_is_as_good_as_a_model() -> None:
    first, second, examples = two("buffers")
    batches = batched(examples, 3)
    assert connectivity(first, second, batches) == connectivity(first, second.state_dict(), batches)


def test_an_error_rate_is_a_loss() -> None:
    first, second, examples = two("conv")
    error = lambda outputs, y: (outputs.argmax(1) != y).double().mean()  # noqa: E731
    found = connectivity(first, second, batched(examples, 3), loss=error, points=2)
    wrong = [sum(int(m(x[None]).argmax()) != int(y) for x, y in examples) / 7 for m in (first, second)]
    assert found.losses == pytest.approx(wrong)


def test_no_model_changes() -> None:
    first, second, examples = two("buffers")
    before = copy.deepcopy((first.state_dict(), second.state_dict()))
    batches = batched(examples, 3)
    first.train()
    connectivity(first, second, batches, points=3)
    random_directions(first, batches, distance=2.0, count=2, points=2)
    loss_surface(first, batches, points=3)
    for state, model in zip(before, (first, second), strict=True):
        assert all(value.equal(model.state_dict()[name]) for name, value in state.items())
    assert first.training


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (nn.Linear(2, 4), r"weight is \[3, 2\] in the first and \[4, 2\] in the second"),
        (nn.Linear(2, 3, bias=False), "the second has no parameter bias"),
        (nn.Sequential(nn.Linear(2, 3)), "the second has no parameter weight"),
        (nn.Bilinear(2, 2, 3), r"weight is \[3, 2\] in the first and \[3, 2, 2\] in the second"),
        ({"weight": torch.zeros(3, 2)}, "the second has no parameter bias"),
    ],
)
def test_models_of_different_shapes_are_refused(second: nn.Module, said: str) -> None:
    with pytest.raises(InvalidValue, match=said):
        connectivity(nn.Linear(2, 3), second, [(torch.ones(1, 2), torch.tensor([0]))])


def test_a_second_model_with_more_is_refused() -> None:
    with pytest.raises(InvalidValue, match="the first has no parameter bias"):
        connectivity(nn.Linear(2, 3, bias=False), nn.Linear(2, 3), [(torch.ones(1, 2), torch.tensor([0]))])


def test_what_cannot_be_measured_is_refused() -> None:
    model, batches = nn.Linear(2, 3), [(torch.ones(1, 2), torch.tensor([0]))]
    with pytest.raises(InvalidValue, match="every batch is empty"):
        connectivity(model, model, [(torch.ones(0, 2), torch.ones(0).long())])
    with pytest.raises(InvalidValue, match="only once"):
        connectivity(model, model, iter(batches))
    with pytest.raises(InvalidValue, match="no parameters"):
        connectivity(nn.ReLU(), nn.ReLU(), batches)
    with pytest.raises(InvalidValue, match="points must be 2 or more, got 1"):
        connectivity(model, model, batches, points=1)
    with pytest.raises(InvalidValue, match="points must be odd"):
        loss_surface(model, batches, points=4)
    with pytest.raises(InvalidValue, match="distance must be above 0"):
        random_directions(model, batches, distance=0.0)


def test_a_way_where_the_loss_is_no_number_is_an_infinite_barrier() -> None:
    found = Connectivity(alphas=(0.0, 0.5, 1.0), losses=(1.0, math.nan, 1.0), distance=1.0)
    assert found.instability == math.inf
    assert math.isnan(Connectivity(alphas=(0.0, 1.0), losses=(math.nan, 1.0), distance=1.0).instability)


@pytest.mark.parametrize("name", MODELS)
def test_the_losses_along_random_directions_are_those_of_the_models_there(name: str) -> None:
    first, _, examples = two(name)
    found = random_directions(first, batched(examples, 3), distance=3.0, count=3, points=4, seed=5)
    weights = dict(first.named_parameters())
    for number, losses in enumerate(found.losses):
        way = unflattened(unit(weights, 5, number), weights)
        for d, loss in zip((0.0, 1.0, 2.0, 3.0), losses, strict=True):
            there = slow.moved(first, lambda n, p, d=d, way=way: p + d * way[n])  # type: ignore[misc]
            assert loss == pytest.approx(slow.loss_of(there, examples), rel=2e-5)
    assert found.mean == pytest.approx(np.mean(found.losses, axis=0).tolist())
    assert found.rises == sum(row[-1] > row[0] for row in found.losses)


def test_directions_have_length_one_and_differ_by_number_and_seed() -> None:
    like = {"a": torch.zeros(7, 3), "b": torch.zeros(5)}
    drawn = [unit(like, seed, number) for seed in (0, 1, 2) for number in range(3)]
    assert [d.norm().item() for d in drawn] == pytest.approx([1.0] * 9)
    assert all(not one.allclose(other) for one, other in itertools.combinations(drawn, 2))
    assert unit(like, 1, 2).equal(unit(like, 1, 2))
    assert torch.cat([part.flatten() for part in unflattened(drawn[0], like).values()]).equal(drawn[0])


@pytest.mark.parametrize("held", [1 << 27, 26 * 4, 26, 1])
def test_the_largest_cosine_is_over_all_pairs(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directions, "HELD", held)
    like = {"a": torch.zeros(7, 3), "b": torch.zeros(5)}
    drawn = [unit(like, 4, number).double() for number in range(10)]
    expected = max(abs(float(one @ other)) for one, other in itertools.combinations(drawn, 2))
    assert largest_cosine(like, 4, 10) == pytest.approx(expected, rel=1e-5)


def test_directions_are_nearly_orthogonal_in_many_dimensions() -> None:
    found = random_directions(nn.Linear(1000, 10), [(torch.ones(1, 1000), torch.tensor([0]))], distance=1.0, points=2)
    assert len(found.losses) == 100
    assert found.largest_cosine is not None
    assert 0.025 < found.largest_cosine < 0.06  # about √(2·ln 4950 / 10010) = 0.041


@pytest.mark.parametrize("name", MODELS)
def test_the_surface_has_the_losses_of_the_models_there(name: str) -> None:
    first, _, examples = two(name)
    found = loss_surface(first, batched(examples, 3), points=3, reach=0.5, seed=2)
    weights = dict(first.named_parameters())
    one, other = (unflattened(unit(weights, 2, number), weights) for number in (0, 1))
    assert found.steps == (-0.5, 0.0, 0.5)
    for b, row in zip(found.steps, found.losses, strict=True):
        for a, loss in zip(found.steps, row, strict=True):

            def there(n: str, p: Tensor, a: float = a, b: float = b) -> Tensor:
                d, e = (slow.filter_normalised(way[n].numpy(), p.numpy()) for way in (one, other))
                return p + a * torch.from_numpy(d).to(p) + b * torch.from_numpy(e).to(p)

            assert loss == pytest.approx(slow.loss_of(slow.moved(first, there), examples), rel=2e-5)


def test_a_filter_of_zeros_stays() -> None:
    weights = dict(with_a_dead_filter().named_parameters())
    found = filter_normalised(unflattened(unit(weights, 0, 0), weights), weights)
    assert (found["1.weight"][2] == 0).all()
    assert found["1.weight"].norm(dim=1).tolist() == pytest.approx(weights["1.weight"].norm(dim=1).tolist(), rel=1e-5)
    still = filter_normalised({"w": torch.zeros(2, 3)}, {"w": torch.ones(2, 3)})
    assert (still["w"] == 0).all()
