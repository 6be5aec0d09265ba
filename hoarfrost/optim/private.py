"""The private optimizer: noise on the clipped sum, then any torch optimizer's own step."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hoarfrost.budget import Account
from hoarfrost.errors import NotPrivate
from hoarfrost.gradients import ClippedSum, Engine
from hoarfrost.masks import Masks, PartialMask
from hoarfrost.mechanism import Coordinates, GaussianMechanism
from hoarfrost.observers import Released
from hoarfrost.optim.freeze_controller import FreezeController
from hoarfrost.optim.frozen_guard import FrozenGuard, zero_moves_nothing


class PrivateOptimizer(Optimizer):
    """Wraps ``inner``: the same parameter groups and state, so learning-rate schedulers and checkpoints work as ever.

    `step()` releases the logical batch's clipped sum with noise, divided by the expected batch size, as the gradient
    that ``inner`` then uses. While chunks of a logical batch are still to come it does nothing.

    Args:
        parameters: those that ``inner`` moves, by name.
        account: is charged before the noisy gradient exists, and may refuse; commits when the step is done.

    Guarantees:
        Every live coordinate gets noise once a step, whether or not any example reached it; how much follows from the
        clipping that came with the sum (`GaussianMechanism`). What is frozen has no gradient and does not move by one
        bit, and its optimizer state does not change (an entry for a whole row, as Adafactor has, when all of the row is
        frozen), unless the freezer lets its velocity flow.
    """

    def __init__(
        self,
        inner: Optimizer,
        engine: Engine,
        mechanism: GaussianMechanism,
        account: Account,
        *,
        parameters: Mapping[str, nn.Parameter],
        expected_batch: float,
    ):
        # Not Optimizer.__init__: it would make groups and state of its own, and there must be only one of each.
        self.inner, self.engine, self.mechanism, self.account = inner, engine, mechanism, account
        self.parameters = dict(parameters)
        self.expected_batch = expected_batch
        self.controller: FreezeController | None = None  # if anything is frozen
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
        return self.mechanism.noise_multiplier

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
        self.engine.sums.discard()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes the private step, if the logical batch is complete."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self._refuse_changed_parameters()
            self.engine.state.check()
            total = self.engine.release()
            if total is not None:
                if self.controller is not None:
                    self.controller.apply()  # a batch that never met the model is a step, too
                self.account.charge()
                self._set_gradients(total)
                with self._guard(), _learning_rates_times(total.clipping.learning_rate, self.inner):
                    self.inner.step()
                if self.controller is not None:
                    self.controller.live_shares += self.controller.live_share
                self.account.commit()
        return loss

    def _refuse_changed_parameters(self) -> None:
        moved = {p for group in self.inner.param_groups for p in group["params"]}
        if moved != set(self.parameters.values()):
            raise NotPrivate(
                "the parameters of the optimizer changed since make_private: they would be trained without privacy, or "
                "not at all. Build the optimizer with all parameters before make_private."
            )

    @property
    def _masks(self) -> Masks:
        return {} if self.controller is None else self.controller.masks

    def _guard(self) -> AbstractContextManager[None]:
        if self.controller is None or self.controller.freezer.velocity_flows or zero_moves_nothing(self.inner):
            return nullcontext()
        masks = {self.parameters[name]: mask for name, mask in self._masks.items()}
        return FrozenGuard(self.inner, {p: mask for p, mask in masks.items() if p.grad is not None})

    def _set_gradients(self, total: ClippedSum) -> None:
        """Releases the sum, and hands the noisy gradient of every live coordinate to the parameters."""
        for p in self.parameters.values():
            p.grad = None
        step, info = self.account.steps_taken - 1, self.engine.info()
        freezer = None if self.controller is None else self.controller.freezer
        everywhere = freezer is not None and freezer.observes
        flows = freezer is not None and freezer.velocity_flows
        # What somebody else took out of autograd is left alone; what the freezer did may be wanted all the same.
        frozen = self.controller.frozen if self.controller is not None and (everywhere or flows) else set()
        wanted = {name: p for name, p in self.parameters.items() if p.requires_grad or name in frozen}
        # Of a sum only what is live now is looked at: what is frozen may have changed since the backward pass.
        masks = {name: self._masks.get(name, True) for name in wanted}
        clipped = {n: t.clone() for n, t in total.sums.items()} if self.engine.observers else {}
        if everywhere:  # one noise for all coordinates: the freezer sees it all, and live ones move by it
            total.sums = {name: _zero_frozen(total.sums[name], masks[name]) for name in wanted if name in total.sums}
            noisy = self.mechanism.release(total, wanted, {})
        else:
            noisy = self.mechanism.release(total, wanted, masks)
        gradients = noisy.values
        if gradients:  # or nothing is trained in this step
            torch._foreach_div_(list(gradients.values()), self.expected_batch)
        if everywhere:
            assert self.controller is not None
            self.controller.observe(step, gradients)
        for name, p in wanted.items():
            if masks[name] is not False or flows:
                found, mask = gradients[name], masks[name]
                p.grad = (_zero_frozen(found, mask) if everywhere else _scattered(found, mask, p)).to(p.dtype)
        if noisy.statistics:
            live = [name for name in wanted if masks[name] is not False]
            self.engine.clipper.observe(step, total.clipping.heard(noisy.statistics, live), info)
        for observer in self.engine.observers:
            handed = {name: p.grad for name, p in wanted.items() if p.grad is not None}
            observer.on_release(Released(step, total.clipping, clipped, handed, noisy.statistics, noisy.stds))

    def __repr__(self) -> str:
        return f"Private{self.inner!r}"


@contextmanager
def _learning_rates_times(factor: float, optimizer: Optimizer) -> Iterator[None]:
    """For one step: what a scheduler has set is found again afterwards."""
    groups = [group for group in optimizer.param_groups if "lr" in group] if factor != 1 else []
    before = [group["lr"] for group in groups]
    try:
        for group in groups:
            group["lr"] = group["lr"] * factor
        yield
    finally:
        for group, rate in zip(groups, before, strict=True):
            group["lr"] = rate


def _scattered(live: Tensor, mask: Coordinates, p: nn.Parameter) -> Tensor:
    """From live coordinates, one after the other, to the parameter's shape, with zeros at what is frozen."""
    if isinstance(mask, PartialMask):
        return mask.scatter(live)
    return live if mask else live.new_zeros(p.shape)


def _zero_frozen(whole: Tensor, mask: Coordinates) -> Tensor:
    """The parameter's shape, with zeros at what is frozen."""
    if isinstance(mask, PartialMask):
        return mask.scatter(whole.flatten().index_select(0, mask.indices))
    return whole if mask else torch.zeros_like(whole)
