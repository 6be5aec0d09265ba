"""Hooks that the training loop puts on what the model returned: whether they treat each row by itself.

A hook that only looks is called as ever, once. One that changes the gradient is called again, with the rows of half of
the examples made large and made zero, and must do to the other rows what it did before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hoarfrost.errors import NotPrivate
from hoarfrost.gradients.probe import random_states_held
from hoarfrost.groups import Groups

Hook = Callable[[Tensor], Any]


class Aside:
    """While it is entered, none of these hooks is called, and gradients that tensors keep stay as they are."""

    def __init__(self, hooks: Sequence[dict[int, Hook]], tensors: Sequence[Tensor | None]) -> None:
        self._hooks = [(each, dict(each)) for each in hooks]
        self._kept = [(t, t.grad) for t in tensors if t is not None and t.retains_grad]

    def __enter__(self) -> None:
        for hooks, _ in self._hooks:
            hooks.clear()

    def __exit__(self, *_: Any) -> None:
        for hooks, before in self._hooks:
            hooks.update(before)
        for t, gradient in self._kept:
            t.grad = gradient


def watch(hooks: dict[int, Hook], dim: int, groups: Groups, rows: int) -> None:
    """Has the hooks on a tensor tried in the coming backward pass; ``dim`` counts its rows."""
    examples = groups.count(rows)
    if not hooks or examples < 2:
        return
    half = torch.arange(examples) % 2 == 0
    changed = groups.spread(half.float()) == 1
    for key, hook in list(hooks.items()):
        hooks[key] = _Tried(hook, dim, changed)


class _Tried:
    """A hook, called as it would be, and again if it changes the gradient."""

    def __init__(self, hook: Hook, dim: int, changed: Tensor) -> None:
        self.hook, self.dim, self.changed = hook, dim, changed

    def __call__(self, gradient: Tensor) -> Any:
        before = gradient.detach().clone()
        result = self.hook(gradient)
        if isinstance(result, Tensor) or not torch.equal(gradient.detach().nan_to_num(), before.nan_to_num()):
            self._try(before)
        return result

    @torch.no_grad()
    def _try(self, gradient: Tensor) -> None:
        gradient = gradient.nan_to_num()
        row = self.changed.to(gradient.device).view(*[-1 if d == self.dim else 1 for d in range(gradient.dim())])
        large = 1e6 * (gradient.abs().max() + 1) * (1 + gradient.sign())
        try:
            as_it_is = self._others(gradient)
            others = [self._others(torch.where(row, new, gradient)) for new in (large, torch.zeros_like(gradient))]
        except (RuntimeError, ValueError, IndexError, TypeError):
            return  # it insists on something, and nothing can be told
        for other in others:
            if other.shape != as_it_is.shape or not torch.allclose(
                as_it_is, other, rtol=1e-3, atol=1e-6 * float(as_it_is.abs().max()), equal_nan=True
            ):
                name = getattr(self.hook, "__qualname__", type(self.hook).__name__)
                raise NotPrivate(
                    f"the hook {name}, which was registered on the model's output, makes of one example's gradient "
                    "something that depends on other examples of the batch. Let a hook treat every row by itself: "
                    "gradient / gradient.norm(dim=1, keepdim=True), say, or a constant factor; norms are clipped "
                    "by the library."
                )

    def _others(self, gradient: Tensor) -> Tensor:
        """What the hook makes of the rows that are not changed."""
        devices = [gradient.device] if gradient.is_cuda else []
        handed = gradient.clone()
        with random_states_held(devices):  # every trial draws the same numbers
            result = self.hook(handed)
        found = result if isinstance(result, Tensor) else handed
        return found.movedim(self.dim, 0)[~self.changed.to(found.device)]
