"""The private optimizer: noise on the clipped sum, then any torch optimizer's own step."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hoarfrost.budget import Account
from hoarfrost.errors import InvalidValue, NotPrivate
from hoarfrost.gradients import ClippedSum, Engine
from hoarfrost.masks import Masks, PartialMask
from hoarfrost.mechanism import Coordinates, GaussianMechanism
from hoarfrost.observers import Released
from hoarfrost.optim import other_optimizers
from hoarfrost.optim.freeze_controller import FreezeController
from hoarfrost.optim.frozen_guard import FrozenGuard, zero_moves_nothing
from hoarfrost.optim.progress import KEY, Progress, progress_in, with_progress
from hoarfrost.optim.trainers import refuse_settings
from hoarfrost.sampling import PoissonLoader

_NOTHING = nullcontext()


class PrivateOptimizer(Optimizer):
    """Wraps ``inner``: the same parameter groups and state, so learning-rate schedulers and checkpoints work as ever.

    `step()` releases the logical batch's clipped sum with noise, divided by the expected batch size, as the gradient
    that ``inner`` then uses. While chunks of a logical batch are still to come it does nothing.

    Args:
        parameters: those that ``inner`` moves, by name.
        account: is charged before the noisy gradient exists, and may refuse; commits when the step is done.
        loader: that the batches come from; where it is belongs to the optimizer's state.

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
        loader: PoissonLoader,
        expected_batch: float,
    ):
        # Not Optimizer.__init__: it would make groups and state of its own, and there must be only one of each.
        self.inner, self.engine, self.mechanism, self.account = inner, engine, mechanism, account
        self.parameters, self.loader = dict(parameters), loader
        self.expected_batch = expected_batch
        self._moved = [id(p) for group in inner.param_groups for p in group["params"]]
        self.controller: FreezeController | None = None  # if anything is frozen
        self.ended = False  # a later stage has taken over the model
        self.stepped = False  # whether the last step() was a real one, or waits for further chunks of its batch
        self._rates: list[float] | None = None  # of learning, at the last step() that was none
        self._rates_told = False
        self.others_told = False  # that something else is trained on the loader's batches
        self._optimizer_step_pre_hooks: dict[int, Any] = OrderedDict()  # what torch's wrapper around step() looks for
        self._optimizer_step_post_hooks: dict[int, Any] = OrderedDict()
        self._patch_step_function()
        other_optimizers.watch(self)

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
        """The inner optimizer's, and under "hoarfrost" what was spent on the weights and where the run is.

        A plain optimizer takes it, too, and `torch.load(weights_only=True)` reads it.

        Guarantees:
            It is refused if anything but the optimizer has changed what a state_dict of the model holds since the first
            batch was handed over: the two are saved together.
        """
        if not self.ended:
            self.engine.state.check(everything=True)
        return with_progress(self.inner.state_dict(), Progress.of(self))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a private optimizer's state, as `Private.load` does; a plain one's is loaded as ever.

        Guarantees:
            What was spent on the weights that belong to the state is counted from now on, each step once, whether or
            not the rest can be loaded; nothing is refunded. A batch that was under way is void.
        """
        progress = progress_in(state_dict)
        rest = {key: value for key, value in state_dict.items() if key != KEY}
        if progress is None:
            self.inner.load_state_dict(rest)
            return
        with progress.restoring(self):
            self.inner.load_state_dict(rest)

    def let_go(self) -> None:
        """Takes rules and freezing off the model, which a later stage trains from now on."""
        self.ended = True
        self.engine.reset()
        self.engine.detach()
        if self.controller is not None:
            self.controller.thaw()

    def take_back(self) -> None:
        """As if `let_go` had not been; a batch that was under way is void."""
        self.ended = False
        self.engine.attach()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops gradients. Chunks of a logical batch that is still under way are kept."""
        self.inner.zero_grad(set_to_none)
        self.engine.sums.discard()

    def backward(self, losses: Tensor) -> None:
        """Differentiates one loss per example: in place of `loss.backward()`, where no mean can mix examples.

        Args:
            losses: [rows], one for each row that the model ran on (examples x views, or all that people
                brought): what torch's losses return with ``reduction="none"``, and `hoarfrost.losses` for weighted
                classes, padded tokens and several labels.

        Guarantees:
            Losses are added up, and `loss_reduction` does not matter: nothing is divided by the size of the batch, or
            by anything that examples have a say in. Any other shape or number is refused. So are, in the first batches,
            losses that bring a gradient to other examples than their own. What this cannot see is a number of other
            examples that has no gradient (`losses / losses.detach().max()`): `hoarfrost.check_independence` does.

        >>> import hoarfrost
        >>> data = torch.utils.data.TensorDataset(torch.randn(100, 3), torch.randint(2, (100,)))
        >>> model = nn.Linear(3, 2)
        >>> model, optimizer, loader = hoarfrost.make_private(
        ...     model, torch.optim.SGD(model.parameters(), lr=0.1), data,
        ...     batch_size=20, noise_multiplier=1.0, delta=1e-5)
        >>> for x, y in loader:
        ...     optimizer.backward(hoarfrost.losses.cross_entropy(model(x), y, weight=[1.0, 100.0]))
        ...     optimizer.step()
        """
        _refuse_other_shapes(losses)
        with self.engine.added_up(len(losses)):
            self.engine.apart.check(self.engine, losses)
            losses.sum().backward()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes the private step, if the logical batch is complete."""
        if self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks:
            return self._step_with_hooks(closure)
        return self._step(closure)

    # Torch would put its wrapper around `step`: for profiles, which have that of inner's step, and for hooks.
    step.hooked = True  # type: ignore[attr-defined]

    def _step(self, closure: Callable[[], Any] | None = None) -> Any:
        self.refuse_ended()
        loss = None
        if closure is not None:
            refuse_settings(closure)
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self._refuse_changed_parameters()
            self._look_at_learning_rates()
            self.engine.state.check()
            total = self.engine.release()
            self.stepped = total is not None
            self._rates = None if self.stepped else self._learning_rates()
            if total is not None:
                if self.controller is not None:
                    self.controller.apply()  # a batch that never met the model is a step, too
                self.account.charge()
                self._set_gradients(total)
                factor = total.clipping.learning_rate
                with self._guard(), _NOTHING if factor == 1 else _learning_rates_times(factor, self.inner):
                    other_optimizers.step(self.inner)
                if self.controller is not None:
                    self.controller.live_shares += self.controller.live_share
                self.account.commit()
        return loss

    _step_with_hooks = Optimizer.profile_hook_step(_step)

    def refuse_ended(self) -> None:
        """Refuses to go on with, or to save, weights that a later stage trains."""
        if self.ended:
            raise NotPrivate(
                "a later stage (make_private(..., after=this run)) trains this model now: its weights have more behind "
                "them than this run knows. Go on with, and save, what that make_private returned"
            )

    def _learning_rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.inner.param_groups if "lr" in group]

    def _look_at_learning_rates(self) -> None:
        """Says once if they change between chunks of one batch, as a scheduler's do that is stepped in the loop."""
        if self._rates is None or self._rates_told or self._rates == self._learning_rates():
            return
        self._rates_told = True
        warnings.warn(
            "the learning rate changed between chunks of one batch (max_physical_batch=): a scheduler is stepped for "
            "every chunk. Write `if private.stepped: scheduler.step()`",
            stacklevel=4,
        )

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What torch's GradScaler asks an optimizer before it steps."""
        raise NotPrivate(
            "GradScaler scales the loss, so that gradients would be clipped to a bound that many times smaller. It is "
            "not needed here: norms and sums are computed in float32. Use torch.autocast with bfloat16, and "
            'loss.backward() and optimizer.step() without a scaler (of a Lightning Trainer: precision="bf16-mixed")'
        )

    def _refuse_changed_parameters(self) -> None:
        moved = [id(p) for group in self.inner.param_groups for p in group["params"]]
        if moved != self._moved and set(moved) != set(map(id, self.parameters.values())):
            raise NotPrivate(
                "the parameters of the optimizer changed since make_private: they would be trained without privacy, or "
                "not at all. Build the optimizer with all parameters before make_private."
            )

    @property
    def _masks(self) -> Masks:
        return {} if self.controller is None else self.controller.masks

    def _guard(self) -> AbstractContextManager[None]:
        if self.controller is None or self.controller.freezer.velocity_flows or zero_moves_nothing(self.inner):
            return _NOTHING
        masks = {self.parameters[name]: mask for name, mask in self._masks.items()}
        return FrozenGuard(self.inner, {p: mask for p, mask in masks.items() if p.grad is not None})

    def _set_gradients(self, total: ClippedSum) -> None:
        """Releases the sum, and hands the noisy gradient of every live coordinate to the parameters."""
        for p in self.parameters.values():
            p.grad = None
        step = self.account.steps_taken - 1
        freezer = None if self.controller is None else self.controller.freezer
        everywhere = freezer is not None and freezer.observes
        flows = freezer is not None and freezer.velocity_flows
        # What somebody else took out of autograd is left alone; what the freezer did may be wanted all the same.
        frozen = self.controller.frozen if self.controller is not None and (everywhere or flows) else set()
        wanted = {name: p for name, p in self.parameters.items() if p.requires_grad or name in frozen}
        # Of a sum only what is live now is looked at: what is frozen may have changed since the backward pass.
        partly = self._masks
        masks = {name: partly.get(name, True) for name in wanted}
        looking = self.engine.looking(step) if self.engine.observers else ()
        clipped = {n: t.clone() for n, t in total.sums.items()} if looking else {}
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
                if mask is not True:
                    found = _zero_frozen(found, mask) if everywhere else _scattered(found, mask, p)
                p.grad = found if found.dtype is p.dtype else found.to(p.dtype)
        if noisy.statistics:
            live = [name for name in wanted if masks[name] is not False]
            self.engine.clipper.observe(step, total.clipping.heard(noisy.statistics, live), self.engine.info())
        if looking:
            handed = {name: p.grad for name, p in wanted.items() if p.grad is not None}
            released = Released(
                step, total.clipping, clipped, handed, noisy.statistics, noisy.stds, partly, self.engine.info()
            )
            for observer in looking:
                observer.on_release(released)

    def __repr__(self) -> str:
        return f"Private{self.inner!r}"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise NotPrivate(
            "a private optimizer cannot be copied or pickled: two of it would take the same steps. Use state_dict(), "
            "or save() of what make_private returned"
        )


