"""The comparisons of accuracy, in small: the code of `benchmarks.accuracy` on digits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.accuracy import clipping, tables
from benchmarks.accuracy.experiments import DENSE, EXPERIMENTS, Branches, Runs
from benchmarks.accuracy.runs import Results, recipe_for, run
from hoarfrost.train import to_toml

RECIPE = """
[data]
name = "digits"
[model]
name = "mlp"
hidden = [8]
[optimizer]
kind = "sgd"
lr = 0.5
[freeze]
kind = "layers"
[privacy]
noise_multiplier = 1.0
delta = 1e-4
batch_size = 300
steps = 9
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text(RECIPE)
    return str(path)


def test_every_arm_is_a_recipe() -> None:
    for experiment in (*EXPERIMENTS.values(), *clipping.EXPERIMENTS.values()):
        arms = experiment.arms if isinstance(experiment, Runs) else {"Layers": ()}
        recipes = [recipe_for(experiment.recipe, 1, overrides) for overrides in arms.values()]
        assert len(set(map(to_toml, recipes))) == len(arms)
        dense = [DENSE in changes or "clipping" in experiment.recipe for changes in arms.values()]
        assert [recipe.freeze is None for recipe in recipes] == dense


def test_branches_leave_the_trunk_where_they_should(recipe: str, tmp_path: Path) -> None:
    results = Results(tmp_path / "branches.json")
    run(Branches("Digits", recipe, {"1": 5, "3": 9}, last=2), results, seeds=[4])
    rows = {row["arm"]: row for row in results.rows}
    assert {arm: row["steps"] for arm, row in rows.items()} == {
        "DP-SGD at 1": 5, "DP-SGD at 3": 9, "Layers at 1": 5, "Layers at 3": 9,
    }  # fmt: skip
    assert rows["Layers at 1"]["epsilon"] == rows["DP-SGD at 1"]["epsilon"] < rows["DP-SGD at 3"]["epsilon"]
    run(Branches("Digits", recipe, {"1": 5, "3": 9}, last=2), results, seeds=[4])
    assert len(results.rows) == 4  # what is finished is not trained again


def test_runs_differ_in_what_their_arms_say(recipe: str, tmp_path: Path) -> None:
    results = Results(tmp_path / "runs.json")
    pruned = ("freeze.kind=pruned", "freeze.public=digits", "freeze.private=false", "freeze.epochs=1")
    arms = {"dense": (DENSE,), **{f"{keep}": (*pruned, f"freeze.keep={keep}") for keep in (0.5, 1.0)}}
    run(Runs("Digits", recipe, arms), results, seeds=[4])
    rows = {row["arm"]: row for row in results.rows}
    assert rows["dense"]["curve"][-1] == rows["dense"]["accuracy"]
    assert rows["dense"]["epsilon"] < 100
    assert rows["0.5"]["epsilon"] == "not private"
    assert rows["0.5"]["accuracy"] != rows["1.0"]["accuracy"]


def test_tables_tell_means_and_spreads(tmp_path: Path) -> None:
    accuracies = {"DP-SGD at 1": (0.9, 0.92, 0.94), "Layers at 1": (0.91, 0.93, 0.95)}
    rows = [
        {"arm": arm, "seed": seed, "accuracy": value, "epsilon": 0.9}
        for arm, values in accuracies.items()
        for seed, value in enumerate(values)
    ]
    (tmp_path / "layers-mnist.json").write_text(json.dumps(rows))
    arm = next(iter(EXPERIMENTS["random-fashion-mnist"].arms))
    row = {"arm": arm, "seed": 1, "accuracy": 0.8, "steps": 7, "noise_multiplier": 1.2}
    (tmp_path / "random-fashion-mnist.json").write_text(json.dumps([row]))
    epoch = {"epoch": 2, "test_accuracy": 0.31, "epsilon": 0.5}
    long = {"Random 0.9": {"planned": 60, "epochs": [epoch | {"live": 1.0}, epoch | {"live": 0.96}]}}
    (tmp_path / "cifar10.json").write_text(json.dumps(long))
    text = tables.tables(tmp_path)
    assert "| MNIST | 0.90 (1) | 92.00 ± 2.00 | 93.00 ± 2.00 | +1.00 ± 0.00 |" in text
    assert f"| {arm} | 7 | 1.200 | 80.00 (1 seed) |" in text
    assert "| Random 0.9 | 2 of 60 | 0.98 | 31.0 % (ε 0.50 so far) |" in text
