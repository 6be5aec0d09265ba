"""Rows of tensors that are fetched all at once, and not one by one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset, default_collate


class AtOnce:
    """A `TensorDataset` whose rows come as the batch that `default_collate` would make of them.

    One by one, fetching a thousand small rows takes longer than a step of a small model.
    """

    def __init__(self, dataset: TensorDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        """What DataLoader asks for in place of single rows."""
        rows = torch.tensor(indices)
        return [t.index_select(0, rows.to(t.device)) for t in self.dataset.tensors]


def loader_of(dataset: Any, **settings: Any) -> DataLoader:
    """A DataLoader that fetches at once what can be fetched so, with the same batches.

    >>> from torch.utils.data import TensorDataset
    >>> data = TensorDataset(torch.arange(5))
    >>> [batch] = loader_of(data, batch_sampler=[[3, 1]])
    >>> batch
    [tensor([3, 1])]
    """
    if settings.get("collate_fn", default_collate) is not default_collate or not _is_plain(dataset):
        return DataLoader(dataset, **settings)
    settings["collate_fn"] = _as_it_is
    return DataLoader(AtOnce(dataset), **settings)  # type: ignore[arg-type] # all that a map-style data set needs


def _is_plain(dataset: Any) -> bool:
    """Whether rows are nothing but rows of tensors: no class of somebody's own, no graph."""
    if type(dataset) is not TensorDataset:
        return False
    return all(type(t) is Tensor and t.layout == torch.strided and not t.requires_grad for t in dataset.tensors)


def _as_it_is(batch: list[Tensor]) -> list[Tensor]:
    return batch