def _refuse_other_shapes(losses: Any) -> None:
    """Messages do not tell the number of rows: the size of a batch is private."""
    if isinstance(losses, Tensor) and losses.dim() == 1:
        return
    if not isinstance(losses, Tensor):
        raise InvalidValue(f"optimizer.backward takes a tensor with one loss per example, got {type(losses).__name__}")
    shape = "[" + ", ".join(["rows", *map(str, losses.shape[1:])][: losses.dim()]) + "]"
    if losses.dim() == 0:
        got, remedy = "a single number", 'compute the loss with reduction="none", without .mean() or .sum()'
    elif losses.shape[1:].numel() == 1:
        got, remedy = f"the shape {shape}", "write losses.flatten()"
    else:
        got = f"the shape {shape}"
        remedy = (
            "average or add up each example's own, as losses.flatten(1).mean(1) does, and "
            "hoarfrost.losses.token_cross_entropy for padded tokens"
        )
    raise NotPrivate(
        f"optimizer.backward takes one loss per example, a tensor [rows], and got {got}: nobody knows then which "
        f"example a loss belongs to. Instead, {remedy}."
    )


@contextmanager
def _learning_rates_times(factor: float, optimizer: Optimizer) -> Iterator[None]:
    """For one step: what a scheduler has set is found again afterwards."""
    groups = [group for group in optimizer.param_groups if "lr" in group]
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
    return mask.scatter(live) if isinstance(mask, PartialMask) else live.new_zeros(p.shape)


def _zero_frozen(whole: Tensor, mask: Coordinates) -> Tensor:
    """The parameter's shape, with zeros at what is frozen."""
    if isinstance(mask, PartialMask):
        return mask.scatter(whole.flatten().index_select(0, mask.indices))
    return whole if mask else torch.zeros_like(whole)
