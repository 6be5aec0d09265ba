"""A batch without examples. Poisson sampling gives one now and then, and its step is as real as any other."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from hoarfrost.nested import parts, rebuild

TRIED = 16  # examples, until the collate function makes something of one: others cannot be read, and are dropped


def empty_batch_of(dataset: Any, collate: Callable[[list[Any]], Any], batch_first: bool = True) -> Any:
    """`empty_batch` of the first of a data set's examples that can be collated."""
    *others, last = range(min(len(dataset), TRIED))
    for index in others:
        try:
            return empty_batch(collate, dataset[index], batch_first)
        except Exception:
            continue
    return empty_batch(collate, dataset[last], batch_first)


def empty_batch(collate: Callable[[list[Any]], Any], example: Any, batch_first: bool = True) -> Any:
    """What `collate` would return for no example at all, if it could.

    The example is collated once and twice over: what becomes longer counts examples, and is cut to length
    zero. Where that shows nothing (a collate function that pads to a fixed size), the examples lie along
    dimension 0, or, unless `batch_first`, along dimension 1 of tensors that have one.

    >>> import torch
    >>> from torch.utils.data import default_collate
    >>> empty_batch(default_collate, {"image": torch.ones(3, 8, 8), "name": "cat"})["image"].shape
    torch.Size([0, 3, 8, 8])
    """
    # Copies, because some collate functions take their input apart.
    one = collate([copy.deepcopy(example)])
    two = collate([copy.deepcopy(example), copy.deepcopy(example)])
    return _emptied(one, two, batch_first)


def _emptied(one: Any, two: Any, batch_first: bool) -> Any:
    if isinstance(one, Tensor | np.ndarray):
        if one.ndim == 0:
            return one
        along = _example_dimension(tuple(one.shape), tuple(two.shape), batch_first)
        if isinstance(one, Tensor):
            return one.narrow(along, 0, 0).clone()  # a copy lets go of the example's memory
        return np.take(one, [], axis=along)
    in_one, in_two = parts(one), parts(two)
    if in_one is None or in_two is None:
        return one
    if isinstance(one, tuple | list) and len(in_one) != len(in_two):
        return type(one)()  # one entry per example: names, say
    return rebuild(one, {key: _emptied(child, in_two[key], batch_first) for key, child in in_one.items()})


def _example_dimension(one: tuple[int, ...], two: tuple[int, ...], batch_first: bool) -> int:
    if len(one) == len(two):
        longer = [dim for dim, (a, b) in enumerate(zip(one, two, strict=True)) if a != b]
        if len(longer) == 1:
            return longer[0]
    return 0 if batch_first or len(one) == 1 else 1
