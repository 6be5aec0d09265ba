"""Runs that learn classes, two classes or real numbers: what they leave, say and refuse."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from hoarfrost import audit
from hoarfrost.audit.suite import Subject, run_suite
from hoarfrost.cli import app
from hoarfrost.data import Splits
from hoarfrost.errors import HoarfrostError, InvalidValue
from hoarfrost.measure import Calibration, read_calibration
from hoarfrost.registry import component, forget
from hoarfrost.train import Progress, RunResult, formatting, resume, run, to_toml
from hoarfrost.train.evaluation import Average
from tests.support.recipes import tiny

ALWAYS = {
    "budget.json", "budget.txt", "checkpoints", "ledger.jsonl", "metrics.jsonl", "model.safetensors", "not-private",
    "recipe.toml", "run.json",
}  # fmt: skip
OF_CLASSIFIERS = {"calibration.json", "reliability.svg"}
LONG = {"noise_multiplier": 0.5, "delta": 1e-4, "batch_size": 100, "steps": 40, "accountant": "rdp"}


def facts(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def saved(path: Path, target: Any) -> str:
    """A .npz file of 500 examples, whose targets are a function of the first two of three features."""
    x = np.random.default_rng(0).normal(size=(500, 3))
    y = target(x[:, 0] + 0.5 * x[:, 1])
    np.savez(path, x_train=x[:400], y_train=y[:400], x_test=x[400:], y_test=y[400:])
    return str(path)


def real(sums: Any) -> Any:
    return 2 * sums + 1


def zero_or_one(sums: Any) -> Any:
    return (sums > 0).astype(np.int64)


def recipe(path: str, kind: str, **changes: Any) -> Any:
    given: dict[str, Any] = {"data": {"path": path}, "loss": {"kind": kind}, "privacy": LONG}
    return tiny(**given | changes)


@pytest.fixture(scope="module")
def regression(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    folder = tmp_path_factory.mktemp("regression")
    return run(recipe(saved(folder / "real.npz", real), "huber", clip={"norm": 2.0}), out=folder / "run")


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    folder = tmp_path_factory.mktemp("binary")
    return run(recipe(saved(folder / "two.npz", zero_or_one), "binary"), out=folder / "run")


def test_a_regression_learns_and_leaves_its_own_figures(regression: RunResult) -> None:
    assert names(regression.folder) == ALWAYS
    assert regression.test_accuracy is None
    assert list(regression.test_metrics) == ["loss", "mse", "r2"]
    assert regression.test_metrics["r2"] > 0.5
    last = lines(regression.folder, "metrics.jsonl")[-1]
    assert {key for key in last if key.startswith("test_")} == {"test_loss", "test_mse", "test_r2"}
    said = facts(regression.folder, "run.json")
    assert {f"test_{name}": value for name, value in regression.test_metrics.items()} == {
        key: value for key, value in said.items() if key.startswith("test_") and key != "test_examples"
    }
    assert said["classes"] is None
    private = lines(regression.folder, "not-private/metrics.jsonl")[0]
    assert set(private) == {"epoch", "step", "train_loss", "dropped_for_no_finite_gradient"}


def test_a_regression_s_summary_has_mse_and_r2(regression: RunResult) -> None:
    figures = regression.test_metrics
    assert f"test MSE {figures['mse']:.3g} (R² {figures['r2']:.3g}) after 40 of 40 steps" in regression.summary()
    assert "accuracy" not in regression.summary()


def test_two_classes_by_one_output_leave_calibration_and_auroc(binary: RunResult) -> None:
    assert names(binary.folder) == ALWAYS | OF_CLASSIFIERS
    shapes = {tuple(value.shape) for value in load_file(binary.folder / "model.safetensors").values()}
    assert shapes == {(8, 3), (8,), (1, 8), (1,)}
    assert list(binary.test_metrics) == ["loss", "accuracy", "nll", "brier", "ece", "mce", "auroc"]
    assert binary.test_metrics["auroc"] > 0.9
    assert binary.test_accuracy == binary.test_metrics["accuracy"] > 0.8
    last = lines(binary.folder, "metrics.jsonl")[-1]
    assert {key: last[f"test_{key}"] for key in binary.test_metrics} == dict(binary.test_metrics)


@pytest.mark.parametrize("kind", ["binary", "cross_entropy"])
def test_the_calibration_is_that_of_the_weights_on_the_test_set(tmp_path: Path, kind: str) -> None:
    path = saved(tmp_path / "two.npz", zero_or_one)
    result = run(recipe(path, kind), out=tmp_path / "run")
    arrays = np.load(path)
    with torch.no_grad():
        outputs = result.model.eval()(torch.tensor(arrays["x_test"], dtype=torch.float32))
    expected = Calibration.of(outputs.double(), torch.tensor(arrays["y_test"]))
    assert facts(result.folder, "calibration.json") == expected.as_dict()
    assert read_calibration(result.folder).ece == result.test_metrics["ece"]
    assert (result.folder / "reliability.svg").read_text().lstrip().startswith("<?xml")
    accuracy = f"{100 * expected.accuracy:.1f} %"
    assert f"test accuracy {accuracy} (ECE {formatting.percent(expected.ece)}) after 40 of 40 steps" in result.summary()


def test_without_matplotlib_the_run_goes_on_and_says_what_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run(tiny(), out=tmp_path / "run")
    assert result.status == facts(result.folder, "run.json")["status"] == "completed"
    assert names(result.folder) == ALWAYS | {"calibration.json"}
    (line,) = (line for line in result.summary().splitlines() if "pip install 'hoarfrost[plot]'" in line)
    assert "matplotlib" in line


class Fails(Progress):
    """Breaks down in a given step."""

    def step(self, steps: int, average: Average) -> None:
        if steps == 5:
            raise HoarfrostError("broken")


class Stops(Fails):
    def step(self, steps: int, average: Average) -> None:
        if steps == 3:
            signal.raise_signal(signal.SIGINT)


def test_no_calibration_is_left_of_weights_that_are_not_there_any_more(tmp_path: Path) -> None:
    folder = run(tiny(), out=tmp_path / "run", progress=Stops()).folder
    assert names(folder) >= OF_CLASSIFIERS
    with pytest.raises(HoarfrostError, match="broken"):
        resume(folder, progress=Fails())
    assert not OF_CLASSIFIERS & names(folder)
    resume(folder)
    assert names(folder) >= OF_CLASSIFIERS


def test_epochs_without_an_evaluation_have_no_figures(tmp_path: Path) -> None:
    result = run(tiny(loop__evaluate_every=5), out=tmp_path / "run")
    first, last = lines(result.folder, "metrics.jsonl")
    assert {first[f"test_{name}"] for name in result.test_metrics} == {None}
    assert last["test_ece"] == result.test_metrics["ece"]


def test_the_lines_of_a_regression_show_its_error(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(to_toml(recipe(saved(tmp_path / "real.npz", real), "squared_error")))
    result = CliRunner().invoke(app, ["train", str(path), "--out", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    assert "  test MSE " in result.stdout
    assert "accuracy" not in result.stdout


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "real targets": (
        real,
        {"kind": "cross_entropy"},
        "the loss cross_entropy needs classes.*store.*, or choose a loss",
    ),
    "real targets, two classes": (real, {"kind": "binary"}, "the loss binary needs classes"),
    "three classes": (lambda x: np.arange(500) % 3, {"kind": "binary"}, "takes the labels 0 and 1"),
    "weights": (zero_or_one, {"class_weights": [1.0, 2.0, 3.0]}, "^loss.class_weights has 3 numbers"),
    "not a number": (
        lambda x: np.where(x > 1.5, np.nan, x),
        {"kind": "huber"},
        "y_train holds a target that is not a f",
    ),
    "infinite": (
        lambda x: np.where(x > 1.5, np.inf, x),
        {"kind": "huber"},
        "y_train holds a target that is not a fini",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_targets_and_losses_that_do_not_fit_leave_nothing_behind(tmp_path: Path, case: str) -> None:
    target, loss, message = REFUSED[case]
    path = saved(tmp_path / "mine.npz", target)
    with pytest.raises(InvalidValue, match=message) as caught:
        run(recipe(path, "", loss=loss), out=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == {"mine.npz"}


def test_a_known_data_set_with_classes_is_no_regression(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="the loss takes real numbers, and the data set has classes"):
        run(tiny(loss={"kind": "squared_error"}), out=tmp_path / "run")


def test_whole_numbers_of_a_file_are_real_numbers_to_a_regression(tmp_path: Path) -> None:
    """Prices, say: neither below zero nor above a million is refused."""
    path = saved(tmp_path / "prices.npz", lambda sums: (sums * 2e6).astype(np.int64))
    result = run(recipe(path, "squared_error", privacy__steps=2), out=tmp_path / "run")
    assert result.steps == 2
    with pytest.raises(InvalidValue, match="holds a negative label"):
        run(recipe(path, "cross_entropy"), out=tmp_path / "other")
    with pytest.raises(InvalidValue, match="classes is for integer labels"):
        run(recipe(path, "squared_error", data={"path": path, "classes": 3}), out=tmp_path / "other")


def test_a_run_from_before_there_was_a_choice_goes_on(tmp_path: Path) -> None:
    folder = run(tiny(), out=tmp_path / "run", progress=Stops()).folder
    text = (folder / "recipe.toml").read_text()
    old = text.replace('[loss]\nkind = "cross_entropy"\nlabel_smoothing = 0.0\n\n', "")
    assert len(old) < len(text)
    (folder / "recipe.toml").write_text(old)
    assert resume(folder).status == "completed"


def test_a_run_whose_test_loss_never_fell_ends_with_advice(tmp_path: Path) -> None:
    bad = run(tiny(optimizer__lr=1e4, privacy__seed=1), out=tmp_path / "bad")
    (advice,) = bad.advice
    assert re.match(r"the test loss, 2\.\d+ before training, hardly fell", advice)
    assert "a smaller learning rate, or a clipping norm that fits" in advice
    assert advice in bad.summary()
    good = run(tiny(privacy=LONG | {"seed": 1}), out=tmp_path / "good")
    assert good.advice == ()


@pytest.mark.parametrize("within", [False, True], ids=["", "layer by layer"])
def test_a_run_whose_gradients_were_dropped_is_told_how_to_find_a_norm(tmp_path: Path, within: bool) -> None:
    """Noise alone may carry the test loss a little below what it was: that is not learning."""
    dropping: dict[str, Any] = {"kind": "global", "norm": 1e-4}
    dropping = {"kind": "per-layer", "style": dropping} if within else dropping
    (advice,) = run(tiny(privacy=LONG | {"seed": 1}, clip=dropping), out=tmp_path / "run").advice
    assert 'clip.kind=adaptive with clip.style="global"' in advice


def test_an_interrupted_or_resumed_run_gets_no_such_advice(tmp_path: Path) -> None:
    bad = tiny(optimizer__lr=1e4, privacy__seed=1)
    assert run(bad, out=tmp_path / "run", progress=Stops()).advice == ()
    assert resume(tmp_path / "run").advice == ()


def test_the_look_before_the_first_step_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the random numbers that a seeded run draws."""
    settings = tiny(privacy__seed=3, augment__shift=1, model={"name": "cnn", "channels": [4]})
    first = run(settings, out=tmp_path / "a")
    monkeypatch.setattr("hoarfrost.train.running._untrained_loss", lambda run: None)
    second = run(settings, out=tmp_path / "b")
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name])


