"""The magnitudes of partitions: what the paper defines, and what one example can do to them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from hoarfrost.budget import Gaussian
from hoarfrost.errors import InvalidValue
from hoarfrost.freezing.magnitudes import Magnitude
from hoarfrost.freezing.partitions import Partition
from hoarfrost.noise import Noise
from hoarfrost.query import Query
from hoarfrost.sampling import Poisson, PoissonLoader
from tests.freezing import frost_oracle

NOISE = Noise()
VARIANTS = [(kind, order) for kind in ("clipped", "normalised", "absolute", "norms") for order in (1, 2)]
CLIPS = [None, 0.02, 1e6]


SIZES = {"a": 6, "b": 3, "c": 1}


class Linear(nn.Module):
    """The gradient of an example is the example, whatever the weights are: three partitions, the last of one number."""

    def __init__(self) -> None:
        super().__init__()
        for name, size in SIZES.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(size)))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten() @ torch.cat([self.a, self.b, self.c])


PARTS = tuple(Partition(name, (name,), size) for name, size in SIZES.items())


def query_of(rows: Any, model: nn.Module, noise_multiplier: float = 0.0) -> Query:
    data = rows if isinstance(rows, TensorDataset) else TensorDataset(rows)
    loader = PoissonLoader(data, sample_rate=1.0)
    return Query(Gaussian(noise_multiplier=noise_multiplier), model, loader, NOISE, nullcontext)


class Rows:
    """All rows of a tensor, one by one: a loader's part in a query, for thousands of them."""

    def __init__(self, rows: Tensor) -> None:
        self.rows, self.poisson = rows, Poisson(sample_rate=1.0, size=len(rows))

    def one_by_one(self, poisson: Poisson) -> Any:
        return ([[row[None]]] for row in self.rows)


def measured(rows: Tensor, magnitude: Magnitude, model: nn.Module) -> Tensor:
    loader: Any = Rows(rows)
    query = Query(Gaussian(noise_multiplier=0.0), model, loader, NOISE, nullcontext)
    return magnitude.measured(query, PARTS, lambda model, batch: model(batch[0])).double()


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize(("kind", "order"), VARIANTS)
def test_they_are_what_the_paper_defines(kind: Any, order: Any, clip: float | None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 3, bias=False), nn.Linear(3, 2))
    x, y = torch.randn(7, 4), torch.randint(2, (7,))
    names = {"first": ["0.weight", "0.bias"], "second": ["3.weight"], "third": ["4.weight", "4.bias"]}
    sizes = {"first": 25, "second": 15, "third": 8}
    partitions = tuple(Partition(name, tuple(inside), sizes[name]) for name, inside in names.items())

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    magnitude = Magnitude(kind, order, clip)
    found = magnitude.measured(query_of(TensorDataset(x, y), model), partitions, loss)
    assert model.training
    model.eval()
    examples = [frost_oracle.gradient(model, *example, names) for example in zip(x, y, strict=True)]
    expected = frost_oracle.magnitudes(examples, kind, order, clip)
    np.testing.assert_allclose(found, list(expected.values()), rtol=2e-5)
    stated = magnitude.sensitivity(partitions)
    assert stated == pytest.approx(frost_oracle.sensitivity(list(sizes.values()), kind, order, clip))
    # For the later rounds fewer partitions share what an example may say.
    later = magnitude.measured(query_of(TensorDataset(x, y), model), partitions[1:], loss)
    fewer = [{name: each[name] for name in ("second", "third")} for each in examples]
    np.testing.assert_allclose(later, list(frost_oracle.magnitudes(fewer, kind, order, clip).values()), rtol=2e-5)


