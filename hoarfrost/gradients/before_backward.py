"""Called before every backward pass: the one moment at which the whole graph of a loss can be read.

While a pass runs, nodes let go of what they saved, one after the other, and those of the loss come first. Torch has no
hook for the begin of a pass, so `torch.autograd.backward`, which `Tensor.backward` calls, is wrapped, once there is
somebody who wants to know. Who starts torch's engine in another way is not seen.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from hoarfrost.gradients.loss_graph import Start


class Listener(Protocol):
    def before(self, start: Start, weights: Any, *, everywhere: bool) -> Callable[[], None] | None:
        """A pass is about to start from ``start.tensors``, with these gradients; what is returned is called afterwards.

        Args:
            everywhere: it accumulates gradients in all leaves, and not in some that were named.
        """


_listeners: weakref.WeakSet[Any] = weakref.WeakSet()
_installed = False


def tell(listener: Listener) -> None:
    """From now on, tells ``listener`` of backward passes."""
    global _installed
    _listeners.add(listener)
    if not _installed:
        _installed = True
        torch.autograd.backward = _telling(torch.autograd.backward)


def _telling(plain: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(plain)
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        everywhere = kwargs.get("inputs") is None and (len(args) < 4 or args[3] is None)
        roots = (tensors,) if isinstance(tensors, Tensor) else tensors if isinstance(tensors, tuple | list) else ()
        weights = (grad_tensors,) if isinstance(grad_tensors, Tensor) else grad_tensors
        afterwards = []
        if all(isinstance(t, Tensor) for t in roots):
            start = Start(roots)  # read once for all of them: models that nobody uses any more listen for a while
            afterwards = [each.before(start, weights, everywhere=everywhere) for each in list(_listeners)]
            del start  # the pass may let go of the graph while it runs
        plain(tensors, grad_tensors, *args, **kwargs)
        for call in afterwards:
            if call is not None:
                call()

    return backward