@pytest.mark.parametrize(
    "kind", ["huber", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("binary", "cross_entropy"))]
)
def test_audits_use_the_recipe_s_own_loss(tmp_path: Path, kind: str) -> None:
    target = real if kind == "huber" else zero_or_one
    mine = recipe(saved(tmp_path / "mine.npz", target), kind, privacy=LONG | {"steps": 5})
    for found in run_suite(Subject(mine)):
        assert found.passed, str(found)
    audited = audit.one_run(mine, canaries=60)
    assert audited.canaries == 60
    assert audited.passed


def test_a_reference_for_pruning_is_trained_with_the_recipe_s_own_loss(tmp_path: Path) -> None:
    x = torch.randn(60, 3)

    @component("data", "public-pairs")
    def pairs() -> Splits:
        return Splits.of(x, (x[:, 0] > 0).long(), x, (x[:, 0] > 0).long())

    freeze = {"kind": "pruned", "keep": 0.5, "public": "public-pairs", "epochs": 1}
    try:
        path = saved(tmp_path / "two.npz", zero_or_one)
        assert run(recipe(path, "binary", freeze=freeze), out=tmp_path / "run").status == "completed"
        path = saved(tmp_path / "real.npz", real)
        with pytest.raises(InvalidValue, match=r"public-pairs: .*public data set: targets must be real numbers"):
            run(recipe(path, "huber", freeze=freeze), out=tmp_path / "other")
    finally:
        forget("data", "public-pairs")
