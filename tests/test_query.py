"""A freezer's way to the data: each example alone, and the model as before."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hoarfrost
from hoarfrost import budget
from hoarfrost.errors import BudgetSpent, InvalidValue, NotPrivate
from hoarfrost.freezing import Freezer, Live, RunInfo
from hoarfrost.noise import Noise
from hoarfrost.query import Query
from hoarfrost.sampling import PoissonLoader


class Counting(nn.Module):
    """Has a buffer that no checkpoint holds, and that runs change if they shall."""

    counts = False

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 2)
        self.register_buffer("runs", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.counts:
            self.runs += 1
        return self.last(self.first(x).tanh())


def query_of(model: nn.Module, data: TensorDataset, sums: int = 1) -> Query:
    private: Any = hoarfrost.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), data, sample_rate=1.0, noise_multiplier=1.0, delta=1e-5
    )
    event = budget.Gaussian(noise_multiplier=0.0, steps=sums)
    engine, noise = private.optimizer.engine, private.optimizer.mechanism.noise
    return Query(event, model, private.loader, noise, engine.paused)


def test_no_example_has_a_say_in_what_is_computed_from_the_next() -> None:
    model, data = Counting(), TensorDataset(torch.randn(5, 3))
    query = query_of(model, data)
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    seen = []

    def spoil(model: Any, batch: Any) -> Tensor:
        seen.append([float(model.runs), float(model.first.weight.detach().sum()), model.first.weight.grad is None])
        model.counts = True
        model(batch[0]).sum().backward()
        with torch.no_grad():
            model.first.weight.mul_(3)
        return torch.ones(1)

    query.sum(spoil, size=1, bound=1.0)
    assert len(seen) == 5
    assert seen == seen[:1] * 5
    assert float(model.runs) == 0
    assert all(torch.equal(weights[name], p) for name, p in model.named_parameters())
    assert all(p.grad is None for p in model.parameters())


def test_what_an_example_leaves_anywhere_in_the_model_is_gone_before_the_next() -> None:
    model, data = Counting(), TensorDataset(torch.randn(4, 3))
    query = query_of(model, data)
    model.mean, model.queue, seen = None, [], []

    def spoil(model: Any, batch: Any) -> Tensor:
        seen.append((model.mean, len(model.queue), "first_seen" in dict(model.named_buffers()), model.training))
        model.mean = batch[0].mean()
        model.queue.append(batch[0])
        model.register_buffer("first_seen", batch[0])
        model.eval()
        return torch.ones(1)

    query.sum(spoil, size=1, bound=1.0)
    assert seen == [(None, 0, False, True)] * 4
    assert (model.mean, model.queue, model.training) == (None, [], True)
    assert "first_seen" not in model.state_dict()


def test_large_tensors_that_are_written_to_behind_torch_are_told_and_put_back() -> None:
    model = nn.Sequential(nn.Linear(3, 6000), nn.Linear(6000, 1))
    before = model[0].weight.detach().clone()
    query = query_of(model, TensorDataset(torch.randn(4, 3)))

    def spoil(model: Any, batch: Any) -> Tensor:
        model[0].weight.data.mul_(2)
        return torch.ones(1)

    with pytest.raises(NotPrivate, match=r"0\.weight was written to in a way that torch does not count"):
        query.sum(spoil, size=1, bound=1.0)
    assert torch.equal(model[0].weight, before)


class SecondLook(Freezer):
    """Freezes the first layer at once, and looks at its gradients before step 2."""

    def releases(self, info: RunInfo) -> tuple[budget.PlannedRelease, ...]:
        return (budget.PlannedRelease(event=budget.Gaussian(noise_multiplier=1.0), what="a look", step=2),)

    def prepare(self, number: int, query: Query, info: RunInfo) -> None:
        def norm(model: Any, batch: Any) -> Tensor:
            return torch.autograd.grad(model(batch[0]).sum(), model.first.weight)[0].norm()[None]

        query.sum(norm, size=1, bound=1.0)

    def live(self, step: int, info: RunInfo) -> Live:
        return {name: name.startswith("last") for name in info.shapes}


def test_what_is_frozen_can_be_differentiated_and_stays_frozen() -> None:
    model = Counting()
    private: Any = hoarfrost.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), TensorDataset(torch.randn(5, 3)), sample_rate=1.0,
        noise_multiplier=1.0, delta=1e-5, steps=3, freeze=SecondLook(),
    )  # fmt: skip
    before = model.first.weight.detach().clone()
    for _ in range(3):
        for (x,) in private.loader:
            private.optimizer.zero_grad()
            model(x).sum().backward()
            private.optimizer.step()
    assert len(private.account.releases) == 1
    assert not model.first.weight.requires_grad
    assert torch.equal(model.first.weight, before)


# What is released.

ROWS = torch.tensor([[3.0, 4.0, 0.0], [0.1, 0.0, 0.0], [0.0, 0.0, -9.0], [torch.nan, 1.0, 1.0], [torch.inf, 0.0, 0.0]])


def query(noise_multiplier: float = 0.0, steps: int = 1, model: nn.Module | None = None, rows: Tensor = ROWS) -> Query:
    event = budget.Gaussian(noise_multiplier=noise_multiplier, steps=steps)
    loader = PoissonLoader(TensorDataset(rows), batch_size=2)
    return Query(event, model or nn.Linear(3, 1), loader, Noise(), nullcontext)


def numbers(model: nn.Module, batch: Any) -> Tensor:
    return batch[0][0]


def test_every_example_is_shortened_to_the_bound_and_what_is_not_finite_is_left_out() -> None:
    total = query().sum(numbers, size=3, bound=0.5)
    expected = torch.tensor([0.3, 0.4, 0.0]) + torch.tensor([0.1, 0.0, 0.0]) + torch.tensor([0.0, 0.0, -0.5])
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-5)
    with_less = query(rows=ROWS[1:]).sum(numbers, size=3, bound=0.5)
    assert float((total - with_less).norm()) <= 0.5


def test_noise_is_the_multiplier_times_the_bound() -> None:
    rows = torch.zeros(2, 4000)
    model = nn.Linear(4000, 1)
    noise = query(3.0, model=model, rows=rows).sum(numbers, size=4000, bound=0.5)
    assert float(noise.std()) == pytest.approx(1.5, rel=0.06)
    assert abs(float(noise.mean())) < 0.12


def test_as_many_sums_as_the_release_allows_and_no_other_shapes() -> None:
    asked = query(steps=2)
    for _ in range(2):
        asked.sum(numbers, size=3, bound=1.0)
    with pytest.raises(BudgetSpent, match="2 noisy sum"):
        asked.sum(numbers, size=3, bound=1.0)
    with pytest.raises(InvalidValue, match="2 numbers for every example"):
        query().sum(numbers, size=2, bound=1.0)
