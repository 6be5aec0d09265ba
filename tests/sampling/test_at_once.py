"""Rows of a TensorDataset are fetched at once: the batches are those that `default_collate` makes one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate

from hoarfrost.sampling import PoissonLoader


def tensors() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(50, 3, 4, generator=generator),
        torch.randn(4, 50, generator=generator).T,  # with gaps
        torch.arange(50),
        torch.rand(50, 2, generator=generator).half(),
        torch.rand(50, generator=generator) > 0.5,
        torch.zeros(50, 0),
    ]


def one_by_one(rows: list[Any]) -> Any:
    """No function that is known by name."""
    return default_collate(rows)


@pytest.mark.parametrize(
    "settings", [{}, {"views": 2}, {"max_physical_batch": 4}, {"views": 2, "max_physical_batch": 3}], ids=str
)
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_those_of_rows_that_are_fetched_one_by_one(settings: dict[str, Any], workers: int) -> None:
    data = TensorDataset(*tensors())
    plain = DataLoader(data, batch_size=1, num_workers=workers)
    slow = DataLoader(data, batch_size=1, num_workers=workers, collate_fn=one_by_one)
    found, wanted = (
        list(PoissonLoader(each, batch_size=10, steps=7, seed=3, **settings)) for each in (plain, slow)
    )  # fmt: skip
    assert len(found) == len(wanted) > 3
    for batch, other in zip(found, wanted, strict=True):
        assert type(batch) is type(other)
        assert len(batch) == len(other)
        for a, b in zip(batch, other, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert torch.equal(a, b)


def test_a_batch_has_memory_of_its_own() -> None:
    data = TensorDataset(torch.arange(20.0))
    for (rows,) in PoissonLoader(data, sample_rate=1.0, steps=1):
        rows.zero_()
    assert torch.equal(data.tensors[0], torch.arange(20.0))


class Noisy(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        return tuple(t + 100 for t in super().__getitem__(index))


class Tagged(Tensor):
    """Somebody's own kind of tensor."""


@pytest.mark.parametrize(
    "data",
    [Noisy(torch.arange(20.0)), Subset(Noisy(torch.arange(40.0)), range(20)),
     TensorDataset(torch.arange(20.0).requires_grad_()), TensorDataset(torch.arange(20.0).as_subclass(Tagged))],
    ids=["subclass", "subset", "graph", "tensors"],
)  # fmt: skip
def test_what_is_more_than_tensors_is_fetched_row_by_row(data: Any) -> None:
    [batch] = PoissonLoader(data, sample_rate=1.0, steps=1)
    wanted = default_collate([data[index] for index in range(20)])
    assert torch.equal(batch[0], wanted[0])
    assert type(batch[0]) is type(wanted[0])
    assert batch[0].requires_grad == wanted[0].requires_grad


def test_rows_of_plain_tensors_are_not_asked_for_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    data = TensorDataset(torch.arange(20.0))
    loader = PoissonLoader(data, sample_rate=1.0, steps=1)
    monkeypatch.setattr(TensorDataset, "__getitem__", lambda self, index: pytest.fail("one by one"))
    assert len(next(iter(loader))[0]) == 20
