"""Going on with a run: from which checkpoint, whether anything has changed, and what that costs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hoarfrost import budget
from hoarfrost.budget._journal import Head
from hoarfrost.budget.events import from_dict
from hoarfrost.checkpoint import Checkpoint
from hoarfrost.errors import BudgetSpent, InvalidValue
from hoarfrost.recipes.loading import read_recipe
from hoarfrost.recipes.schema import Recipe
from hoarfrost.train import fingerprint
from hoarfrost.train.folder import RunFolder
from hoarfrost.train.prepare import Parts, Prepared
from hoarfrost.train.records import checkpoints, runs_of
from hoarfrost.untrusted import line

# What can change without being asked about: neither the guarantee nor what is learned depends on it.
HARMLESS = {
    "name", "loop.threads", "loop.channels_last", "loop.evaluate_every", "loop.max_physical_batch",
    "loop.group_by_length", "loop.cache_frozen", "loop.checkpoint_every", "loop.checkpoints_kept", "loop.reserve_ahead",
    "measure",
}  # fmt: skip
DATA = "data"  # how a changed data set is called, wherever it lies


def find(source: Path) -> tuple[RunFolder, Checkpoint, list[str]]:
    """The run folder, its newest checkpoint that is sound, and what is wrong with each of the others that are not.

    If ``source`` itself is a checkpoint, it is that one, or none.
    """
    if source.is_file():
        return RunFolder.existing(source.parent.parent), Checkpoint.read(source), []
    folder = RunFolder.existing(source)
    found: list[tuple[int, int, Checkpoint]] = []
    damaged: list[str] = []
    for path in checkpoints(source):
        try:
            saved = Checkpoint.read(path)
            # By the ledger, which only grows: after going back to an older one, more steps do not mean later.
            found.append((_place(saved), saved.steps_taken, saved))
        except InvalidValue as error:
            damaged.append(str(error))
    if not found and damaged:
        raise InvalidValue(line(f"no checkpoint of the run can be read. Of the newest: {damaged[-1]}"))
    if not found:
        raise InvalidValue(f"there is no checkpoint in {source / 'checkpoints'}; train anew")
    return folder, max(found, key=lambda each: each[:2])[2], damaged


def _place(saved: Checkpoint) -> int:
    return -1 if saved.ledger is None else Head.parse(saved.ledger["head"]).number


def recipe_of(folder: RunFolder, overrides: Iterable[str]) -> Recipe:
    """The run folder's recipe, with single values replaced. What it names as data was allowed when the run began."""
    return read_recipe(folder.path / "recipe.toml", overrides, root="/")


