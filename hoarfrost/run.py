"""A private run: model, optimizer, loader and account, and how they work together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from hoarfrost import budget
from hoarfrost.budget import Account, Allowance, Gaussian, Plan
from hoarfrost.errors import Diverged, NotPrivate
from hoarfrost.freezing import Freezer
from hoarfrost.gradients.frozen_cache import FrozenCache
from hoarfrost.info import RunInfo, head_of, layers_of, says_pretrained
from hoarfrost.observers import Observer
from hoarfrost.optim import PrivateOptimizer
from hoarfrost.query import Query
from hoarfrost.sampling import PoissonLoader


class Private(tuple[nn.Module, PrivateOptimizer, PoissonLoader]):
    """What `make_private` returns: a tuple of model, optimizer and loader; its account knows what was spent."""

    def __new__(cls, model: nn.Module, optimizer: PrivateOptimizer, loader: PoissonLoader, account: Account) -> Private:
        return super().__new__(cls, (model, optimizer, loader))

    def __init__(self, model: nn.Module, optimizer: PrivateOptimizer, loader: PoissonLoader, account: Account) -> None:
        self.model, self.optimizer, self.loader, self.account = model, optimizer, loader, account
        self.frozen_cache: FrozenCache | None = None  # what it holds is private
        self.loss: Callable[[Any, Any], Tensor] | None = None  # of output and batch, if make_private was told
        # Of the model and a batch of one example, where a trainer knows better how that is computed.
        self.loss_of_one: Callable[[nn.Module, Any], Tensor] | None = None
        self._info: RunInfo | None = None
        self.loader.on_batch = self._begin_batch
        self.account.on_change = self._follow_account
        self._follow_account()

    def __repr__(self) -> str:
        steps = f"{self.steps_taken} steps taken" + ("" if self.steps is None else f" of {self.steps}")
        model, optimizer = type(self.model).__name__, type(self.optimizer.inner).__name__
        noise = f"noise_multiplier={self.noise_multiplier:.4g}, delta={self.delta:g}"
        return f"Private({model}, {optimizer}, {self.loader!r}, {noise}; {steps})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise NotPrivate(
            "a private run cannot be copied or pickled: two of it would take the same steps. Use save() and load(), or "
            "copy the model alone"
        )

    # Before the loop.

    def prepare(self, after_each: Callable[[], None] = lambda: None) -> None:
        """Makes the releases of the freezer's own that are due: what it wants to know of the data before it is trained.

        Otherwise they are made when the loop asks for its first batch, which then takes as long. Call it after `load`:
        what a checkpoint knows is not asked again. Nothing happens if nothing is due.

        Args:
            after_each: called after each release: a place to save a checkpoint, so that a crash costs one of them only.

        Guarantees:
            Each release is charged for before the data is looked at. It counts as no step, and nothing of it is counted
            by schedulers or trainers.
        """
        self.optimizer.refuse_ended()
        check_finite(self.model, self.steps_taken)
        self._make_due_releases(after_each)

    @property
    def freezer(self) -> Freezer | None:
        """What decides which coordinates are live: this run's own, which knows what was found."""
        controller = self.optimizer.controller
        return None if controller is None else controller.freezer

    # What was planned and what was spent.

    @property
    def plan(self) -> Plan:
        """N, sampling, steps, noise, delta and accountant."""
        return self.account.plan

    @property
    def steps(self) -> int | None:
        """How many steps this stage of the weights will have in the end; None without a limit."""
        return self.account.steps

    @property
    def steps_taken(self) -> int:
        """How many steps the weights have behind them, in this stage (``after=``)."""
        return self.account.steps_taken

    @property
    def stepped(self) -> bool:
        """Whether the last `optimizer.step()` was a real one: with chunks, most of them wait for the rest of a batch.

        A scheduler that is stepped in the loop counts steps, not chunks: ``if private.stepped: scheduler.step()``.
        """
        return self.optimizer.stepped

    @property
    def charged(self) -> int:
        """How many steps this run was charged for: every batch that was drawn, used or not."""
        return self.account.charged

    @property
    def run(self) -> str:
        """The run's name in a ledger."""
        return self.account.run

    @property
    def allowance(self) -> Allowance | None:
        """What a ledger admitted for the steps."""
        return self.account.allowance

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise over the sensitivity."""
        return self.plan.noise_multiplier

    @property
    def sample_rate(self) -> float:
        """The probability with which each example, or person, takes part in a step."""
        return self.plan.sample_rate

    @property
    def delta(self) -> float:
        """The probability with which epsilon may fail to hold."""
        return self.plan.delta

    @property
    def accountant(self) -> budget.Accountant:
        """How releases are composed."""
        return self.plan.accountant

    @property
    def expected_batch(self) -> float:
        """What every clipped sum is divided by: a public constant."""
        return self.plan.expected_batch

    @property
    def seeded(self) -> bool:
        """Whether noise and sampling can be drawn again by whoever knows the seed: then nothing may be released."""
        return self.account.seeded

    def events(self) -> tuple[budget.Event, ...]:
        """The releases made so far."""
        return self.account.events()

    def epsilon(self) -> float:
        """What was spent so far, at `delta`: 0 before the first step, infinite without noise.

        Guarantees:
            An upper bound for everything the optimizer has released, for data sets that differ in one example (or one
            person) that is in one and not in the other, and for everything that earlier stages (``after=``) released.
            Restoring earlier weights does not lower it. Other runs on the same data are not in it: they add up, and a
            ledger counts them.
        """
        return self.account.epsilon()

    def statement(self) -> budget.Statement:
        """The sentence to put beside the model: epsilon, delta, how they were computed, and what was released."""
        engine = self.optimizer.engine
        notes = [f"gradients clipped by {how}" for how in engine.clipped or [engine.clipper_repr]]
        if engine.state.allowed:
            notes.append(f"declared to be public, and not compared: {', '.join(engine.state.allowed)}")
        found = self.account.statement()
        return replace(found, notes=(*notes, *found.notes))

    # Checkpoints.

    def save(self, path: str | Path, *, scheduler: LRScheduler | None = None) -> None:
        """Writes a checkpoint: weights, optimizer, scheduler, sampler position, and what was spent.

        Args:
            scheduler: a learning-rate scheduler of torch, if there is one.

        Guarantees:
            The file is whole or not there. What was spent is part of it, so that no one goes on from the weights
            without their account. The noise generator's state is not: noise that is drawn twice can be subtracted.

        >>> import tempfile, hoarfrost
        >>> data = torch.utils.data.TensorDataset(torch.randn(100, 3))
        >>> def new():
        ...     model = torch.nn.Linear(3, 2)
        ...     optimizer = torch.optim.Adam(model.parameters())
        ...     return hoarfrost.make_private(model, optimizer, data, batch_size=10, noise_multiplier=1.0, delta=1e-5)
        >>> private = new()
        >>> for (x,) in private.loader:
        ...     private.optimizer.zero_grad()
        ...     private.model(x).square().mean().backward()
        ...     private.optimizer.step()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     private.save(f"{folder}/checkpoint.safetensors")
        ...     later = new()
        ...     later.load(f"{folder}/checkpoint.safetensors")
        >>> later.steps_taken, later.epsilon() == private.epsilon()
        (10, True)
        """
        from hoarfrost import checkpoint

        checkpoint.save(path, self, scheduler=scheduler)

    def check_savable(self) -> None:
        """Refuses to save what is not fit for it; for who saves weights and the optimizer's state by other means.

        Guarantees:
            Weights are finite, only the optimizer has changed them, and examples do not meet in the model.
        """
        check_finite(self.model, self.steps_taken)
        self.optimizer.engine.prober.at_a_save()
        self.optimizer.engine.state.check(everything=True)

    def load(self, path: str | Path, *, scheduler: LRScheduler | None = None) -> None:
        """Goes on from a checkpoint that `save` wrote, with new noise and new batches.

        Guarantees:
            Nothing is refunded: what the checkpoint's account, this one's and the ledger's know was spent stays spent,
            each step counted once. A run whose noise was calibrated for an epsilon stays within it, and ends earlier if
            steps were lost.
        """
        from hoarfrost.checkpoint import Checkpoint

        Checkpoint.read(path).restore(self, scheduler)

    # Looking at a step.

    def observe(self, observer: Observer) -> None:
        """Shows every step from now on to ``observer``. What it sees is private: see `hoarfrost.observers`."""
        self.optimizer.engine.observers.append(observer)

    # How the parts work together.

    def info(self) -> RunInfo:
        """What clipping styles and freezers may know of this run."""
        engine = self.optimizer.engine
        if self._info is None or self._info.ordered != bool(engine.order):
            self._info = RunInfo(
                shapes={name: p.shape for name, p in self.optimizer.parameters.items()},
                layers=layers_of(self.model, engine.order, self.optimizer.parameters),
                steps=self.plan.steps,
                sample_rate=self.sample_rate,
                steps_within=cache(self.account.steps_within),
                ordered=bool(engine.order),
                noise_multiplier=self.noise_multiplier,
                expected_batch=self.expected_batch,
                head=head_of(self.model, self.optimizer.parameters),
                pretrained=says_pretrained(self.model),
            )
        return self._info

    def _follow_account(self) -> None:
        """After more became known of what was spent: how far the run goes, and which noise was used."""
        self._info = None  # when so much is spent may be another step now
        self.loader.steps = self.account.steps
        if self.seeded:  # not the same numbers again; the runs before it may have had the same seed
            noise = self.optimizer.mechanism.noise
            noise.skip_to(max(noise.draws, self.account.charged_in_all))

    def _begin_batch(self) -> None:
        """Before a batch is drawn: what cannot end well is stopped here, and the step is charged for."""
        self.optimizer.refuse_ended()
        check_finite(self.model, self.steps_taken)
        if self.account.next_step == 0:  # what these weights have behind them is known now, and nothing is charged yet
            self.optimizer.engine.clipper.check(self.info())
        self._make_due_releases()
        self.optimizer.engine.state.settle()  # what the loop sets from here on may have seen the batch
        self.account.reserve()

    def _make_due_releases(self, after_each: Callable[[], None] = lambda: None) -> None:
        """Hands the freezer its way to the data, if a release of its own is due; it is charged for first."""
        controller = self.optimizer.controller
        for number, planned in enumerate(self.plan.releases):
            due = planned.step <= self.account.next_step and not self.account.is_made(number)
            if due and controller is not None and isinstance(planned.event, Gaussian) and planned.event.steps:
                with self.account.release(planned.event, planned.what, number=number):
                    engine, noise = self.optimizer.engine, self.optimizer.mechanism.noise
                    query = Query(
                        planned.event, self.model, self.loader, noise, engine.paused, self.loss, self.loss_of_one
                    )
                    controller.freezer.prepare(number, query, self.info())
                    engine.state.refer()  # what it set was paid for
                after_each()


@torch.no_grad()
def check_finite(model: nn.Module, steps_taken: int) -> None:
    """Refuses weights that are not numbers any more."""
    sums = [p.sum() for p in model.parameters()]
    if all(bool(each.isfinite().all()) for each in _by_device(sums)):
        return
    # A sum may overflow where no weight has: what is fast is asked first, and what is exact if need be.
    broken = [name for name, p in model.named_parameters() if not p.isfinite().all()]
    if broken:
        raise Diverged(
            f"after {steps_taken} steps the weights are no longer finite numbers ({', '.join(broken[:3])}"
            f"{', ...' if len(broken) > 3 else ''}): training has diverged, and further steps would spend budget on "
            "nothing. Go on from an earlier checkpoint with a smaller learning rate"
        )


def _by_device(scalars: Sequence[Tensor]) -> list[Tensor]:
    """Stacked, so that each device is asked once."""
    devices: dict[torch.device, list[Tensor]] = {}
    for scalar in scalars:
        devices.setdefault(scalar.device, []).append(scalar.float())
    return [torch.stack(each) for each in devices.values()]
