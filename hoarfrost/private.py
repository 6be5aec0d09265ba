"""make_private(): the one place where the parts meet."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import LBFGS, Optimizer, SparseAdam
from torch.utils.data import DataLoader, Dataset

from hoarfrost import budget, validate
from hoarfrost.budget import Account, Event, Gaussian, Plan, PlannedRelease, PlannedShare, Wanted
from hoarfrost.clipping import Clipper, Local
from hoarfrost.clipping.base import check_clipper
from hoarfrost.epochs import steps_of
from hoarfrost.errors import InvalidValue, NotPrivate
from hoarfrost.freezing import Freezer
from hoarfrost.freezing.base import check_freezer
from hoarfrost.gradients import Engine, Reduction
from hoarfrost.gradients.first_batch import examine_first
from hoarfrost.gradients.forward import is_copy
from hoarfrost.gradients.frozen_cache import FrozenCache
from hoarfrost.gradients.independence import LossFunction
from hoarfrost.gradients.state import check_patterns
from hoarfrost.gradients.structure import tell_of_other_processes
from hoarfrost.info import RunInfo, head_of, layers_of, says_pretrained
from hoarfrost.mechanism import GaussianMechanism
from hoarfrost.noise import Noise
from hoarfrost.optim import PrivateOptimizer
from hoarfrost.optim.freeze_controller import FreezeController
from hoarfrost.run import Private
from hoarfrost.sampling import Chunk, PoissonLoader
from hoarfrost.sampling.overlap import shares_data
from hoarfrost.sampling.rows import rows_in
from hoarfrost.stages import Earlier, snapshots, taking_over


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
    clip: Clipper | float = 1.0,
    freeze: Freezer | None = None,
    loss: LossFunction | None = None,
    loss_reduction: Reduction = "mean",
    max_physical_batch: int | None = None,
    lengths: Any = None,
    views: int = 1,
    person: Any = None,
    per_person: int | None = None,
    batch_first: bool = True,
    accountant: budget.Accountant = "pld",
    seed: int | None = None,
    ledger: budget.Ledger | budget.Allowance | str | Path | None = None,
    run: str | None = None,
    after: Earlier | Sequence[Earlier] | None = None,
    allow_state: Sequence[str] = (),
    cache_frozen: bool | float = False,
) -> Private:
    """Makes a model, its optimizer and its data private; the training loop stays plain PyTorch.

    Args:
        data: a map-style data set, or a DataLoader, whose collate function and workers are kept and whose fixed
            batches become Poisson batches of the same expected size.
        delta: the probability with which the epsilon may fail to hold; well below 1/len(data).
        batch_size, sample_rate: one of them: the expected number of examples in a step, or each example's chance.
        epochs, steps: how long to train; needed to calibrate for ``epsilon``. A pass over the loader is an epoch.
        epsilon, noise_multiplier: one of them. Noise of 0 is allowed, and then epsilon is infinite.
        clip: the clipping style (`hoarfrost.clip`); a number C is short for ``Local(C)``.
        freeze: which coordinates are live in which step (`hoarfrost.freeze`); by default all of them in all of them.
        loss: ``loss(output, batch)``, what the loop differentiates, is checked (`check_independence`) on a few examples
            of the first batch, before the loop gets it; the model is called as there. For a loop that does not use
            `optimizer.backward(losses)`.
        loss_reduction: "mean" if the loss divides by the number of examples, "sum" if it does not.
        max_physical_batch: at most so many rows at a time; larger batches come in chunks, and `optimizer.step()` waits
            for the last one (`Private.stepped` tells a scheduler whether there was a step).
        lengths: with ``max_physical_batch``: how long each row of the data is (a list, tensor, array or column, or a
            function of a row). Chunks then hold examples of like length, so that little is computed on padding; the
            step is the same.
        views: so many draws of each example (with the data set's random augmentation), averaged before clipping.
        person: whose each row of the data is, where somebody may have several: an id for each row (a list, tensor,
            array or column). People are then drawn, not rows; ``batch_size``, ``sample_rate`` and epochs count people.
        per_person: with ``person``: a drawn person brings up to so many of their rows, drawn anew each time, whose
            gradients are averaged before clipping. Memory is needed as if everybody brought so many. Whose a row is
            follows from its place: batches must reach the model whole and in the order in which the loader gives them.
        batch_first: False if examples lie along the second dimension of the model's inputs.
        seed: for experiments: the noise can then be subtracted by anyone who knows the seed.
        ledger: the data set's `budget.Ledger`, or its path: the whole run is admitted there before an example is read,
            and every step is written there before its batch is drawn (where workers draw ahead: handed over).
        run: the run's name in the ledger. One that is there already, with the same noise and sampling, goes on with the
            steps it has left: what it spent before a crash stays spent. `Private.load` brings its weights back.
        after: the weights have been trained before, and this is a second stage, with steps, learning rate and epsilon
            of its own: what make_private returned for the stage before, the path of a checkpoint of it, the state_dict
            of its optimizer, or a list of these. Steps count from 0, and ``epsilon`` is for what this stage releases;
            `Private.epsilon` and `Private.statement` are for all that the weights have behind them. If the model is
            still that of the run before, that run ends here. The weights themselves are not loaded.
        allow_state: names (with * and ?) of buffers and of parameters that are not trained which may change while the
            model runs, since nothing private has a say in them: ["steps", "target.*"]. Everything else that changes by
            itself is refused. The statement names what was declared here.
        cache_frozen: what the layers before the first trained one return is kept for each example, in memory, and not
            computed again in later epochs: for layers that are frozen for the whole run, and without dropout. True
            takes at most half of the machine's memory; a number, so many bytes. The step is the same.

    Guarantees:
        After t optimizer steps the weights are (epsilon(t), delta)-differentially private for adding or removing one
        example (with ``person``: one person with all their rows), where `Private.epsilon` says epsilon(t), if the loss
        treats examples independently (`check_independence`) and evaluation on private data is not released. A
        calibrated run refuses steps beyond those it was calibrated for.

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
    clip = clip if isinstance(clip, bool) or not isinstance(clip, int | float) else Local(clip)
    parameters = trained_parameters(model, optimizer)
    loader = PoissonLoader(
        data, batch_size=batch_size, sample_rate=sample_rate, max_physical_batch=max_physical_batch,
        lengths=lengths, views=views, person=person, per_person=per_person, batch_first=batch_first, seed=seed,
    )  # fmt: skip
    rate, earlier = loader.poisson.sample_rate, snapshots(after)
    plan = Plan.solve(
        size=loader.poisson.size, sample_rate=rate, delta=delta, epochs=epochs, steps=steps, epsilon=epsilon,
        noise_multiplier=noise_multiplier, accountant=accountant, unit=loader.unit,
        releases=planned_releases(freeze, data, model, parameters, rate, steps_of(epochs, steps, rate)),
        spent=spent_before(freeze),
    )  # fmt: skip
    if plan.delta_advice:
        warnings.warn(plan.delta_advice, stacklevel=2)
    if ledger is None:
        tell_of_other_processes(repr(freeze) if any(isinstance(r.event, Gaussian) for r in plan.releases) else None)
    if is_copy(model) and not earlier:
        warnings.warn(
            "this model is a copy of one that was trained privately, and this run's account knows nothing of what that "
            "has spent. Name the run before: make_private(..., after=private), and epsilon is that of both",
            stacklevel=2,
        )
    with taking_over(model, after):
        return assemble(
            model, optimizer, loader, plan, clip=check_clipper(clip), freeze=freeze, loss=loss,
            loss_reduction=loss_reduction, seed=seed, ledger=ledger, run=run, after=earlier, allow_state=allow_state,
            cache_frozen=cache_frozen,
        )  # fmt: skip


def assemble(
    model: nn.Module,
    optimizer: Optimizer,
    loader: PoissonLoader,
    plan: Plan,
    *,
    clip: Clipper = Local(1.0),  # noqa: B008 - frozen
    freeze: Freezer | None = None,
    loss: LossFunction | None = None,
    loss_reduction: Reduction = "mean",
    seed: int | None = None,
    ledger: budget.Ledger | budget.Allowance | str | Path | None = None,
    run: str | None = None,
    after: Iterable[budget.Snapshot] = (),
    allow_state: Sequence[str] = (),
    cache_frozen: bool | float = False,
) -> Private:
    """Puts the parts of a run together that follows ``plan``; `make_private` explains the other arguments."""
    if loader.poisson.sample_rate != plan.sample_rate:
        raise NotPrivate(
            f"the loader draws examples with probability {loader.poisson.sample_rate}, and the plan accounts for "
            f"{plan.sample_rate}: make both with the same rate"
        )
    if loader.unit != plan.unit:
        raise NotPrivate(
            f"the loader draws {loader.unit} at a time, and the plan is for {plan.unit}: make both for one"
        )
    if loss_reduction not in ("mean", "sum"):
        raise InvalidValue(f'loss_reduction must be "mean" or "sum", got {loss_reduction!r}')
    if not isinstance(cache_frozen, bool):
        validate.positive(cache_frozen=cache_frozen)
    parameters = trained_parameters(model, optimizer)
    noise = Noise(seed)
    account = Account(plan, run=run, seeded=noise.seeded, after=after)
    for snapshot in () if freeze is None else freeze.spent():
        account.learn(snapshot)
    engine = Engine(
        model, parameters, check_clipper(clip), loss_reduction=loss_reduction, views=loader.views,
        batch_first=loader.batch_first, tickets=loader.tickets, step=lambda: account.steps_taken,
        info=lambda: private.info(), allow_state=check_patterns(allow_state),
    )  # fmt: skip
    mechanism = GaussianMechanism(noise, plan.noise_multiplier, engine.encoding)
    private_optimizer = PrivateOptimizer(
        optimizer, engine, mechanism, account, parameters=parameters, loader=loader,
        expected_batch=plan.expected_batch,
    )  # fmt: skip
    private = Private(model, private_optimizer, loader, account)
    private.loss = loss
    before = {} if freeze is None else {name: p.detach().clone() for name, p in parameters.items()}
    # What cannot be is refused at once, as if any epsilon were spent at the beginning: what these weights may have
    # behind them is not known yet.
    outlook = replace(private.info(), steps_within=lambda _: 0)
    try:
        engine.clipper.check(outlook)
        if freeze is not None:
            private_optimizer.controller = FreezeController(
                freeze, parameters, engine, info=private.info, step=lambda: account.steps_taken
            )
            private_optimizer.controller.freezer.check(outlook)
        if ledger is not None:
            account.attach(ledger, what="make_private")
    except BaseException:
        engine.detach()  # the model is as it was, and can be tried again
        with torch.no_grad():
            for name, weights in before.items():
                parameters[name].copy_(weights)
        raise
    if cache_frozen is not False:
        most = None if cache_frozen is True else cache_frozen
        private.frozen_cache = FrozenCache(
            engine, len(loader.dataset), most=most,
            held=lambda: set() if (controller := private_optimizer.controller) is None else controller.frozen,
        )  # fmt: skip
        engine.serving = private.frozen_cache.serving
    if loss is not None:
        _inspect_first_batch(private, loss)
    return private


def _inspect_first_batch(private: Private, loss: LossFunction) -> None:
    """Has the loss checked on the first batch that can show whether examples mix."""
    loader, engine = private.loader, private.optimizer.engine
    engine.loss_watch.examined = True

    def inspect(batch: Any, chunk: Chunk, drawn: list[int]) -> None:
        views = loader.views
        rows = chunk.rows(views)
        rows = min(rows, rows_in(batch, rows, loader.batch_first) or rows)  # fewer, where some cannot be read
        # A person's rows must not meet in the loss either: each is looked at by itself.
        if rows >= 3 * views and examine_first(
            private.model, batch, loss, rows=rows, views=views, anew=(loader.dataset, drawn[::views], loader.collate),
            loss_reduction=engine.loss_reduction, batch_first=loader.batch_first,
        ):  # fmt: skip
            loader.inspect = None

    loader.inspect = inspect


def planned_releases(
    freeze: Freezer | None,
    data: Dataset[Any] | DataLoader[Any],
    model: nn.Module,
    parameters: dict[str, nn.Parameter],
    sample_rate: float,
    steps: int | None,
) -> tuple[Wanted, ...]:
    """What the freezer will release; refuses one that has learned from the private data unnoticed."""
    if freeze is None:
        return ()
    shapes = {name: p.shape for name, p in parameters.items()}
    info = RunInfo(
        shapes, layers_of(model, (), parameters), steps=steps, sample_rate=sample_rate, ordered=False,
        head=head_of(model, parameters), pretrained=says_pretrained(model),
    )  # fmt: skip
    releases = tuple(check_freezer(freeze).releases(info))
    if not all(isinstance(release, PlannedRelease | PlannedShare) for release in releases):
        raise InvalidValue(f"releases() of {freeze!r} are PlannedRelease(...) or PlannedShare(...), not {releases!r}")
    if any(shares_data(public, data) for public in freeze.public()):
        raise NotPrivate(
            f"{freeze!r} has learned from the private data set itself, or from a part of it: what is pruned would tell "
            "about it. Take public data, or say private=False, and nothing is private"
        )
    return releases


def spent_before(freeze: Freezer | None) -> tuple[Event, ...]:
    """What was spent for what the freezer was told."""
    snapshots = () if freeze is None else freeze.spent()
    counters = {id: event for each in snapshots for id, event in each.counters.items()}
    releases = {id: event for each in snapshots for id, event in each.releases.items()}
    return (*(event for event in counters.values() if event.steps), *releases.values())


def trained_parameters(model: nn.Module, optimizer: Optimizer) -> dict[str, nn.Parameter]:
    """The model's parameters that the optimizer moves, by name."""
    if not isinstance(model, nn.Module) or not isinstance(optimizer, Optimizer):
        raise InvalidValue(
            f"make_private takes a model, its optimizer and its data, in this order; got a {type(model).__name__} and "
            f"a {type(optimizer).__name__}"
        )
    if isinstance(optimizer, PrivateOptimizer):
        raise NotPrivate("this optimizer is private already: hand make_private the plain torch optimizer")
    if isinstance(optimizer, LBFGS):
        raise NotPrivate("LBFGS evaluates the loss several times a step, each of them a release; use SGD or Adam")
    if isinstance(optimizer, SparseAdam):
        raise NotPrivate("SparseAdam moves only what the data touched, which noise must hide; use Adam")
    moved = {p for group in optimizer.param_groups for p in group["params"]}
    names = {p: name for name, p in model.named_parameters()}
    unknown = sum(p not in names for p in moved)
    if unknown:
        raise NotPrivate(
            f"the optimizer moves {unknown} parameter(s) that are not in the model, which would be trained without "
            "privacy. Build it from model.parameters(), with every trained module inside the model."
        )
    if not moved:
        raise InvalidValue("the optimizer has no parameters to train")
    return {name: p for name, p in model.named_parameters() if p in moved}  # in the model's order, whatever the groups
