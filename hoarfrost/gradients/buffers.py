"""Large buffers that are used again from step to step: on a CPU, fresh pages cost more than the arithmetic in them."""

from __future__ import annotations

import weakref
from math import prod
from typing import Any

import torch
from torch import Tensor

LARGEST = 1 << 22  # what is larger would add too much to the memory that the next forward pass needs
_free: dict[torch.dtype, list[Tensor]] = {}


def lend(owner: Any, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """An uninitialised tensor of ``shape`` that belongs to ``owner`` as long as that lives, and to the next one after.

    On other devices, whose allocator keeps its pages, this is a plain `new_empty`.
    """
    size, free = prod(shape), _free.setdefault(like.dtype, [])
    if like.device.type != "cpu" or size > LARGEST:
        return like.new_empty(shape)
    fitting = [buffer for buffer in free if size <= buffer.numel() <= 4 * size + 4096]
    if fitting:
        buffer = min(fitting, key=Tensor.numel)
        free[:] = [other for other in free if other is not buffer]
    else:
        if free:
            free.pop()  # make room before asking for more
        buffer = like.new_empty(size)
    weakref.finalize(owner, free.append, buffer)
    return buffer[:size].view(shape)
