"""Gradients that autograd itself brings to a parameter: they came around the rules, and belong to no example."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hoarfrost.errors import NotPrivate


def refuse_plain_gradients(p: nn.Parameter, name: str, paused: Callable[[], bool]) -> RemovableHandle:
    """From now on, a plain gradient stops the backward pass that brings it, unless rules are ``paused``."""

    def refuse(gradient: Tensor) -> None:
        if paused():
            return
        if _along(gradient, p):
            raise NotPrivate(
                f"the loss has a penalty on the parameter {name} itself (L2), which no example is the reason of. Take "
                "it out of the loss, and give the optimizer weight_decay= instead, which needs no noise."
            )
        raise NotPrivate(
            f"the parameter {name} is used outside of the module that holds it, so its gradient cannot be attributed "
            "to individual examples. Call the module instead of reading its parameter, or tie two modules by giving "
            "them the same Parameter: head.weight = embedding.weight. A penalty on weights belongs into the optimizer: "
            "weight_decay=. Learned weights of losses are returned by the model, with a row for each example: "
            "self.log_variances.expand(len(x), -1). PEFT's AdaLoRA adds a penalty (orth_reg_weight) to the loss that "
            "the model returns: compute the loss from its logits, and hand it no labels."
        )

    live = p.requires_grad
    hook: RemovableHandle = p.requires_grad_().register_hook(refuse)
    p.requires_grad_(live)
    return hook


def refuse_other_hooks(p: nn.Parameter, name: str, own: RemovableHandle) -> None:
    """Refuses a parameter on which somebody else has put a hook, for which there is nothing to be called with."""
    others = [*(p._backward_hooks or ()), *(getattr(p, "_post_accumulate_grad_hooks", None) or ())]
    if any(key != own.id for key in others):
        raise NotPrivate(
            f"the parameter {name} has a hook of its own (register_hook or register_post_accumulate_grad_hook), which "
            "would never be called: no gradient of a batch reaches a parameter before it is clipped and has noise. "
            "Take the hook off. To train some of a parameter's numbers alone, freeze the others (freeze=, a freezer "
            "with a mask: docs/extending.md); to look at gradients, use Private.observe"
        )


def _along(gradient: Tensor, p: nn.Parameter) -> bool:
    """Whether the gradient is a multiple of the parameter: that of a penalty on its norm."""
    g, w = gradient.detach().double().flatten(), p.detach().double().flatten()
    return bool(g @ w > 0.999 * g.norm() * w.norm() > 0)
