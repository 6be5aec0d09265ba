"""The private optimizer: noise on the clipped sum, then any torch optimizer's own step."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from hoarfrost.errors import NotPrivate
from hoarfrost.freezing.switch import Held, Switch
from hoarfrost.gradients import Engine
from hoarfrost.masks import Masks, PartialMask
from hoarfrost.noise import Noise


class PrivateOptimizer(Optimizer):
    """Wraps ``inner``: the same parameter groups and state, so learning-rate schedulers and checkpoints work as ever.

    `step()` releases the logical batch's clipped sum with noise, divided by the expected batch size, as the gradient
    that ``inner`` then uses. While chunks of a logical batch are still to come it does nothing.

    Guarantees:
        Every live coordinate gets noise of standard deviation noise_multiplier × sensitivity, once a step, whether or
        not any example reached it; the sensitivity is the one that came with the sum. ``charge`` is called before the
        noisy gradient exists, and may refuse; ``settle`` when the step is done. What is not live has no gradient and
        does not move by one bit, and its optimizer state stands still (an entry for a whole row, as Adafactor has, when
        all of the row rests), unless the freezer lets its velocity flow.
    """

    def __init__(
        self,
        inner: Optimizer,
        engine: Engine,
        noise: Noise,
        *,
        parameters: dict[str, nn.Parameter],
        noise_multiplier: float,
        expected_batch: float,
        charge: Callable[[], None],
        settle: Callable[[], None] = lambda: None,
        switch: Switch | None = None,
    ):
        # Not Optimizer.__init__: it would make groups and state of its own, and there must be only one of each.
        self.inner, self.engine, self.noise = inner, engine, noise
        self.parameters = list(parameters.values())
        self._noise_multiplier, self.expected_batch = noise_multiplier, expected_batch
        self._charge, self._settle = charge, settle
        self.names = {p: name for name, p in parameters.items()}
        self.switch = switch
        self._optimizer_step_pre_hooks: dict[int, Any] = OrderedDict()  # what torch's wrapper around step() looks for
        self._optimizer_step_post_hooks: dict[int, Any] = OrderedDict()
        self._patch_step_function()

    # One set of parameter groups and one state, inner's; a scheduler that replaces an entry replaces it there.
    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.inner.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self.inner.defaults

    @property
    def noise_multiplier(self) -> float:
        """Fixed for the run: what was spent is computed from it."""
        return self._noise_multiplier

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: the new parameters would be trained without clipping and without noise."""
        raise NotPrivate(
            "add_param_group on a private optimizer: its parameters would be trained without privacy. Build the "
            "optimizer with all parameters, and switch them off and on with requires_grad_()."
        )

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict(state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops gradients. Chunks of a logical batch that is still under way are kept."""
        self.inner.zero_grad(set_to_none)
        self.engine.batch.discard()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes the private step, if the logical batch is complete."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self._refuse_strangers()
            released = self.engine.release()
            if released is not None:
                if self.switch is not None:
                    self.switch.apply()  # a batch that never met the model is a step, too
                self._charge()
                self._set_gradients(released.sums, math.hypot(*released.sensitivity))
                with self._frozen_stand_still():
                    self.inner.step()
                if self.switch is not None:
                    self.switch.shares += self.switch.share
                self._settle()
        return loss

    def _refuse_strangers(self) -> None:
        moved = {p for group in self.inner.param_groups for p in group["params"]}
        if moved != set(self.parameters):
            raise NotPrivate(
                "the parameters of the optimizer changed since make_private: they would be trained without privacy, or "
                "not at all. Build the optimizer with all parameters before make_private."
            )

    def _frozen_stand_still(self) -> AbstractContextManager[None]:
        if self.switch is None or self.switch.freezer.velocity_flows or _moves_nothing_by_zero(self.inner):
            return nullcontext()
        return Held(self.inner, {p: mask for p, mask in self.switch.masks.items() if p.grad is not None})

    def _set_gradients(self, sums: dict[nn.Parameter, Tensor], sensitivity: float) -> None:
        for p in self.parameters:
            p.grad = None
        masks = {} if self.switch is None else self.switch.masks
        everywhere = self.switch is not None and self.switch.freezer.observes
        flows = self.switch is not None and self.switch.freezer.velocity_flows
        # What somebody else took out of autograd is left alone; what the freezer did may be wanted all the same.
        resting = self.switch.resting if self.switch is not None and (everywhere or flows) else set()
        wanted = [p for p in self.parameters if p.requires_grad or p in resting]
        whole = {p: sums[p] if p in sums else torch.zeros_like(p, dtype=_at_least_float32(p)) for p in wanted}
        # Of a sum only what is live now is looked at: what rests may have changed since the backward pass.
        live = {p: _live(whole[p], masks.get(p, True)) for p in wanted}
        std = self.noise_multiplier * sensitivity
        if everywhere:
            self._observe(live, std, masks)
        else:
            self.noise.add_(list(live.values()), [std] * len(live))
        torch._foreach_div_(list(live.values()), self.expected_batch)
        for p in wanted:
            part = masks.get(p, True)
            if part is not False or flows:
                p.grad = _everything(live[p], part, p).to(p.dtype)

    def _observe(self, live: dict[nn.Parameter, Tensor], std: float, masks: Masks) -> None:
        """One noise for all coordinates: the freezer sees it all, and live ones move by it."""
        assert self.switch is not None
        noisy = {p: _everything(live[p], masks.get(p, True), p) for p in live}
        self.noise.add_(list(noisy.values()), [std] * len(noisy))
        self.switch.observe({self.names[p]: gradient / self.expected_batch for p, gradient in noisy.items()})
        live.update({p: _live(gradient, masks.get(p, True)) for p, gradient in noisy.items()})

    def __repr__(self) -> str:
        return f"Private{self.inner!r}"


def _moves_nothing_by_zero(optimizer: Optimizer) -> bool:
    """Whether it is plain SGD: w + (−lr) · 0 is w, bit for bit, and there is no state."""
    if type(optimizer) is not SGD:
        return False
    quiet = (not (group["momentum"] or group["weight_decay"] or group["maximize"]) for group in optimizer.param_groups)
    return all(quiet) and all(math.isfinite(group["lr"]) for group in optimizer.param_groups)


def _live(gradient: Tensor, part: bool | PartialMask) -> Tensor:
    """What is live of it, one number after the other where it is not everything."""
    if isinstance(part, PartialMask):
        return gradient.flatten().index_select(0, part.indices)
    return gradient if part else gradient.new_empty(0)


def _everything(live: Tensor, part: bool | PartialMask, p: nn.Parameter) -> Tensor:
    """The same with zeros at what rests."""
    if isinstance(part, PartialMask):
        return part.scatter(live)
    return live if part else live.new_zeros(p.shape)


def _at_least_float32(p: Tensor) -> torch.dtype:
    return torch.promote_types(p.dtype, torch.float32)
