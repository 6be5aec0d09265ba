"""From a recipe to a run folder: what is in it, what is not, and what it says when the run ends early."""

import json
import signal
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hoarfrost.budget import Gaussian, epsilon
from hoarfrost.errors import HoarfrostError
from hoarfrost.train import Progress, Recipe, RunResult, read_recipe, run
from hoarfrost.train.evaluation import Average
from tests.support.recipes import tiny

FILES = {
    "budget.json", "budget.txt", "calibration.json", "checkpoints", "ledger.jsonl", "metrics.jsonl",
    "model.safetensors", "not-private", "recipe.toml", "reliability.svg", "run.json",
}  # fmt: skip


def facts(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return run(tiny(), out=tmp_path_factory.mktemp("runs") / "tiny")


def test_the_folder_holds_what_is_promised(result: RunResult) -> None:
    assert names(result.folder) == FILES
    assert names(result.folder / "not-private") == {"README.txt", "data.json", "metrics.jsonl"}


def test_the_recipe_can_be_trained_again(result: RunResult) -> None:
    assert read_recipe(result.folder / "recipe.toml").model_dump() == {**tiny().model_dump(), "name": "run"}


def test_the_run_says_how_it_was_resolved(result: RunResult) -> None:
    said = facts(result.folder, "run.json")
    assert (said["status"], said["steps_taken"], said["steps_planned"]) == ("completed", 7, 7)
    assert (said["noise_multiplier"], said["sample_rate"], said["expected_batch"]) == (1.0, 0.2, 300.0)
    assert said["test_accuracy"] == result.test_accuracy
    assert said["versions"]["torch"] == torch.__version__


def test_the_budget_says_everything_without_which_epsilon_means_nothing(result: RunResult) -> None:
    said = facts(result.folder, "budget.json")
    release = Gaussian(noise_multiplier=1.0, sample_rate=0.2, steps=7)
    assert said["epsilon"] == epsilon(release, 1e-4, "rdp") == result.statement.epsilon
    assert (said["delta"], said["accountant"], said["status"]) == (1e-4, "rdp", "completed")
    assert (said["relation"], said["unit"]) == ("add or remove one", "one example")
    assert said["releases"] == [release.as_dict()]
    text = (result.folder / "budget.txt").read_text()
    for words in ("at delta 0.0001 (rdp accountant)", "one example: add or remove one", "7 steps", "Released: model"):
        assert words in text


def test_the_weights_are_the_model_s(result: RunResult) -> None:
    weights = load_file(result.folder / "model.safetensors")
    assert weights.keys() == result.model.state_dict().keys()
    assert all(torch.equal(weights[name], value) for name, value in result.model.state_dict().items())


def test_metrics_have_a_line_an_epoch_with_epsilon_so_far(result: RunResult) -> None:
    metrics = lines(result.folder, "metrics.jsonl")
    assert [line["step"] for line in metrics] == [5, 7]
    assert metrics[0]["epsilon"] < metrics[1]["epsilon"] == pytest.approx(result.statement.epsilon)
    assert metrics[1]["test_accuracy"] == result.test_accuracy
    assert metrics[1]["steps_per_second"] > 0


def test_nothing_about_the_training_data_is_outside_of_the_folder_that_says_so(result: RunResult) -> None:
    for path in result.folder.iterdir():
        if path.suffix in (".json", ".jsonl"):
            assert "train_loss" not in path.read_text()
            assert "train_accuracy" not in path.read_text()
    inside = lines(result.folder, "not-private/metrics.jsonl")
    assert set(inside[0]) == {"epoch", "step", "train_loss", "train_accuracy", "dropped_for_no_finite_gradient"}
    assert "must not be released" in (result.folder / "not-private" / "README.txt").read_text()


def test_the_summary_says_what_was_reached_and_spent(result: RunResult) -> None:
    summary = result.summary()
    assert "test accuracy" in summary
    assert "at delta 0.0001" in summary
    assert str(result.folder) in summary


def test_a_seeded_run_repeats_itself_and_says_so_wherever_epsilon_is(tmp_path: Path) -> None:
    recipe = tiny(privacy__seed=5, privacy__steps=2)
    first, second = (run(recipe, out=tmp_path / name) for name in ("a", "b"))
    state = second.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in first.model.state_dict().items())
    assert facts(first.folder, "budget.json")["warning"] is not None
    for said in ((first.folder / "budget.txt").read_text(), first.summary()):
        assert "must not be released" in said
    assert lines(first.folder, "metrics.jsonl")[0]["seeded"] == "seeded: do not release"


