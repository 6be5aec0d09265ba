"""What the checks of clipping styles and freezers share: settings show in the repr, and state is compared."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from hoarfrost.testing.findings import Findings


def check_repr(found: Findings, component: object, why: str) -> None:
    """The repr shows every setting that the constructor takes, and no address.

    Args:
        why: what depends on it, for the message.
    """
    words = repr(component)
    if " at 0x" in words or repr(copy.copy(component)) != words:
        found.add(f"its repr is {words}", f"Let the repr show its settings and nothing else: by it {why}")
        return
    for name in inspect.signature(type(component)).parameters:
        value = getattr(component, name, None)
        if isinstance(value, bool | int | float | str):
            other = copy.copy(component)
            object.__setattr__(other, name, _other(value))
            if repr(other) == words:
                found.add(f"its repr, {words}, does not show {name}", f"Let the repr show all settings: by it {why}")


def _other(value: bool | int | float | str) -> object:
    return not value if isinstance(value, bool) else value + "." if isinstance(value, str) else value + 1


def same_tensors(one: Mapping[Any, Tensor], other: Mapping[Any, Tensor]) -> bool:
    """Whether both hold the same numbers; NaN is the same as NaN.

    >>> import torch
    >>> same_tensors({"a": torch.tensor([torch.nan])}, {"a": torch.tensor([torch.nan])})
    True
    """
    return one.keys() == other.keys() and all(
        a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
        for a, b in ((one[name], other[name]) for name in one)
    )
