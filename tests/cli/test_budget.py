"""`hoarfrost budget`: the library's answers, for a person and for a program."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from hoarfrost import budget
from hoarfrost.cli import app

TRAINING = ["--sample-rate", "0.02", "--delta", "1e-5"]


def answer(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["budget", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def facts(*arguments: str) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(answer(*arguments, "--json"))
    return said


def test_epsilon_is_told_with_all_it_depends_on() -> None:
    text = answer("epsilon", "--noise-multiplier", "1.54", "--steps", "2000", *TRAINING)
    assert text == (
        "epsilon 2.754 at delta 1e-05 (pld accountant)\n"
        "for one example: add or remove one\n"
        "2000 steps at sampling rate 0.02 with noise multiplier 1.54\n"
    )


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_epsilon_as_json(accountant: budget.Accountant) -> None:
    said = facts("epsilon", "--noise-multiplier", "1.5", "--steps", "100", *TRAINING, "--accountant", accountant)
    event = budget.Gaussian(noise_multiplier=1.5, sample_rate=0.02, steps=100)
    assert said == {
        "epsilon": budget.epsilon(event, 1e-5, accountant), "private": True, "delta": 1e-5, "accountant": accountant,
        "relation": "add or remove one", "unit": "one example", "noise_multiplier": 1.5, "sample_rate": 0.02,
        "steps": 100,
    }  # fmt: skip


def test_without_noise_epsilon_is_null_and_nothing_is_private() -> None:
    said = facts("epsilon", "--noise-multiplier", "0", "--steps", "100", *TRAINING)
    assert (said["epsilon"], said["private"]) == (None, False)


def test_batch_size_and_epochs_mean_what_training_makes_of_them() -> None:
    said = facts(
        "epsilon", "--noise-multiplier", "2", "--batch-size", "10", "--size", "99", "--epochs", "3", "--delta", "1e-3",
        "--accountant", "rdp",
    )  # fmt: skip
    assert (said["sample_rate"], said["steps"]) == (10 / 99, 30)


def test_noise_never_overshoots_the_budget_not_even_as_printed() -> None:
    arguments = ["noise", "--epsilon", "3", "--steps", "200", *TRAINING, "--accountant", "rdp"]
    said = facts(*arguments)
    assert 2.99 < said["epsilon"] <= said["target_epsilon"] == 3
    printed = float(answer(*arguments).splitlines()[0].removeprefix("noise multiplier "))
    assert printed >= said["noise_multiplier"]
    assert budget.epsilon(budget.Gaussian(noise_multiplier=printed, sample_rate=0.02, steps=200), 1e-5, "rdp") <= 3


def test_steps_within_the_budget() -> None:
    arguments = ["steps", "--epsilon", "3", "--noise-multiplier", "1.5", *TRAINING, "--accountant", "rdp"]
    said = facts(*arguments)
    assert said["steps"] == budget.steps(3.0, 1e-5, 0.02, 1.5, "rdp")
    assert said["epsilon"] <= 3
    assert answer(*arguments).startswith(f"{said['steps']} steps, ")


def test_a_large_delta_is_warned_about_on_standard_error_and_answered() -> None:
    result = CliRunner().invoke(
        app,
        ["budget", "epsilon", "--noise-multiplier", "2", "--batch-size", "10", "--size", "100", "--steps", "5",
         "--delta", "0.02", "--accountant", "rdp", "--json"],
    )  # fmt: skip
    assert result.exit_code == 0
    assert result.stderr.startswith("hoarfrost: warning: delta 0.02 is not below 1/100")
    assert result.stderr.count("\n") == 1
    assert json.loads(result.stdout)["steps"] == 5