def test_an_unseeded_run_does_not_repeat_itself(tmp_path: Path) -> None:
    first, second = (run(tiny(privacy__steps=1), out=tmp_path / name) for name in ("a", "b"))
    assert not torch.equal(next(first.model.parameters()), next(second.model.parameters()))
    assert "seeded" not in lines(first.folder, "metrics.jsonl")[0]


def test_a_seed_and_threads_are_the_run_s_own_affair(tmp_path: Path) -> None:
    torch.manual_seed(11)
    threads, before = torch.get_num_threads(), torch.random.get_rng_state()
    during: list[int] = []

    class Notes(Progress):
        def step(self, steps: int, average: Average) -> None:
            during.append(torch.get_num_threads())

    recipe = tiny(privacy__seed=5, privacy__steps=1, loop__threads=threads + 1)
    run(recipe, out=tmp_path / "run", progress=Notes())
    assert during == [threads + 1]
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.random.get_rng_state(), before)


def test_calibrated_noise_stays_within_epsilon(tmp_path: Path) -> None:
    recipe = tiny(privacy={"epsilon": 2.0, "delta": 1e-4, "sample_rate": 0.2, "epochs": 0.4})
    result = run(recipe, out=tmp_path / "run")
    assert result.steps == 2
    assert 1.9 < result.statement.epsilon <= 2.0
    assert (
        facts(result.folder, "run.json")["noise_multiplier"]
        == result.statement.releases[0].as_dict()["noise_multiplier"]
    )


def test_without_noise_nothing_is_called_private(tmp_path: Path) -> None:
    result = run(tiny(privacy__noise_multiplier=0.0, privacy__steps=1), out=tmp_path / "run")
    assert facts(result.folder, "budget.json")["epsilon"] is None
    assert "not private (no noise)" in result.summary()
    assert lines(result.folder, "metrics.jsonl")[0]["epsilon"] is None


def test_ones_own_arrays_views_chunks_and_a_schedule(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).random((40, 1, 6, 6)), np.arange(40) % 3
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    recipe = tiny(
        data={"path": str(tmp_path / "mine.npz")}, model={"name": "cnn", "channels": [4]}, augment__shift=1,
        schedule={"kind": "cosine"}, privacy__batch_size=10, privacy__steps=5, privacy__delta=1e-3,
        loop__views=3, loop__max_physical_batch=9,
    )  # fmt: skip
    result = run(recipe, out=tmp_path / "run")
    assert result.steps == 5
    assert facts(result.folder, "run.json")["classes"] == 3


def test_a_delta_above_one_over_the_number_of_examples_is_warned_about(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="delta 0.01 is not below 1/1500"):
        result = run(tiny(privacy__delta=0.01, privacy__steps=1), out=tmp_path / "run")
    assert "Warning: delta 0.01" in (result.folder / "budget.txt").read_text()
    assert len(facts(result.folder, "run.json")["warnings"]) == 1


class Signals(Progress):
    """Sends this process signals at given steps."""

    def __init__(self, *steps: int, number: signal.Signals = signal.SIGINT) -> None:
        self.steps, self.number = steps, number

    def step(self, steps: int, average: Average) -> None:
        if steps in self.steps:
            signal.raise_signal(self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_the_step_with_the_budget_of_the_steps_taken(
    tmp_path: Path, number: signal.Signals
) -> None:
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    result = run(tiny(), out=tmp_path / "run", progress=Signals(3, number=number))
    assert (result.status, result.steps, result.steps_planned) == ("interrupted", 3, 7)
    assert names(result.folder) == FILES
    said = facts(result.folder, "budget.json")
    assert (said["status"], said["steps_taken"], said["releases"][0]["steps"]) == ("interrupted", 3, 3)
    assert said["epsilon"] == epsilon(Gaussian(noise_multiplier=1.0, sample_rate=0.2, steps=3), 1e-4, "rdp")
    assert lines(result.folder, "metrics.jsonl")[-1]["step"] == 3
    assert "interrupted, 3 of 7 steps" in (result.folder / "budget.txt").read_text()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers


class Impatient(Progress):
    """Presses Ctrl-C twice in the same step."""

    def step(self, steps: int, average: Average) -> None:
        if steps == 2:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)


