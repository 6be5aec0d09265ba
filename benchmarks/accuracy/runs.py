"""Trains the arms. What was finished before is not trained again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from benchmarks.accuracy.experiments import DENSE, SEEDS, Branches, Runs
from hoarfrost import data
from hoarfrost.files import replace_file
from hoarfrost.freezing import Freezer, Pruned, prune_from
from hoarfrost.train import Recipe, read_recipe
from hoarfrost.train.loop import evaluate, train
from hoarfrost.train.networks import build
from hoarfrost.train.prepare import Prepared, prepare, surroundings
from hoarfrost.train.recipe import FreezePruned

CPU = torch.device("cpu")
State = dict[str, torch.Tensor]


class Results:
    """Finished runs in a JSON file, one object for each, written as they come."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.path.read_text()) if self.path.exists() else []
        return found

    def has(self, arm: str, seed: int) -> bool:
        return any(row["arm"] == arm and row["seed"] == seed for row in self.rows)

    def add(self, **row: Any) -> None:
        text = "[\n" + ",\n".join(json.dumps(each) for each in [*self.rows, row]) + "\n]\n"
        replace_file(self.path, lambda draft: draft.write_text(text))
        print(f"{row['arm']}, seed {row['seed']}: {row['accuracy']:.4f} at epsilon {row['epsilon']}", flush=True)


def run(experiment: Runs | Branches, results: Results, seeds: Sequence[int] = SEEDS) -> None:
    """Every arm with every seed: all arms with the first seed, then with the next one."""
    for seed in seeds:
        todo = _branches(experiment, seed) if isinstance(experiment, Branches) else _runs(experiment, seed)
        for arm, trained in todo:
            if not results.has(arm, seed):
                began = time.perf_counter()
                for row in trained():
                    results.add(seed=seed, **{"arm": arm} | row, seconds=round(time.perf_counter() - began))


def _runs(experiment: Runs, seed: int) -> Iterator[tuple[str, Callable[[], list[dict[str, Any]]]]]:
    for arm, overrides in experiment.arms.items():

        def trained(overrides: tuple[str, ...] = overrides) -> list[dict[str, Any]]:
            recipe = recipe_for(experiment.recipe, seed, overrides)
            with surroundings(recipe):
                prepared = prepare(recipe, CPU, splits=load(recipe.data.name or ""), freezer=pruner(recipe))
                curve = [epoch.test_accuracy for epoch in train(prepared.private, prepared.splits.test, device=CPU)]
            return [{**_found(prepared), "curve": curve}]

        yield arm, trained


def _branches(experiment: Branches, seed: int) -> Iterator[tuple[str, Callable[[], list[dict[str, Any]]]]]:
    ends = experiment.ends

    def trained() -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        forks: dict[str, State] = {}
        recipe = recipe_for(experiment.recipe, seed, (DENSE, f"privacy.steps={max(ends.values())}"))
        with surroundings(recipe):
            trunk = prepare(recipe, CPU, splits=load(recipe.data.name or ""))

            def look(step: int, _: object) -> None:
                for budget, end in ends.items():
                    if step == end - experiment.last:
                        forks[budget] = {k: v.clone() for k, v in trunk.private.model.state_dict().items()}
                    if step == end:
                        rows.append({"arm": f"DP-SGD at {budget}", **_found(trunk)})

            for _ in train(trunk.private, trunk.splits.test, device=CPU, on_step=look, evaluate_every=10**9):
                pass
        for budget, end in ends.items():
            rows.append({"arm": f"Layers at {budget}", **_branch(experiment, seed, end, forks[budget])})
        return rows

    yield f"Layers at {max(ends)}", trained


def _branch(experiment: Branches, seed: int, end: int, weights: State) -> dict[str, Any]:
    """The last steps of a run that ends there, from the weights before: plain SGD has no other state."""
    noise_of_its_own = 1000 * end + seed
    overrides = (f"privacy.steps={experiment.last}", "freeze.step=0")
    recipe = recipe_for(experiment.recipe, noise_of_its_own, overrides)
    with surroundings(recipe):
        branch = prepare(recipe, CPU, splits=load(recipe.data.name or ""))
        branch.private.model.load_state_dict(weights)
        for _ in train(branch.private, branch.splits.test, device=CPU):
            pass
    switch = branch.private.optimizer.switch
    assert switch is not None
    assert switch.share < 1
    whole = branch.private.loader.poisson.event(branch.private.noise_multiplier, end)
    return {**_found(branch), "steps": end, "epsilon": _rounded(whole, branch)}


def recipe_for(name: str, seed: int, overrides: Sequence[str]) -> Recipe:
    """A built-in recipe with values replaced, seeded, on one core."""
    kept = [override for override in overrides if override != DENSE]
    recipe = read_recipe(name, ["loop.threads=1", *kept, f"privacy.seed={seed}"])
    return recipe.model_copy(update={"freeze": None}) if DENSE in overrides else recipe


def pruner(recipe: Recipe) -> Freezer | None:
    """A recipe's pruning, with a reference that is trained once for all shares that are kept."""
    wanted = recipe.freeze
    if not isinstance(wanted, FreezePruned):
        return None
    reference = _reference(recipe.model_copy(update={"freeze": wanted.model_copy(update={"keep": 1.0})}))
    return Pruned(wanted.keep, reference, per=wanted.per, rewind=wanted.rewind, private=wanted.private)


@cache
def _reference(recipe: Recipe) -> State:
    wanted = recipe.freeze
    assert isinstance(wanted, FreezePruned)
    with surroundings(recipe):  # the model that the run itself will begin with
        model = build(recipe.model, load(recipe.data.name or ""))
        public = load(wanted.public).train
        return prune_from(model, public, keep=1.0, epochs=wanted.epochs, lr=wanted.lr).reference


@cache
def load(name: str) -> data.Splits:
    """A data set, read once."""
    return data.load(name)


def _found(run: Prepared) -> dict[str, Any]:
    private = run.private
    _, accuracy = evaluate(private.model, run.splits.test, CPU)
    return {
        "accuracy": accuracy,
        "steps": private.steps_taken,
        "noise_multiplier": round(private.noise_multiplier, 4),
        "epsilon": _rounded(private.loader.poisson.event(private.noise_multiplier, private.steps_taken), run),
    }


def _rounded(event: Any, run: Prepared) -> float | str:
    from hoarfrost import budget

    events = (event, *run.private.freezer_events())
    spent = budget.epsilon(events, run.private.delta, "pld")
    return round(spent, 4) if spent < float("inf") else "not private"
