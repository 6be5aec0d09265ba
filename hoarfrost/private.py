"""make_private(): the one place where the parts meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import LBFGS, Optimizer, SparseAdam
from torch.utils.data import DataLoader, Dataset

from hoarfrost import budget, validate
from hoarfrost.budget.calibration import MOST_STEPS
from hoarfrost.clipping import Clipper, Local
from hoarfrost.errors import InvalidValue, NotPrivate
from hoarfrost.freezing import Facts, Freezer, releases
from hoarfrost.freezing.base import check_freezer
from hoarfrost.freezing.switch import Switch
from hoarfrost.gradients import Engine, Reduction
from hoarfrost.noise import Noise
from hoarfrost.optim import PrivateOptimizer
from hoarfrost.run import Private
from hoarfrost.sampling import PoissonLoader
from hoarfrost.sampling.overlap import shares_data


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
    private = Private(model, private_optimizer, loader, delta, accountant, steps, target=epsilon)
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
            # What cannot be is refused at once, as if any epsilon were spent at the beginning: what these weights may
            # have behind them is not known yet.
            switch.freezer.check(replace(_facts(private, parameters), steps_within=lambda _: 0))
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
    return releases.protected(made.values())


def _facts(private: Private, parameters: Mapping[str, nn.Parameter]) -> Facts:
    """What a freezer may know of this run."""
    names = {p: name for name, p in parameters.items()}
    layers: list[tuple[str, ...]] = []
    placed: set[str] = set()
    for module in _in_order(private.model, private.optimizer.engine.order):
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


def _in_order(model: nn.Module, used: Sequence[nn.Module]) -> list[nn.Module]:
    """All modules as the model uses them.

    One that is never called itself (an attention's output projection, say) comes with the nearest one around it that
    is; failing that, last, in the model's own order.
    """
    groups: dict[nn.Module, list[nn.Module]] = {module: [module] for module in used}
    rest: list[nn.Module] = []

    def place(module: nn.Module, around: list[nn.Module]) -> None:
        if module not in groups:
            around.append(module)
        else:
            around = groups[module]
        for child in module.children():
            place(child, around)

    place(model, rest)
    return [module for group in (*groups.values(), rest) for module in group]


def _steps_within(private: Private, epsilon: float) -> int:
    """How many steps these weights will have behind them when so much is spent."""
    other = releases.protected(private.freezer_events())
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
    if isinstance(optimizer, SparseAdam):
        raise NotPrivate("SparseAdam moves only what the data touched, which noise must hide; use Adam")
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