def test_a_second_ctrl_c_does_not_wait_and_still_leaves_a_usable_folder(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tiny(), out=tmp_path / "run", progress=Impatient())
    assert facts(tmp_path / "run", "budget.json")["status"] == "interrupted"
    assert facts(tmp_path / "run", "budget.json")["steps_taken"] == 2
    assert (tmp_path / "run" / "model.safetensors").exists()


class Fails(Progress):
    """Breaks down in a given step."""

    def __init__(self, at: int) -> None:
        self.at = at

    def step(self, steps: int, average: Average) -> None:
        if steps == self.at:
            raise HoarfrostError("broken")


def test_an_error_in_the_middle_leaves_the_steps_that_were_paid_for(tmp_path: Path) -> None:
    with pytest.raises(HoarfrostError, match="broken"):
        run(tiny(), out=tmp_path / "run", progress=Fails(4))
    assert facts(tmp_path / "run", "budget.json")["status"] == "failed"
    assert facts(tmp_path / "run", "budget.json")["steps_taken"] == 4


class Killed(Progress):
    """Looks into the folder as whoever finds it after the process was killed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.found = folder, {}

    def step(self, steps: int, average: Average) -> None:
        if steps == 6:
            self.found = facts(self.folder, "budget.json")
            assert facts(self.folder, "run.json")["status"] == "running"


def test_while_it_runs_the_budget_states_the_whole_plan(tmp_path: Path) -> None:
    killed = Killed(tmp_path / "run")
    result = run(tiny(), out=tmp_path / "run", progress=killed)
    assert killed.found["status"] == "running"
    assert killed.found["epsilon"] == result.statement.epsilon


REFUSED = {
    "batch": (lambda: tiny(privacy__batch_size=2000), "more than the 1500 examples"),
    "data": (lambda: tiny(data={"path": "/nowhere/x.npz"}), "no data file at"),
    "model": (lambda: tiny(model={"name": "tanh_cnn"}), "takes examples of shape"),
    "name": (lambda: tiny(data={"name": "imagenet"}), "no data set named 'imagenet'"),
    "views": (lambda: tiny(augment__shift=1, loop__views=3, loop__max_physical_batch=2), "cannot hold the 3 views"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_trained_leaves_nothing_behind(tmp_path: Path, case: str) -> None:
    recipe, message = REFUSED[case]
    with pytest.raises(HoarfrostError, match=message):
        run(recipe(), out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HoarfrostError, match="the device abacus cannot be used"):
        run(tiny(), out=tmp_path / "run", device="abacus")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_before_the_first_step_leaves_nothing_behind(tmp_path: Path) -> None:
    class Stumbles(Progress):
        def start(self, plan: object) -> None:
            raise HoarfrostError("stumbled")

    with pytest.raises(HoarfrostError, match="stumbled"):
        run(tiny(), out=tmp_path / "deep" / "run", progress=Stumbles())
    assert list(tmp_path.iterdir()) == []


def test_the_resolved_recipe_is_toml(result: RunResult) -> None:
    assert tomllib.loads((result.folder / "recipe.toml").read_text())["privacy"]["accountant"] == "rdp"
    assert isinstance(read_recipe(result.folder / "recipe.toml"), Recipe)


def test_interrupted_before_the_first_step_nothing_is_spent(tmp_path: Path) -> None:
    class AtOnce(Progress):
        def start(self, plan: object) -> None:
            signal.raise_signal(signal.SIGINT)

    result = run(tiny(), out=tmp_path / "run", progress=AtOnce())
    assert (result.status, result.steps, result.statement.epsilon) == ("interrupted", 0, 0.0)
    assert facts(result.folder, "budget.json")["epsilon"] == 0
    assert "test accuracy – after 0 of 7 steps" in result.summary()
