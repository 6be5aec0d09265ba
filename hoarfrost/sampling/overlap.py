"""Which examples data sets are made of, as far as that can be seen without reading them: the same one twice is told."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

Places = npt.NDArray[np.int64]  # [examples, 2]: an object, or a place in memory, and a number in it

MOST = 1000  # entries of a list that are asked whether they are data sets: others are a list of examples


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
    both = np.concatenate([np.unique(_places(each), axis=0) for each in (one, other)])
    return _any_twice(both)


def tell_of_repeats(data: Any) -> None:
    """Warns of a data set in which an example is seen to be more than once: each time counts as another example.

    >>> import torch
    >>> with warnings.catch_warnings(record=True, action="always") as said:
    ...     tell_of_repeats(Subset(TensorDataset(torch.randn(10, 3)), [0, 3, 3]))
    >>> "person=" in str(said[0].message)
    True
    """
    if _is_one_by_one(data) or not _any_twice(_places(data, of_each=True)):
        return
    warnings.warn(
        "the data set holds an example more than once (a Subset with repeated indices, or the same data set or object "
        "several times in a ConcatDataset or a list). Each time counts as an example of its own, so that one that is "
        "there k times is protected k times less than epsilon says. Have each of them once, with views= for several "
        "augmentations of each; or make those that are one example one person's: person= with the same id for each of "
        "them, and per_person=",
        stacklevel=4,
    )


def _is_one_by_one(data: Any) -> bool:
    """Whether it is sure without a look that no example is in it twice."""
    if isinstance(data, Subset):
        return isinstance(data.indices, range) and _is_one_by_one(data.dataset)
    return not isinstance(data, ConcatDataset | list) and _inner(data) is None


def _any_twice(places: Places) -> bool:
    ordered = places[np.lexsort(places.T)]
    return bool((ordered[1:] == ordered[:-1]).all(1).any())


def _places(data: Any, of_each: bool = False) -> Places:
    """What each example is made of, in order.

    Args:
        of_each: examples of data sets that hold others in a way of their own are those of one that is as long, or their
            own; else all that they could be of.
    """
    if isinstance(data, DataLoader):
        return _places(data.dataset, of_each)
    if isinstance(data, Subset):
        whole = _places(data.dataset, of_each)
        # What holds more or less than it gives could give any of it under that number.
        return whole[np.asarray(data.indices, dtype=np.int64)] if len(whole) == len(data.dataset) else whole  # type: ignore[arg-type]
    if isinstance(data, ConcatDataset):
        return np.concatenate([_places(part, of_each) for part in data.datasets])
    numbers = np.arange(len(data), dtype=np.int64)
    if isinstance(data, TensorDataset) and (rows := data.tensors[0]).dim() and (not of_each or rows.stride(0)):
        return _beside(rows.data_ptr() + rows.stride(0) * rows.element_size() * numbers, -1)
    if isinstance(data, list) and of_each:
        own = np.fromiter((isinstance(each, Tensor | np.ndarray | tuple | list | dict) for each in data), np.bool_)
        ids = np.fromiter(map(id, data), np.int64)
        return np.stack([np.where(own, ids, id(data)), np.where(own, -2, numbers)], 1)
    inner = _held(data) if not of_each else [] if (only := _inner(data)) is None else [only]
    if inner:
        return np.concatenate([_places(part, of_each) for part in inner])
    return _beside(id(data), numbers)


def _beside(objects: Any, numbers: Any) -> Places:
    return np.stack(np.broadcast_arrays(objects, numbers), 1).astype(np.int64, copy=False)


def _inner(data: Any) -> Dataset[Any] | None:
    """The one data set that it holds, of as many examples: each of its own is that one's in another form."""
    held = {id(each): each for each in _held(data)}
    (only,) = held.values() if len(held) == 1 else (None,)
    return only if only is not None and hasattr(only, "__len__") and len(only) == len(data) else None


def _held(data: Any) -> list[Dataset[Any]]:
    found: list[Dataset[Any]] = []
    for value in getattr(data, "__dict__", {}).values():
        several = list(value.values()) if isinstance(value, Mapping) else value
        several = several[:MOST] if isinstance(several, list | tuple) else [several]
        found += [each for each in several if isinstance(each, Dataset)]
    return found
