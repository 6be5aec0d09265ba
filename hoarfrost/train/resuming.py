"""Going on with a run: from which checkpoint, whether anything has changed, and what that costs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hoarfrost import budget
from hoarfrost.budget._journal import Head
from hoarfrost.errors import BudgetSpent, InvalidValue
from hoarfrost.freezing import releases
from hoarfrost.recipes.loading import read_recipe
from hoarfrost.recipes.schema import Recipe
from hoarfrost.train import fingerprint
from hoarfrost.train.checkpoint import Checkpoint
from hoarfrost.train.folder import RunFolder
from hoarfrost.train.prepare import Prepared, prepare
from hoarfrost.train.records import checkpoints, runs_of

# What can change without being asked about: neither the guarantee nor what is learned depends on it.
HARMLESS = {
    "name", "loop.threads", "loop.channels_last", "loop.evaluate_every", "loop.max_physical_batch",
    "loop.checkpoint_every", "loop.checkpoints_kept", "loop.reserve_ahead",
}  # fmt: skip
DATA = "data"  # how a changed data set is called, wherever it lies


def find(source: Path) -> tuple[RunFolder, Checkpoint]:
    """The run folder and the checkpoint that was written last; or the checkpoint that ``source`` itself is."""
    if source.is_file():
        return RunFolder.existing(source.parent.parent), Checkpoint.read(source)
    folder = RunFolder.existing(source)
    found = [Checkpoint.read(path) for path in checkpoints(source)]
    if not found:
        raise InvalidValue(f"there is no checkpoint in {source / 'checkpoints'}; train anew")
    # By the ledger, which only grows: after going back to an older one, more steps do not mean later.
    return folder, max(found, key=lambda each: (_place(each), each.steps_taken))


def _place(saved: Checkpoint) -> int:
    return -1 if saved.ledger is None else Head.parse(saved.ledger["head"]).number


def recipe_of(folder: RunFolder, overrides: Iterable[str]) -> Recipe:
    """The run folder's recipe, with single values replaced. What it names as data was allowed when the run began."""
    return read_recipe(folder.path / "recipe.toml", overrides, root="/")


def prepared(
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
        assert saved.ledger is not None  # running has opened it
        old = saved.ledger["run"]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidValue(f"the checkpoint {saved.path} was not made by `hoarfrost train`") from error
    changed = _changes(before, recipe)
    run = prepare(recipe, device, noise_multiplier=noise if before.privacy == recipe.privacy else None)
    if not fingerprint.same(folder.path, run.digest):
        changed[DATA] = "not the training data that the run began with"
    changed.pop("data.path", None)  # a file may be moved: what is in it counts
    _refuse(changed, accept)

    private = run.private
    behind = spent_in(folder, saved, ledger)
    same_charge = DATA not in changed and (private.noise_multiplier, private.sample_rate) == (noise, rate)
    released = releases.together(private.freezer_releases(), saved.released)
    if recipe.privacy.epsilon is not None and set(released) != set(saved.released):
        same_charge = False  # the noise was not calibrated for what this freezer releases
    entry = ledger.find(old)
    goes_on = entry is not None and same_charge and not entry.closed
    rest = run.steps - saved.steps_taken
    if not goes_on:
        if rest < 1:
            raise InvalidValue(f"all {run.steps} steps of this run are taken: nothing is left to do")
        if recipe.privacy.epsilon is not None and same_charge:
            rest = min(rest, _left_of_the_plan(run, behind))
        elif recipe.privacy.epsilon is not None:
            costs = (*behind.values(), *releases.protected(released.values()))
            more = _noise_for_the_rest(recipe, private.sample_rate, rest, costs)
            switch = private.optimizer.switch
            freezer = None if switch is None else switch.freezer
            run = prepare(recipe, device, noise_multiplier=more, splits=run.splits, freezer=freezer)
            private = run.private
    # What does not fit is refused here, before the ledger changes; and what was lost counts, whatever follows.
    saved.restore(private, run.scheduler, also=behind)
    others = [name for name in budget.names(behind) if name != old or not goes_on]
    if goes_on:
        private.draw_on(ledger.resume(old, ahead=recipe.loop.reserve_ahead))
        for name in others:
            if (other := ledger.find(name)) is not None and not other.closed:
                ledger.close(name)
    else:
        private.draw_on(admitted(run, ledger, steps=rest, new_data=DATA in changed, instead_of=others), new=True)
    private.restore(steps_taken=saved.steps_taken, position=saved.position, spent=behind, released=saved.released)
    return run


def spent_in(folder: RunFolder, saved: Checkpoint, ledger: budget.Ledger) -> budget.Spending:
    """What was ever spent in a run folder: also on weights that were given up for an older checkpoint's."""
    ours = {*budget.names(saved.spent), *runs_of(folder.path)}
    own = ledger.path.resolve().parent == folder.path.resolve()
    known = {run: event for run, event in ledger.spending().items() if own or run.name in ours}
    return budget.merged(saved.spent, known)


def _left_of_the_plan(run: Prepared, behind: budget.Spending) -> int:
    """How many steps a calibrated run that was closed has left: its noise was chosen for all of them, and no more."""
    step = run.private.loader.poisson.event(run.private.noise_multiplier, 1)
    used = sum(event.steps for event in behind.values())
    if used >= run.steps or any(replace(event, steps=1) != step for event in behind.values() if event.steps):
        raise BudgetSpent("the run has ended, and its noise was calibrated for the steps that are charged: no more")
    return run.steps - used


def admitted(
    run: Prepared,
    ledger: budget.Ledger,
    *,
    steps: int | None = None,
    what: str = "",
    new_data: bool = False,
    instead_of: Collection[str] = (),
) -> budget.Allowance:
    """Asks the ledger for the run's steps, or for so many of them."""
    private = run.private
    return ledger.admit(
        private.loader.poisson.event(private.noise_multiplier, steps or run.steps),
        run=f"{run.recipe.name}-{private.run[:6]}",
        what=what or f"training {run.recipe.name}",
        seeded=private.seeded,
        data=ledger.fingerprint(run.digest),
        new_data=new_data,
        ahead=run.recipe.loop.reserve_ahead,
        instead_of=instead_of,
    )


def _noise_for_the_rest(recipe: Recipe, sample_rate: float, rest: int, behind: Collection[budget.Gaussian]) -> float:
    """The noise with which the rest of the run stays within epsilon, together with all that was spent on it before."""
    asked = recipe.privacy
    assert asked.epsilon is not None
    return budget.noise_multiplier(asked.epsilon, asked.delta, sample_rate, rest, asked.accountant, after=behind)


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
