"""`hoarfrost recipe`."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hoarfrost.cli import app
from hoarfrost.recipes import read_recipe, recipes
from hoarfrost.recipes.reference import reference
from tests.support.recipes import changed


def said(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["recipe", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_list_names_every_built_in_recipe_in_a_line() -> None:
    assert [line.split()[0] for line in said("list").splitlines()] == list(recipes())


def test_show_prints_what_would_be_trained(tmp_path: Path) -> None:
    (tmp_path / "digits.toml").write_text(said("show", "digits"))
    assert read_recipe(tmp_path / "digits.toml") == read_recipe("digits")


def test_check_says_that_a_recipe_is_valid(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(changed())
    assert said("check", str(tmp_path / "mine.toml")).endswith("mine.toml is valid\n")
    assert said("check", "fashion-mnist-pruned") == "fashion-mnist-pruned is valid\n"


WRONG = {
    "privacy.delta must lie strictly between 0 and 1, got 2.0": {
        "privacy": "delta = 2.0\nnoise_multiplier = 1\nbatch_size = 2\nsteps = 1"
    },
    "freeze.first is a number of layers, or a share below 1, got 1.5": {"freeze": 'kind = "layers"\nfirst = 1.5'},
    "freeze.also.first is a number of layers, or a share below 1, got 2.5": {
        "freeze": 'kind = "random"\nrate = 0.5\n[freeze.also]\nkind = "layers"\nfirst = 2.5'
    },
    "freeze: give one of step=, fraction=, epoch= and epsilon=": {"freeze": 'kind = "layers"\nstep = 1\nepoch = 2'},
}  # fmt: skip


@pytest.mark.parametrize("message", WRONG)
def test_check_gives_the_reason_in_one_line(message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(changed(**WRONG[message]))
    result = CliRunner().invoke(app, ["recipe", "check", str(tmp_path / "mine.toml")])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.endswith(f"mine.toml: {message}\n")
    assert result.stderr.count("\n") == 1


def test_reference_prints_the_reference() -> None:
    assert said("reference") == reference()
