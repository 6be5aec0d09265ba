"""Whether two data sets are made of the same examples, as far as that can be seen without reading them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset


def shares_data(one: Any, other: Any) -> bool:
    """Whether an example of one is an example of the other: the same object, or the same place in memory.

    Looks through loaders, subsets, concatenations, and whatever holds another data set. A copy is not recognised.

    >>> import torch
    >>> examples = TensorDataset(torch.randn(10, 3))
    >>> some, others = Subset(examples, range(4)), Subset(examples, range(4, 10))
    >>> shares_data(some, examples), shares_data(some, others)
    (True, False)
    >>> shares_data(TensorDataset(examples.tensors[0][3:]), some)
    True
    """
    return not set(_examples(one)).isdisjoint(_examples(other))


def _examples(data: Any) -> list[tuple[int, int]]:
    """What each example is made of, in order: an object (or a place in memory), and a number in it."""
    if isinstance(data, DataLoader):
        return _examples(data.dataset)
    if isinstance(data, Subset):
        whole = _examples(data.dataset)
        # What holds more or less than it gives could give any of it under that number.
        return [whole[index] for index in data.indices] if len(whole) == len(data.dataset) else whole  # type: ignore[arg-type]
    if isinstance(data, ConcatDataset):
        return [example for part in data.datasets for example in _examples(part)]
    if isinstance(data, TensorDataset):
        rows = data.tensors[0]
        step = rows.stride(0) * rows.element_size() if rows.dim() else 0
        return [(rows.data_ptr() + step * index, -1) for index in range(len(data))]
    inner = [held for value in getattr(data, "__dict__", {}).values() for held in _held(value)]
    if inner:
        return [example for part in inner for example in _examples(part)]
    return [(id(data), index) for index in range(len(data))]


def _held(value: Any) -> list[Dataset[Any]]:
    several = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else (value,)
    return [each for each in several if isinstance(each, Dataset)]
