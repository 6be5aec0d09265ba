"""Trains the arms. What was finished before is not trained again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from benchmarks.accuracy.experiments import DENSE, SEEDS, Branches, Runs
from hoarfrost.files import replace_file
from hoarfrost.freezing import Freezer, Pruned, prune_from
from hoarfrost.measure import Calibration, Temperature
from hoarfrost.recipes import sources
from hoarfrost.recipes.networks import build
from hoarfrost.run import Private
from hoarfrost.train import Recipe, read_recipe
from hoarfrost.train.evaluation import evaluate
from hoarfrost.train.loop import train
from hoarfrost.train.prepare import Prepared, prepare, surroundings

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

    def add(self, arm: str, seed: int, run: Prepared, *, steps: int | None = None, **more: Any) -> None:
        """What a run has reached. ``steps`` are those behind its weights, if they are not all its own."""
        private = run.private
        steps = steps or private.steps_taken
        found = evaluate(private.model, run.splits.test, CPU, run.loss).figures
        row = {"arm": arm, "seed": seed, **found, "steps": steps}
        row |= {"noise_multiplier": round(private.noise_multiplier, 4), "epsilon": _epsilon(private, steps), **more}
        text = "[\n" + ",\n".join(json.dumps(each) for each in [*self.rows, row]) + "\n]\n"
        replace_file(self.path, lambda draft: draft.write_text(text))
        main = run.loss.metrics[0]
        print(f"{arm}, seed {seed}: {main} {found[main]:.4f} at epsilon {row['epsilon']}", flush=True)


def run(experiment: Runs | Branches, results: Results, seeds: Sequence[int] = SEEDS) -> None:
    """Every arm with every seed: all arms with the first seed, then with the next one."""
    for seed in seeds:
        if isinstance(experiment, Runs):
            for arm in experiment.arms:
                if not results.has(arm, seed):
                    _run(experiment, arm, seed, results)
        elif not all(results.has(f"Layers at {name}", seed) for name in experiment.ends):
            _branches(experiment, seed, results)


def _run(experiment: Runs, arm: str, seed: int, results: Results) -> None:
    recipe = recipe_for(experiment.recipe, seed, experiment.arms[arm])
    with surroundings(recipe):
        trained = prepare(recipe, CPU, freezer=_pruner(recipe))
        epochs = train(trained.private, trained.splits.test, device=CPU, loss=trained.loss)
        curve = [epoch.test.figures[trained.loss.metrics[0]] for epoch in epochs if epoch.test is not None]
        more = {} if trained.loss.real_targets else {"scaled": _with_temperature(trained)}
    results.add(arm, seed, trained, curve=curve, **more)


@torch.no_grad()
def _with_temperature(run: Prepared) -> dict[str, float]:
    """What temperature scaling makes of it: fitted on every other test example, measured on the rest."""
    model, (x, labels) = run.private.model.eval(), run.splits.test.tensors
    logits = run.loss.logits(torch.cat([model(some) for some in x.split(1000)]))
    assert logits is not None
    return scaled(logits, labels)


def scaled(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """NLL, ECE and MCE on every second example, with the temperature that suits the others."""
    temperature = Temperature.fit(logits[::2], labels[::2])
    found = Calibration.of(temperature(logits[1::2]), labels[1::2])
    return {"temperature": temperature.value, "nll": found.nll, "ece": found.ece, "mce": found.mce}


def _branches(experiment: Branches, seed: int, results: Results) -> None:
    forks: dict[str, State] = {}
    recipe = recipe_for(experiment.recipe, seed, (DENSE, f"privacy.steps={max(experiment.ends.values())}"))
    with surroundings(recipe):
        trunk = prepare(recipe, CPU)

        def look(step: int, _: object) -> None:
            for name, end in experiment.ends.items():
                if step == end - experiment.last:
                    forks[name] = {k: v.clone() for k, v in trunk.private.model.state_dict().items()}
                if step == end and not results.has(f"DP-SGD at {name}", seed):
                    results.add(f"DP-SGD at {name}", seed, trunk)

        for _ in train(
            trunk.private, trunk.splits.test, device=CPU, loss=trunk.loss, on_step=look, evaluate_every=10**9
        ):
            pass
    for name, end in experiment.ends.items():
        results.add(f"Layers at {name}", seed, _branch(experiment, seed, end, forks[name]), steps=end)


def _branch(experiment: Branches, seed: int, end: int, weights: State) -> Prepared:
    """The last steps of a run that ends there, from the weights before: plain SGD has no other state."""
    overrides = (f"privacy.steps={experiment.last}", "freeze.step=0")
    recipe = recipe_for(experiment.recipe, 1000 * end + seed, overrides)
    with surroundings(recipe):
        branch = prepare(recipe, CPU)
        branch.private.model.load_state_dict(weights)
        for _ in train(branch.private, branch.splits.test, device=CPU, loss=branch.loss):
            pass
    assert branch.density is not None
    assert branch.density < 1
    return branch


def recipe_for(name: str, seed: int, overrides: Sequence[str]) -> Recipe:
    """A built-in recipe with values replaced, seeded, on one core unless it says otherwise."""
    kept = [override for override in overrides if override != DENSE]
    recipe = read_recipe(name, ["loop.threads=1", *kept, f"privacy.seed={seed}"])
    return recipe.model_copy(update={"freeze": None}) if DENSE in overrides else recipe


def _pruner(recipe: Recipe) -> Freezer | None:
    """A recipe's pruning, with a reference that is trained once for all shares that are kept."""
    wanted = recipe.freeze
    if wanted is None or wanted.kind != "pruned":
        return None
    reference = _reference(recipe.model_copy(update={"freeze": wanted.model_copy(update={"keep": 1.0})}))
    return Pruned(wanted.keep, reference, per=wanted.per, rewind=wanted.rewind, private=wanted.private)


@cache
def _reference(recipe: Recipe) -> State:
    wanted = recipe.freeze
    assert wanted.kind == "pruned"
    with surroundings(recipe):  # the model that the run itself will begin with
        model = build(recipe.model, sources.load(recipe.data))
        public = sources.public(wanted.public, recipe.data).train
        return prune_from(model, public, keep=1.0, epochs=wanted.epochs, lr=wanted.lr).reference


def _epsilon(private: Private, steps: int) -> float | str:
    """Spent by so many steps, by the exact account."""
    spent = private.plan.statement(steps=steps).epsilon
    return round(spent, 4) if spent < float("inf") else "not private"
