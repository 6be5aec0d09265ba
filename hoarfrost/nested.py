"""Batches come as tensors in dictionaries, tuples, lists: the one place that knows how to walk them."""

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from torch import Tensor


def map_tensors(fn: Callable[[Tensor], Any], batch: Any) -> Any:
    """The same structure with `fn` applied to every tensor in it; anything else stays as it is.

    Mappings (also Hugging Face's `BatchEncoding`), tuples, named tuples, lists and dataclasses keep their
    type, and are new objects.

    >>> import torch
    >>> map_tensors(lambda t: tuple(t.shape), {"x": torch.zeros(2, 3), "rest": [torch.zeros(2), "name"]})
    {'x': (2, 3), 'rest': [(2,), 'name']}
    """
    if isinstance(batch, Tensor):
        return fn(batch)
    children = parts(batch)
    if children is None:
        return batch
    return rebuild(batch, {key: map_tensors(fn, child) for key, child in children.items()})


def parts(batch: Any) -> dict[Any, Any] | None:
    """What a container holds, by key, position or field; None for anything that is not a container.

    >>> parts(("a", "b"))
    {0: 'a', 1: 'b'}
    """
    if isinstance(batch, Mapping):
        return dict(batch)
    if isinstance(batch, tuple | list):
        return dict(enumerate(batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return None


def rebuild(batch: Any, children: dict[Any, Any]) -> Any:
    """A container like `batch` that holds `children` instead; attributes of its own are kept.

    >>> rebuild(("a", "b"), {0: 1, 1: 2})
    (1, 2)
    """
    if isinstance(batch, MutableMapping):
        twin = copy.copy(batch)  # not `type(batch)(...)`: a subclass may want other arguments
        for key, child in children.items():  # not `update`, which the outputs of transformers refuse
            twin[key] = child
        return twin
    if isinstance(batch, Mapping):
        return type(batch)(children)  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*children.values())
    if isinstance(batch, tuple | list):
        return type(batch)(children.values())
    twin = copy.copy(batch)
    for name, child in children.items():
        object.__setattr__(twin, name, child)  # also where the dataclass is frozen: the twin is nobody's yet
    return twin
