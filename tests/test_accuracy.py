"""The comparisons of accuracy, in small: the code of `benchmarks.accuracy` on digits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn

from benchmarks.accuracy import clipping, finetuning, sst2, tables
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


def fine_tuned(arm: str, target: float | None, seed: int, accuracy: float) -> dict[str, object]:
    scaled = {"temperature": 2.0, "nll": 0.4, "ece": 0.02}
    return {
        "arm": arm, "target": target, "seed": seed, "lr": 0.008, "accuracy": accuracy, "nll": 0.5, "ece": 0.1,
        "scaled": scaled, "parameters": 1000, "seconds_a_step": 9.0 + seed, "seconds_of_selection": 0,
    }  # fmt: skip


def test_tables_of_fine_tuning(tmp_path: Path) -> None:
    rows = [fine_tuned("LoRA", 2.0, 1, 0.85), fine_tuned("LoRA", 2.0, 2, 0.87), fine_tuned("LoRA", None, 1, 0.9)]
    (tmp_path / "sst2.json").write_text(json.dumps(rows))
    text = finetuning.tables(tmp_path)
    assert "| LoRA | 1,000 | 0.008 | 90.0 | 86.0 ± 1.4 (2 seeds) | 10.0 |  |" in text
    assert "| ε 2 | LoRA | 0.500 ± 0.000 (2 seeds) | 10.0 ± 0.0 (2 seeds) |" in text
    assert "ε 8" not in text
    assert finetuning.tables(tmp_path / "nothing") == ""


def test_the_best_rate_is_the_smallest_of_the_most_accurate(tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    for lr, accuracy in ((0.02, 0.8), (0.002, 0.7), (0.008, 0.8)):
        sst2.add(path, {"arm": "LoRA", "lr": lr, "accuracy": accuracy})
    assert sst2.best_rate("LoRA", path) == 0.008
    with pytest.raises(SystemExit, match="--grid"):
        sst2.best_rate("full", path)


def test_random_layers_fit_into_their_share() -> None:
    model = nn.Sequential()
    model.add_module("encoder", nn.Sequential(*(nn.Linear(size, 8) for size in range(2, 30))))
    model.add_module("classifier", nn.Linear(8, 2))
    chosen = [{n for n, p in sst2.random_layers(model, seed).named_parameters() if p.requires_grad} for seed in (1, 2)]
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    for names in chosen:
        assert {"classifier.weight", "classifier.bias"} < names
        measured = sum(sizes[name] for name in names if not name.startswith("classifier"))
        assert sst2.RATIO * sum(sizes.values()) - 200 < measured <= sst2.RATIO * sum(sizes.values())
    assert chosen[0] != chosen[1]