def hostile(count: int) -> Tensor:
    """Gradients of all sizes and shapes: huge, subnormal, infinite, in one coordinate, in opposite directions."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(count, 10, generator=generator)
    rows *= 10.0 ** torch.randint(-45, 38, (count, 1), generator=generator).double().clamp(-45, 30).float()
    rows[::5] *= (torch.rand(rows[::5].shape, generator=generator) < 0.15).float()
    rows[1::7] = rows[0::7][: len(rows[1::7])] * -1
    rows[::11, 3], rows[::13, 9], rows[::17, 0] = torch.nan, torch.inf, -torch.inf
    rows[::19], rows[1::23], rows[2::29] = 0.0, 1e-45, 1e30
    rows[::31, :9], rows[::31, 9] = 0.0, 1e30  # the smallest partition alone
    return rows


@pytest.mark.parametrize(("kind", "order"), VARIANTS)
def test_a_thousand_hostile_neighbours_move_them_by_at_most_the_sensitivity(kind: Any, order: Any) -> None:
    neighbours, model = hostile(1000), Linear()
    batches = [neighbours[i : i + 1] for i in range(18)] + [torch.zeros(1, 10), torch.randn(8, 10)]
    for clip, most in ((None, 1000), (0.5, 100)):
        magnitude = Magnitude(kind, order, clip)
        without = [measured(rows, magnitude, model) for rows in batches]
        stated, moved = magnitude.sensitivity(PARTS), []
        for number, neighbour in enumerate(neighbours[:most]):
            choice = number % len(batches)
            with_it = measured(torch.cat([batches[choice], neighbour[None]]), magnitude, model)
            moved.append(float((with_it - without[choice]).norm()))
            assert moved[-1] <= stated * (1 + 1e-6), (number, neighbour)
        assert max(moved) > 0.9 * stated  # and the bound is reached: there is not more noise than needed


@pytest.mark.parametrize(("kind", "order"), VARIANTS)
def test_the_noise_is_the_multiplier_times_the_sensitivity(kind: Any, order: Any) -> None:
    magnitude, model, parts = Magnitude(kind, order), Linear(), PARTS[:2]  # none of them of one number
    draws = [
        magnitude.measured(query_of(torch.zeros(1, 10), model, 3.0), parts, lambda model, batch: model(batch[0]))
        for _ in range(600)
    ]
    expected = 3.0 * magnitude.sensitivity(parts)
    assert float(torch.cat(draws).std()) == pytest.approx(expected, rel=0.1)  # of 1,200 numbers: 2 % is one deviation


def test_which_partitions_there_are_does_not_depend_on_the_data() -> None:
    """An example of which a partition has no gradient counts like any other."""

    class Skipping(Linear):
        def forward(self, x: Tensor) -> Tensor:
            return self.a.sum() if x.sum() > 0 else super().forward(x)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return model(batch[0])

    found = Magnitude("norms").measured(query_of(torch.ones(4, 10), Skipping()), PARTS, loss)
    torch.testing.assert_close(found, torch.tensor([4.0, 0.0, 0.0]))


def test_a_loss_that_cannot_be_used_is_refused() -> None:
    losses: dict[str, Any] = {
        "is one number": lambda model, batch: model(batch[0]).expand(2),
        "got float": lambda model, batch: float(model(batch[0]).detach()),
        "does not depend on the model's parameters": lambda model, batch: batch[0].sum(),
    }
    for message, loss in losses.items():
        with pytest.raises(InvalidValue, match=message):
            Magnitude().measured(query_of(torch.ones(2, 10), Linear()), PARTS, loss)
    with pytest.raises(InvalidValue, match=r"returns no loss of its own: say what is differentiated"):
        query_of(torch.ones(2, 10), nn.Linear(10, 2)).loss(nn.Linear(10, 2), [torch.ones(1, 10)])


@pytest.mark.parametrize(("wrong", "message"), [
    ({"kind": "largest"}, "magnitude is"), ({"order": 3}, "order is"), ({"order": True}, "order is"),
    ({"clip": 0.0}, "clip"), ({"clip": float("inf")}, "clip"),
])  # fmt: skip
def test_settings_that_cannot_be_are_refused(wrong: Any, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        Magnitude(**wrong)
