"""Whatever is wrong: one line on standard error, exit code 2, no traceback, nothing written."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hoarfrost.cli import app
from hoarfrost.train import recipes

EPSILON = ["budget", "epsilon", "--delta", "1e-5"]
NOISE = ["--noise-multiplier", "1"]
RATE = ["--sample-rate", "0.1"]
STEPS = ["--steps", "10"]

WRONG: dict[str, tuple[list[str], str]] = {
    "command": (["trian"], "No such command 'trian'"),
    "option": (["train", "--fast"], "No such option"),
    "recipe": (["train", "digts"], "there is no recipe 'digts', nor a file of that name; did you mean digits?"),
    "recipe file": (["train", "absent.toml"], "no recipe file at absent.toml"),
    "broken TOML": (["train", "broken.toml"], "broken.toml is not valid TOML"),
    "unknown key": (["train", "digits", "--set", "privacy.epsilom=2"], "did you mean epsilon?"),
    "override": (["train", "digits", "--set", "privacy.epsilon"], "--set takes key=value"),
    "type": (["train", "digits", "--set", "privacy.epsilon=two"], "privacy.epsilon: must be a valid number"),
    "negative noise": (["train", "--set", "privacy.noise_multiplier=-1"], "must not be negative, got -1"),
    "rate": (["train", "--set", "privacy.sample_rate=1.5"], "must lie in (0, 1], got 1.5"),
    "delta": (["train", "--set", "privacy.delta=1.0"], "strictly between 0 and 1, got 1.0"),
    "data file": (["train", "--set", "data.path=absent.npz"], "no data file at"),
    "seed": (["train", "--seed", "-1"], "privacy.seed must not be negative"),
    "folder in use": (["train", "--out", "used"], "the run folder used is not empty"),
    "folder is a file": (["train", "--out", "broken.toml"], "the run folder broken.toml is a file"),
    "folder below a file": (["train", "--out", "broken.toml/run"], "cannot make the run folder"),
    "batch": (["train", "--set", "privacy.batch_size=9999"], "more than the 1500 examples"),
    "device": (["train", "--device", "abacus"], "the device abacus cannot be used"),
    "key alone": (["train", "--key", "used/precious"], "name the ledger with --ledger PATH"),
    "key alone, resumed": (["train", "--resume", "used", "--key", "used/precious"], "with --ledger PATH"),
    "accept alone": (["train", "--accept", "data"], "name it with --resume RUN"),
    "recipe and resume": (["train", "digits", "--resume", "used"], "leave out RECIPE and --out"),
    "no run folder": (["train", "--resume", "used"], "used is not a run folder"),
    "audit of no run folder": (["audit", "used"], "used is not a run folder"),
    "budget: noise": ([*EPSILON, "--noise-multiplier", "-1", *RATE, *STEPS], "noise_multiplier must not be negative"),
    "budget: rate": ([*EPSILON, *NOISE, "--sample-rate", "0", *STEPS], "sample_rate must lie in (0, 1], got 0"),
    "budget: both rates": ([*EPSILON, *NOISE, *RATE, "--batch-size", "9", *STEPS], "give either --sample-rate, or"),
    "budget: no rate": ([*EPSILON, *NOISE, *STEPS], "give either --sample-rate, or --batch-size with --size"),
    "budget: no size": ([*EPSILON, *NOISE, "--batch-size", "9", *STEPS], "--batch-size needs --size"),
    "budget: large batch": ([*EPSILON, *NOISE, "--batch-size", "9", "--size", "8", *STEPS], "at most 8"),
    "budget: size": ([*EPSILON, *NOISE, *RATE, "--size", "0", *STEPS], "size must be a whole number"),
    "budget: no steps": ([*EPSILON, *NOISE, *RATE], "give either --steps or --epochs"),
    "budget: steps": ([*EPSILON, *NOISE, *RATE, "--steps", "0"], "steps must be a whole number, 1 or above, got 0"),
    "budget: epochs": ([*EPSILON, *NOISE, *RATE, "--epochs", "-1"], "epochs must be above 0"),
    "budget: delta": (["budget", "epsilon", "--delta", "1", *NOISE, *RATE, *STEPS], "strictly between 0 and 1"),
    "budget: missing": (["budget", "epsilon", *NOISE, *RATE, *STEPS], "Missing option '--delta'"),
    "budget: text": ([*EPSILON, "--noise-multiplier", "much", *RATE, *STEPS], "--noise-multiplier"),
    "budget: accountant": ([*EPSILON, *NOISE, *RATE, *STEPS, "--accountant", "prv"], "--accountant"),
    "budget: epsilon": (["budget", "noise", "--epsilon", "0", "--delta", "1e-5", *RATE, *STEPS], "must be above 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_error_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    arguments, message = WRONG[case]
    (tmp_path / "broken.toml").write_text("[data\n")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "precious").write_text("mine")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("hoarfrost: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["broken.toml", "precious", "used"]


def test_a_bug_is_not_dressed_up_as_the_user_s_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("hoarfrost.train.read_recipe", broken)
    result = CliRunner().invoke(app, ["train", recipes()[0]])
    assert isinstance(result.exception, ZeroDivisionError)


@pytest.mark.parametrize(
    "arguments", [[], ["--help"], ["-h"], ["budget"], ["train", "--help"], ["budget", "noise", "-h"]]
)
def test_help_is_there(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert "Usage: " in result.stdout


def test_the_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout.startswith("hoarfrost 0.")
