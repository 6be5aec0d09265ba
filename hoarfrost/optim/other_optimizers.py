"""Other optimizers beside the private one: gradients of a private model reach none of them.

A plain optimizer that steps over layers of a private model finds no gradients there, and would move nothing without a
word. That is only seen when it steps: torch calls a hook before every step of every optimizer.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hoarfrost.errors import NotPrivate
from hoarfrost.optim.beside import tell_of_other_training

if TYPE_CHECKING:
    from hoarfrost.optim.private import PrivateOptimizer

_private: weakref.WeakSet[PrivateOptimizer] = weakref.WeakSet()


def watch(optimizer: PrivateOptimizer) -> None:
    """From now on, a plain step over what ``optimizer`` or its model holds is refused."""
    if not _private:
        _hook.install()
    _private.add(optimizer)


class _Hook:
    """Asked before every step of every optimizer, once there is a private one."""

    def __init__(self) -> None:
        self._installed = False

    def install(self) -> None:
        if not self._installed:
            register_optimizer_step_pre_hook(self)
            self._installed = True

    def __call__(self, stepping: Optimizer, args: Any, kwargs: Any) -> None:
        for private in _private:
            if stepping is private:
                return
            bare = all(p.grad is None for p in private.parameters.values())
            if stepping is private.inner and bare and not private.stepping:
                raise NotPrivate(
                    "step() of the optimizer that was handed to make_private: it finds no gradients, and moves "
                    "nothing. Use the private one in the loop: model, optimizer, loader = private"
                )
            if stepping is not private.inner:
                _refuse_other_layers(stepping, private)
                tell_of_other_training(stepping, private, _private)


def _refuse_other_layers(stepping: Optimizer, private: PrivateOptimizer) -> None:
    """A gradient that somebody has put there is somebody's own business; none at all is a misunderstanding."""
    untrained = private.engine.untrained
    bare = {p for group in stepping.param_groups for p in group["params"] if p.grad is None and p.requires_grad}
    found = sorted(untrained[p] for p in bare if p in untrained)
    if found:
        raise NotPrivate(
            f"a second optimizer steps over {found[0]} of a private model, which no gradient reaches: it would never "
            "be trained. Hand make_private one optimizer with all layers that are trained (parameter groups may have "
            "learning rates of their own)"
        )


_hook = _Hook()
