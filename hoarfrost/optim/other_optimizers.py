"""Other optimizers beside the private one: gradients of private examples reach none of them.

A plain optimizer that steps over layers of a private model finds no gradients there, and would move nothing without a
word. One that steps over something else that the loss went through (a head, a temperature, an encoder below the model)
finds gradients of private examples, neither clipped nor with noise. Both are only seen when it steps: torch calls a
hook before every step of every optimizer.
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


def step(inner: Optimizer) -> None:
    """A private optimizer takes this one's step, of which nothing need be asked."""
    before, _hook.own = _hook.own, inner
    try:
        inner.step()
    except TypeError as error:
        if "'NoneType' object is not callable" not in str(error):
            raise
        raise NotPrivate(
            f"{type(inner).__name__}.step() asks for a closure, which it would call for further passes over the batch "
            "(as SAM and LBFGS do): each would be a release of its own. Take an optimizer that moves by one gradient, "
            "such as SGD or AdamW"
        ) from error
    finally:
        _hook.own = before


class _Hook:
    """Asked before every step of every optimizer, once there is a private one."""

    def __init__(self) -> None:
        self._installed = False
        self.own: Optimizer | None = None

    def install(self) -> None:
        if not self._installed:
            register_optimizer_step_pre_hook(self)
            self._installed = True

    def __call__(self, stepping: Optimizer, args: Any, kwargs: Any) -> None:
        if stepping is self.own or stepping in _private:
            return
        inner = any(stepping is private.inner for private in _private)
        for private in _private:
            bare = all(p.grad is None for p in private.parameters.values())
            if stepping is private.inner and bare:
                raise NotPrivate(
                    "step() of the optimizer that was handed to make_private: it finds no gradients, and moves "
                    "nothing. Use the private one in the loop: model, optimizer, loader = private"
                )
            if not inner:
                _refuse_other_layers(stepping, private)
                tell_of_other_training(stepping, private, _private)
                _refuse_private_gradients(stepping, private)


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


def _refuse_private_gradients(stepping: Optimizer, private: PrivateOptimizer) -> None:
    outside = private.engine.loss_watch.outside
    outside.stepping = True
    found = outside.of_private_examples(p for group in stepping.param_groups for p in group["params"])
    if found is not None:
        raise NotPrivate(
            f"another optimizer steps over a parameter of shape {list(found.shape)} that is not part of the private "
            "model, and whose gradient comes from private examples by a backward pass through the model: neither "
            "clipped nor with noise, and no epsilon covers it. Put it into the model: one nn.Module that holds "
            "everything that is trained (a head, the weights of losses, a temperature, an encoder), and one optimizer "
            "that make_private is given. If it shall not be trained on private examples, detach() it from their loss, "
            "or call its zero_grad() before its own backward pass."
        )


_hook = _Hook()
