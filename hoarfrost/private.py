"""make_private(): the one place where the parts meet."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.utils.data import DataLoader, Dataset

from hoarfrost import budget, validate
from hoarfrost.budget.calibration import MOST_STEPS
from hoarfrost.clipping import Clipper, Local
from hoarfrost.errors import BudgetSpent, Diverged, InvalidValue, NotPrivate
from hoarfrost.freezing import Facts, Freezer, releases
from hoarfrost.freezing.base import check_freezer
from hoarfrost.freezing.releases import Releases
from hoarfrost.freezing.switch import Switch
from hoarfrost.gradients import Engine, Reduction
from hoarfrost.noise import Noise
from hoarfrost.optim import PrivateOptimizer
from hoarfrost.sampling import PoissonLoader
from hoarfrost.sampling.overlap import shares_data


@dataclass
class Private:
    """What `make_private` returns: unpacks into model, optimizer and loader, and knows what was spent."""

    model: nn.Module
    optimizer: PrivateOptimizer
    loader: PoissonLoader
    delta: float
    accountant: budget.Accountant
    steps: int | None  # planned in all; None without a limit
    calibrated: bool = False  # the noise was chosen for so many steps, and no more
    allowance: budget.Allowance | None = None  # what the ledger admitted
    run: str = field(default_factory=lambda: secrets.token_hex(8))
    steps_taken: int = 0  # that these weights have behind them
    earlier: dict[str, budget.Gaussian] = field(default_factory=dict)  # what other runs spent on these weights, by run
    released: Releases = field(default_factory=dict)  # by freezers that these weights have behind them, by name
    _charged: int = 0  # of this run, on any weights
    _behind: int = 0  # steps that other runs took on these weights
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
        return self._charged if self.allowance is None else max(self._charged, self.allowance.entry.reserved)

    def spent(self) -> dict[str, budget.Gaussian]:
        """What these weights cost so far, by run."""
        return {**self.earlier, self.run: self.loader.poisson.event(self.noise_multiplier, self.charged)}

    def events(self) -> tuple[budget.Event, ...]:
        """The releases made so far."""
        return (*self.spent().values(), *self.freezer_events())

    def freezer_releases(self) -> Releases:
        """What freezers released beside the steps: this one, and others that these weights have behind them."""
        switch = self.optimizer.switch
        return releases.together({} if switch is None else releases.made_by(switch.freezer), self.released)

    def freezer_events(self) -> tuple[budget.Event, ...]:
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
        spent: Mapping[str, budget.Gaussian],
        released: Releases | None = None,
    ) -> None:
        """Goes on from weights that have ``steps_taken`` steps behind them and cost ``spent`` (a checkpoint's words).

        Args:
            released: what freezers have released for them, beside the steps, by name.

        Guarantees:
            Nothing is refunded: of each run, the larger of what was spent by the checkpoint's account, by this
            object's and by the ledger's counts. A seeded run goes on with noise that it has not used. Steps that were
            released and lost are not taken again if the noise was calibrated for just so many, or if the ledger's
            budget does not allow it: then `steps` becomes as many as can be.
        """
        validate.count(steps_taken=steps_taken)
        self.loader.load_state_dict(dict(position))
        self.steps_taken = steps_taken
        self.released = releases.together(self.released, released or {})
        known = {entry.run: entry.spent for entry in self.allowance.ledger.entries} if self.allowance else {}
        step = self.loader.poisson.event(self.noise_multiplier, 1)
        for run, event in spent.items():
            if run == self.run and replace(event, steps=1) == step:
                self._charged = max(self._charged, event.steps)
                continue
            # A run is known by its name and by what its steps were: another noise under the same name is another run.
            name = f"{run} ({event.noise_multiplier:g}, {event.sample_rate:g})" if run == self.run else run
            while name in self.earlier and replace(self.earlier[name], steps=1) != replace(event, steps=1):
                name += "'"
            accounts = [event, self.earlier.get(name, event), known.get(run, event)]
            same = [account for account in accounts if replace(account, steps=1) == replace(event, steps=1)]
            self.earlier[name] = max(same, key=lambda account: account.steps)
        self._behind = max(0, steps_taken - self.charged)
        self._skip_used_noise()
        if self._planned is not None:
            self.steps = min(self._planned, steps_taken + self._affordable(self._planned - steps_taken))
            self.loader.steps = self.steps

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
        runs = {allowance.run, *self.spent()}
        known = releases.booked(allowance.ledger, runs)  # which may be more than a checkpoint from before a crash knows
        self.released = releases.together(self.released, known)
        releases.book(allowance, runs, self.freezer_releases())
        own = self.earlier.pop(allowance.run, None)  # restored before it was known that this is the same run
        self._charged = max(self._charged, own.steps if own else 0)
        self.allowance, self.run = allowance, allowance.run
        self._skip_used_noise()
        if self.steps is not None:
            self.steps = self.loader.steps = min(self.steps, self.steps_taken + allowance.left)

    def _skip_used_noise(self) -> None:
        """A seeded run does not begin with the same numbers again; the runs before it may have had the same seed."""
        if self.seeded:
            behind = sum(event.steps for event in self.spent().values())
            self.optimizer.noise.skip_to(max(self.optimizer.noise.draws, behind))

    def _affordable(self, wanted: int) -> int:
        """How many of so many further steps the budget allows; asks the ledger for those that were lost."""
        if self.allowance is None:
            assert self._planned is not None
            charged = sum(event.steps for event in self.spent().values())
            return max(0, min(wanted, self._planned - charged)) if self.calibrated else wanted
        missing = wanted - self.allowance.left
        if missing > 0 and not self.calibrated:
            possible = self.allowance.ledger.steps_left(self.sample_rate, self.noise_multiplier)
            more = missing if possible is None else min(missing, possible)
            if more > 0:
                self.allowance.extend(more)
        return min(wanted, self.allowance.left)

    def _begin(self) -> None:
        """Before a batch is drawn: what cannot end well is stopped here, and the step is paid for."""
        check_finite(self.model, self.steps_taken)
        if self.allowance is not None:
            self.allowance.reserve()

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


def make_private(
    model: nn.Module,
    optimizer: Optimizer,
    data: Dataset[Any] | DataLoader[Any],
    *,
    delta: float,
    batch_size: float | None = None,
    sample_rate: float | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    clip: Clipper = Local(1.0),  # noqa: B008 - frozen
    freeze: Freezer | None = None,
    loss_reduction: Reduction = "mean",
    max_physical_batch: int | None = None,
    views: int = 1,
    batch_first: bool = True,
    accountant: budget.Accountant = "pld",
    seed: int | None = None,
    ledger: budget.Ledger | budget.Allowance | str | Path | None = None,
    run: str | None = None,
) -> Private:
    """Makes a model, its optimizer and its data private; the training loop stays plain PyTorch.

    Args:
        data: a map-style data set, or a DataLoader, whose collate function and workers are kept and whose fixed
            batches become Poisson batches of the same expected size.
        delta: the probability with which the epsilon may fail to hold; well below 1/len(data).
        batch_size, sample_rate: one of them: the expected number of examples in a step, or each example's chance.
        epochs, steps: how long to train; needed to calibrate for ``epsilon``. A pass over the loader is an epoch.
        epsilon, noise_multiplier: one of them. Noise of 0 is allowed, and then epsilon is infinite.
        clip: the clipping style.
        freeze: which coordinates are live in which step (`hoarfrost.freeze`); by default all of them in all of them.
        loss_reduction: "mean" if the loss divides by the number of examples, "sum" if it does not.
        max_physical_batch: at most so many rows at a time; larger batches come in chunks, and `optimizer.step()` waits
            for the last one.
        views: so many draws of each example (with the data set's random augmentation), averaged before clipping.
        batch_first: False if examples lie along the second dimension of the model's inputs.
        seed: for experiments: the noise can then be subtracted by anyone who knows the seed.
        ledger: the data set's `budget.Ledger`, or its path: the whole run is admitted there before an example is read,
            and every step is written there before its batch is drawn (where workers draw ahead: handed over).
        run: the run's name in the ledger. One that is there already, with the same noise and sampling, goes on with the
            steps it has left: what it spent before a crash stays spent. `train.checkpoint` brings its weights back.

    Guarantees:
        After t optimizer steps the weights are (epsilon(t), delta)-differentially private for adding or removing one
        example, where `Private.epsilon` says epsilon(t), if the loss treats examples independently
        (`check_independence`) and evaluation on private data is not released. A calibrated run refuses steps beyond
        those it was calibrated for.

    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.randn(500, 3), torch.randint(2, (500,)))
    >>> model = nn.Linear(3, 2)
    >>> private = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), data,
    ...                        batch_size=50, epochs=1, epsilon=3.0, delta=1e-3)
    >>> model, optimizer, loader = private
    >>> for x, y in loader:
    ...     optimizer.zero_grad()
    ...     nn.functional.cross_entropy(model(x), y).backward()
    ...     optimizer.step()
    >>> 2.9 < private.epsilon() <= 3.0
    True
    """
    validate.probability(delta=delta)
    validate.whole(views=views)
    if loss_reduction not in ("mean", "sum"):
        raise InvalidValue(f'loss_reduction must be "mean" or "sum", got {loss_reduction!r}')
    if (epsilon is None) == (noise_multiplier is None):
        raise InvalidValue("give either epsilon= or noise_multiplier=")
    if epochs is not None and steps is not None:
        raise InvalidValue("give either epochs= or steps=, not both")
    if epsilon is not None and epochs is None and steps is None:
        raise InvalidValue("epsilon= needs to know how long the run is: give epochs= or steps=")
    parameters = _trained(model, optimizer)
    beside = _check_freezer(freeze, data)

    loader = PoissonLoader(
        data, batch_size=batch_size, sample_rate=sample_rate, max_physical_batch=max_physical_batch, views=views,
        batch_first=batch_first, seed=seed,
    )  # fmt: skip
    if epochs is not None:
        validate.positive(epochs=epochs)
        steps = max(1, loader.poisson.epoch_boundary(epochs))
    if steps is not None:
        validate.whole(steps=steps)
        if steps > MOST_STEPS:
            raise InvalidValue(f"{steps} steps are more than the {MOST_STEPS} that can be accounted for")
    loader.steps = steps
    if noise_multiplier is None:
        assert epsilon is not None
        assert steps is not None
        noise_multiplier = budget.noise_multiplier(
            epsilon, delta, loader.poisson.sample_rate, steps, accountant, after=beside
        )
    validate.not_negative(noise_multiplier=noise_multiplier)
    validate.finite(noise_multiplier=noise_multiplier)

    engine = Engine(model, parameters, clip, loss_reduction=loss_reduction, views=views, batch_first=batch_first)
    loader.on_chunk = engine.batch.receive
    private_optimizer = PrivateOptimizer(
        optimizer, engine, Noise(seed), parameters=parameters, noise_multiplier=noise_multiplier,
        expected_batch=loader.poisson.expected_batch, charge=lambda: private._charge(),
        settle=lambda: private._settle(),
    )  # fmt: skip
    private = Private(model, private_optimizer, loader, delta, accountant, steps, calibrated=epsilon is not None)
    loader.on_batch = private._begin
    if run is not None:
        private.run = run
    before = {} if freeze is None else {name: p.detach().clone() for name, p in parameters.items()}
    try:
        if freeze is not None:
            switch = Switch(
                freeze, parameters, engine, facts=lambda: _facts(private, parameters), step=lambda: private.steps_taken
            )
            private_optimizer.switch = switch
            # What cannot be is refused at once, as if layers were used in the order in which the model lists them, and
            # as if any epsilon were spent: what these weights may have behind them is not known yet.
            facts = replace(_facts(private, parameters), ordered=True, steps_within=lambda _: 0)
            switch.freezer.check(facts)
        if ledger is not None:
            allowance, new = _allowance(private, ledger, run)
            private.draw_on(allowance, new=new)
    except BaseException:
        engine.detach()  # the model is as it was, and can be tried again
        with torch.no_grad():
            for name, weights in before.items():
                parameters[name].copy_(weights)
        raise
    return private


def _check_freezer(freeze: Freezer | None, data: Dataset[Any] | DataLoader[Any]) -> tuple[budget.Gaussian, ...]:
    """What the freezer releases beside the steps; refuses one that has learned from the private data unnoticed."""
    if freeze is None:
        return ()
    made = releases.made_by(check_freezer(freeze))
    if any(shares_data(public, data) for public in freeze.public()):
        raise NotPrivate(
            f"{freeze!r} has learned from the private data set itself, or from a part of it: what is pruned would tell "
            "about it. Take public data, or say private=False, and nothing is private"
        )
    return tuple(event for event in made.values() if isinstance(event, budget.Gaussian))


def _facts(private: Private, parameters: Mapping[str, nn.Parameter]) -> Facts:
    """What a freezer may know of this run."""
    names = {p: name for name, p in parameters.items()}
    layers: list[tuple[str, ...]] = []
    placed: set[str] = set()
    # What was not seen to be used comes last, in the model's own order.
    for module in (*private.optimizer.engine.order, *private.model.modules()):
        layer = tuple(names[p] for p in module.parameters(recurse=False) if p in names and names[p] not in placed)
        placed.update(layer)
        layers += [layer] if layer else []
    return Facts(
        shapes={name: p.shape for name, p in parameters.items()},
        layers=tuple(layers),
        steps=private._planned,
        sample_rate=private.sample_rate,
        steps_within=cache(lambda epsilon: _steps_within(private, epsilon)),
        ordered=bool(private.optimizer.engine.order),
    )


def _steps_within(private: Private, epsilon: float) -> int:
    """How many steps these weights will have behind them when so much is spent."""
    other = [event for event in private.freezer_events() if isinstance(event, budget.Gaussian)]
    more = budget.steps(
        epsilon, private.delta, private.sample_rate, private.noise_multiplier, private.accountant,
        after=(*private.earlier.values(), *other),
    )  # fmt: skip
    return private._behind + more


def _allowance(
    private: Private, ledger: budget.Ledger | budget.Allowance | str | Path, run: str | None
) -> tuple[budget.Allowance, bool]:
    """What the ledger admits of the plan, and whether that is new; a run that it knows goes on with what it has."""
    if isinstance(ledger, budget.Allowance):
        return ledger, False
    if private.steps is None:
        raise InvalidValue("a ledger needs to know how long the run is: give epochs= or steps=")
    ledger = ledger if isinstance(ledger, budget.Ledger) else budget.Ledger(ledger)
    if run is not None and ledger.find(run) is not None:
        return ledger.resume(run), False
    plan = private.loader.poisson.event(private.noise_multiplier, private.steps)
    return ledger.admit(plan, run=run, what="make_private", seeded=private.seeded), True


def _trained(model: nn.Module, optimizer: Optimizer) -> dict[str, nn.Parameter]:
    """The model's parameters that the optimizer moves, by name."""
    if isinstance(optimizer, PrivateOptimizer):
        raise NotPrivate("this optimizer is private already: hand make_private the plain torch optimizer")
    if isinstance(optimizer, LBFGS):
        raise NotPrivate("LBFGS evaluates the loss several times a step, each of them a release; use SGD or Adam")
    moved = {p for group in optimizer.param_groups for p in group["params"]}
    names = {p: name for name, p in model.named_parameters()}
    strangers = sum(p not in names for p in moved)
    if strangers:
        raise NotPrivate(
            f"the optimizer moves {strangers} parameter(s) that are not in the model, which would be trained without "
            "privacy. Build it from model.parameters(), with every trained module inside the model."
        )
    if not moved:
        raise InvalidValue("the optimizer has no parameters to train")
    return {name: p for name, p in model.named_parameters() if p in moved}  # in the model's order, whatever the groups
