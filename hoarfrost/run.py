"""A private run: the parts it is made of, and what it has spent."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from hoarfrost import budget, validate
from hoarfrost.errors import BudgetSpent, Diverged, InvalidValue
from hoarfrost.freezing import releases
from hoarfrost.freezing.releases import Releases
from hoarfrost.optim import PrivateOptimizer
from hoarfrost.sampling import PoissonLoader


@dataclass
class Private:
    """What `make_private` returns: unpacks into model, optimizer and loader, and knows what was spent."""

    model: nn.Module
    optimizer: PrivateOptimizer
    loader: PoissonLoader
    delta: float
    accountant: budget.Accountant
    steps: int | None  # planned in all; None without a limit
    target: float | None = None  # the epsilon that the noise was chosen for
    allowance: budget.Allowance | None = None  # what the ledger admitted
    run: str = field(default_factory=lambda: secrets.token_hex(8))
    steps_taken: int = 0  # that these weights have behind them
    earlier: budget.Spending = field(default_factory=dict)  # what other runs spent on these weights
    released: Releases = field(default_factory=dict)  # by freezers that these weights have behind them, by name
    _charged: int = 0  # steps of this run, on any weights; with a ledger, the ledger counts
    _behind: int = 0  # `steps_taken` minus `_gone`, as it was when the accounts changed last
    _planned: int | None = None  # `steps` as it was at first: what was lost is not lost twice

    def __post_init__(self) -> None:
        self._planned = self.steps

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.optimizer, self.loader))

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise over the sensitivity."""
        return self.optimizer.noise_multiplier

    @property
    def sample_rate(self) -> float:
        """The probability with which each example takes part in a step."""
        return self.loader.poisson.sample_rate

    @property
    def expected_batch(self) -> float:
        """What every clipped sum is divided by: a public constant."""
        return self.loader.poisson.expected_batch

    @property
    def seeded(self) -> bool:
        """Whether noise and sampling can be drawn again by whoever knows the seed: then nothing may be released."""
        return self.optimizer.noise.seeded

    @property
    def charged(self) -> int:
        """How many steps this run has been charged for: with a ledger, all that were reserved; else, all released."""
        return self._charged if self.allowance is None else self.allowance.entry.reserved

    def spent(self) -> dict[budget.Run, budget.Gaussian]:
        """What these weights cost so far, by run."""
        own = self.loader.poisson.event(self.noise_multiplier, self.charged)
        return {**self.earlier, **budget.spending(self.run, own)}

    def events(self) -> tuple[budget.Event, ...]:
        """The releases made so far."""
        return (*self.spent().values(), *self.freezer_events())

    def freezer_releases(self) -> Releases:
        """What freezers released beside the steps: this one, and others that these weights have behind them."""
        switch = self.optimizer.switch
        return releases.together(self.released, {} if switch is None else releases.made_by(switch.freezer))

    def freezer_events(self) -> tuple[budget.Release, ...]:
        """The same without their names."""
        return tuple(self.freezer_releases().values())

    def epsilon(self) -> float:
        """What was spent so far, at `delta`: 0 before the first step, infinite without noise.

        Guarantees:
            An upper bound for everything the optimizer has released, for data sets that differ in one example that is
            in one and not in the other. Restoring earlier weights does not lower it.
        """
        return budget.epsilon(self.events(), self.delta, self.accountant)

    def statement(self) -> budget.Statement:
        """The sentence to put beside the model: epsilon, delta, how they were computed, and what was released."""
        return budget.Statement.of(self.events(), self.delta, self.accountant, seeded=self.seeded)

    def restore(
        self,
        *,
        steps_taken: int,
        position: Mapping[str, int],
        spent: budget.Spending,
        released: Releases | None = None,
    ) -> None:
        """Goes on from weights that have ``steps_taken`` steps behind them and cost ``spent`` (a checkpoint's words).

        Args:
            released: what freezers have released for them, beside the steps, by name.

        Guarantees:
            Nothing is refunded: of each run, the larger of what was spent by the checkpoint's account, by this
            object's and by the ledger's counts. A seeded run goes on with noise that it has not used. If the noise was
            calibrated for an epsilon, or the ledger's budget does not allow more, `steps` becomes as many as can be:
            steps that were released and lost are not taken again, and what others spent on these weights counts.
        """
        validate.count(steps_taken=steps_taken)
        if sum(event.steps for event in spent.values()) < steps_taken:
            raise InvalidValue("these weights have more steps behind them than were paid for")
        self.loader.load_state_dict(dict(position))
        self.steps_taken = steps_taken
        self.released = releases.together(self.released, released or {})
        self._take_down(spent)
        self._plan_anew(buy=True)

    def draw_on(self, allowance: budget.Allowance, *, new: bool = False) -> None:
        """From now on every step is paid for out of what a ledger admitted for it, and so is what freezers release.

        Args:
            new: it was admitted just now: if it cannot be used, it is given back.
        """
        try:
            self._draw_on(allowance)
        except BaseException:
            if new:
                allowance.close()
            raise

    def _draw_on(self, allowance: budget.Allowance) -> None:
        plan = self.loader.poisson.event(self.noise_multiplier, allowance.entry.event.steps)
        if allowance.entry.event != plan or allowance.entry.seeded != self.seeded:
            raise InvalidValue(
                f"the run {allowance.run!r} was admitted to the ledger with other settings ({allowance.entry.event}) "
                f"than these ({plan}). Give another run=, and it is charged as what it is"
            )
        runs = {allowance.run, *budget.names(self.spent())}
        paid = releases.booked(allowance.ledger, runs)  # which may be more than a checkpoint from before a crash knows
        self.released = releases.together(self.freezer_releases(), paid)
        releases.book(allowance, self.released, paid)
        spent = self.spent()
        self.allowance, self.run = allowance, allowance.run
        self._charged, self.earlier = 0, {}
        self._take_down(spent)  # some of it this run's own, or better known to the ledger
        self._plan_anew(buy=False)

    def _take_down(self, spent: budget.Spending) -> None:
        """Adds to the accounts what was spent on these weights, as far as anybody knows."""
        every = budget.merged(self.earlier, spent)
        if self.allowance is not None:
            self.allowance.ledger.refresh()
            known = self.allowance.ledger.spending()
            every = budget.merged(every, {run: known[run] for run in every if run in known})
        mine = every.pop(budget.Run(self.run, self.noise_multiplier, self.sample_rate), None)
        if mine is not None and self.allowance is None:
            self._charged = max(self._charged, mine.steps)
        elif mine is not None and self.allowance is not None and mine.steps > self.allowance.entry.reserved:
            # Steps of the same name and kind that this ledger has not seen: it will not count on from them.
            every = budget.merged(every, budget.spending(f"{self.run}, not in the ledger", mine))
        self.earlier = {run: event for run, event in every.items() if event.steps}

    @property
    def _gone(self) -> int:
        """Of this run's steps, those that nobody can take any more: taken, or lost after they were reserved."""
        return self._charged if self.allowance is None else self.allowance.gone

    @property
    def _promise(self) -> float | None:
        """The epsilon to keep to: none was promised, or it is gone, if something was released without noise."""
        events = self.freezer_events()
        return self.target if len(releases.protected(events)) == len(events) else None

    def _plan_anew(self, *, buy: bool) -> None:
        """After accounts have changed: which random numbers a seeded run goes on with, and how far the run goes.

        Args:
            buy: ask the ledger for steps that were lost.
        """
        if self.seeded:  # not with the same ones again; the runs before it may have had the same seed
            behind = sum(event.steps for event in self.spent().values())
            self.optimizer.noise.skip_to(max(self.optimizer.noise.draws, behind))
        self._behind = self.steps_taken - self._gone
        if self.optimizer.switch is not None:
            self.optimizer.switch.forget_facts()
        if self._planned is None:
            return
        wanted = self._within_target(self._planned - self.steps_taken)
        if self.allowance is not None:
            if buy and self._promise is None and not self.allowance.entry.closed:
                self._buy(self.allowance, wanted - self.allowance.left)
            wanted = min(wanted, self.allowance.left)
        self.steps = self.loader.steps = self.steps_taken + wanted

    def _buy(self, allowance: budget.Allowance, steps: int) -> None:
        """Asks the ledger for so many steps more, or as many as its budget allows."""
        if steps <= 0:
            return
        possible = allowance.ledger.steps_left(self.sample_rate, self.noise_multiplier)
        more = steps if possible is None else min(steps, possible)
        if more > 0:
            allowance.extend(more)

    def _within_target(self, wanted: int) -> int:
        """How many of so many further steps stay within the epsilon that the noise was chosen for."""
        if self._promise is None or wanted <= 0:
            return wanted
        beside = releases.protected(self.freezer_events())
        step = self.loader.poisson.event(self.noise_multiplier, 1)
        if not beside and all(replace(event, steps=1) == step for event in self.earlier.values()):
            assert self._planned is not None  # which the noise was chosen for
            behind = self._gone + sum(event.steps for event in self.earlier.values())
            return max(0, min(wanted, self._planned - behind))
        other = (*self.earlier.values(), *beside)
        planned = replace(step, steps=max(self.charged, self._gone + wanted))
        if budget.epsilon((*other, planned), self.delta, self.accountant) <= self._promise:
            return wanted
        most = budget.steps(
            self._promise, self.delta, self.sample_rate, self.noise_multiplier, self.accountant, after=other
        )
        return max(0, min(wanted, most - self._gone))

    def _begin(self) -> None:
        """Before a batch is drawn: what cannot end well is stopped here, and the step is paid for."""
        check_finite(self.model, self.steps_taken)
        if self.allowance is None:
            return
        most = None if self.steps is None else self.steps - self._behind - self._gone
        if most is not None and most < 1:
            if self._promise is not None:
                raise BudgetSpent(
                    "no step is left of those that the noise was chosen for: batches that were drawn and broken off "
                    "stay charged in the ledger"
                )
            most = 1  # who states the noise pays for lost steps, too
        self.allowance.reserve(most)

    def _charge(self) -> None:
        if self.steps is not None and self.steps_taken >= self.steps:
            raise BudgetSpent(
                f"all {self.steps} steps that this run was planned for are taken; plan more with steps= or epochs= in "
                "make_private, which calibrates the noise for them."
            )
        self.steps_taken += 1
        self._charged += 1

    def _settle(self) -> None:
        if self.allowance is not None:
            self.allowance.commit()


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