def resumed(
    recipe: Recipe,
    device: torch.device,
    folder: RunFolder,
    saved: Checkpoint,
    *,
    accept: Collection[str],
    ledger: budget.Ledger,
) -> Prepared:
    """The run as it was, ready to go on; a change that was not accepted by its name is refused.

    Guarantees:
        Steps are charged with the noise and the sampling rate that they really have: where either differs from the
        checkpoint's, or the data do, the rest of the run is admitted to the ledger as a run of its own.
    """
    try:
        before = Recipe.model_validate(saved.facts["recipe"], strict=False)
        noise, rate = float(saved.facts["noise_multiplier"]), float(saved.facts["sample_rate"])
        releases = [from_dict(event) for event in saved.facts["releases"]]
        assert saved.ledger is not None  # running has opened it
        old = saved.ledger["run"]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidValue(f"the checkpoint {saved.path} was not made by `hoarfrost train`") from error
    parts = Parts.build(recipe, device)
    changed = _changes(before, recipe)
    if not fingerprint.same(folder.path, parts.digest):
        changed[DATA] = "not the training data that the run began with"
    changed.pop("data.path", None)  # a file may be moved: what is in it counts
    _refuse(changed, accept)

    spent = charged_in(folder, saved, ledger)
    calibrated, taken = recipe.privacy.epsilon is not None, saved.steps_taken
    # The noise is read back, not calibrated anew: another version of an accountant may find another one.
    plan = (
        parts.solve()
        if before.privacy != recipe.privacy
        else parts.solve(epsilon=None, noise_multiplier=noise, solved=releases)
    )
    plan = replace(plan, epsilon=recipe.privacy.epsilon)
    same = DATA not in changed and (plan.noise_multiplier, plan.sample_rate) == (noise, rate)
    if calibrated and [release.event for release in plan.releases] != releases:
        same = False  # the noise was not calibrated for what this freezer releases
    entry = ledger.find(old)
    goes_on = entry is not None and same and not entry.closed
    if not goes_on:
        assert plan.steps is not None  # a recipe always says how long
        if plan.steps <= taken:
            raise InvalidValue(f"all {plan.steps} steps of this run are taken: nothing is left to do")
        if calibrated and same:
            _refuse_ended(plan, spent)
        elif calibrated:
            plan = parts.solve(taken=taken, spent=(*spent.values(), *saved.account.releases.values()))
    run = parts.prepare(plan)
    # What does not fit is refused here, before the ledger changes.
    saved.restore(run.private, run.scheduler, also=spent)
    others = [
        e.run for e in map(ledger.with_id, spent) if e is not None and not e.closed and (e.run != old or not goes_on)
    ]
    if goes_on:
        run.private.account.attach(ledger.resume(old, ahead=recipe.loop.reserve_ahead))
        for name in others:
            ledger.close(name)
    else:
        attach(run, ledger, new_data=DATA in changed, instead_of=others)
    run.private.account.replace_lost_steps()
    return run


def charged_in(folder: RunFolder, saved: Checkpoint, ledger: budget.Ledger) -> budget.Counters:
    """The steps ever charged in a run folder: also for weights that were given up for an older checkpoint's."""
    own = ledger.path.resolve().parent == folder.path.resolve()
    ours = {*saved.account.counters, *(entry.id for entry in map(ledger.find, runs_of(folder.path)) if entry)}
    known = {e.id: e.spent for e in ledger.entries if e.owner is None and (own or e.id in ours)}
    return {**saved.account.counters, **known}


def _refuse_ended(plan: budget.Plan, spent: budget.Counters) -> None:
    """A calibrated run that was closed has the steps left that its noise was chosen for and no one was charged for."""
    assert plan.steps is not None
    used = sum(event.steps for event in spent.values())
    if used >= plan.steps or any(replace(event, steps=1) != plan.event(1) for event in spent.values() if event.steps):
        raise BudgetSpent("the run has ended, and its noise was calibrated for the steps that are charged: no more")


def attach(
    run: Prepared,
    ledger: budget.Ledger,
    *,
    what: str = "",
    new_data: bool = False,
    instead_of: Collection[str] = (),
) -> None:
    """Asks the ledger for the run's steps."""
    run.private.account.attach(
        ledger, what=what or f"training {run.recipe.name}", data=ledger.fingerprint(run.digest), new_data=new_data,
        ahead=run.recipe.loop.reserve_ahead, instead_of=instead_of,
    )  # fmt: skip


def _changes(before: Recipe, now: Recipe) -> dict[str, str]:
    """What differs, by key: from what to what."""
    old, new = _flat(before.model_dump()), _flat(now.model_dump())
    return {
        key: f"{old.get(key)} before, {new.get(key)} now"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and key not in HARMLESS
    }


def _refuse(changed: dict[str, str], accept: Collection[str]) -> None:
    not_accepted = [key for key in changed if key not in accept]
    if not_accepted:
        what = "; ".join(f"{key}: {changed[key]}" for key in not_accepted)
        how = " ".join(f"--accept {key}" for key in not_accepted)
        raise InvalidValue(f"this is not the run that was begun ({what}). To go on with the change, say {how}")


def _flat(table: dict[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{above}{key}.")
        elif value is not None:
            flat[above + key] = value
    return flat
