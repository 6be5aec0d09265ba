"""`hoarfrost measure calibration`: runs are compared by the files they left, whoever wrote them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from typer.testing import CliRunner

from hoarfrost.cli import app
from hoarfrost.measure import Calibration


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def found(scale: float = 1.0) -> Calibration:
    """Twenty examples, of which 15 are right."""
    logits = torch.tensor([[2.0, 0.0, 0.0]] * 20) * scale
    return Calibration.of(logits, torch.tensor([0] * 15 + [1] * 5))


def run(path: str, calibration: object = None) -> Path:
    """A run folder with this in its calibration.json; without any if it is None."""
    folder = Path(path)
    folder.mkdir(parents=True)
    (folder / "recipe.toml").touch()
    if calibration is not None:
        text = calibration if isinstance(calibration, str) else json.dumps(calibration)
        (folder / "calibration.json").write_text(text)
    return folder


def ask(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["measure", "calibration", *map(str, arguments)])


def answer(*arguments: Any) -> str:
    result = ask(*arguments)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return str(result.stdout)


def refused(*arguments: Any) -> str:
    """The one line that is told instead."""
    result = ask(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("hoarfrost: ")
    assert result.stderr.count("\n") == 1
    return str(result.stderr)


def test_a_table_and_a_figure() -> None:
    first, second = found(), found(2.0)
    said = answer(run("runs/first", first.as_dict()), run("runs/second", second.as_dict()))
    header, *rows, empty, wrote = said.splitlines()
    assert header.split() == ["run", "examples", "accuracy", "NLL", "Brier", "ECE", "MCE"]
    assert [row.split() for row in rows] == [
        ["first", "20", "75.0%", f"{first.nll:.3f}", f"{first.brier:.3f}", f"{first.ece:.1%}", f"{first.mce:.1%}"],
        ["second", "20", "75.0%", f"{second.nll:.3f}", f"{second.brier:.3f}", f"{second.ece:.1%}", f"{second.mce:.1%}"],
    ]
    assert (empty, wrote) == ("", "wrote reliability.svg")
    text = Path("reliability.svg").read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert "<!-- first -->" in text
    assert "<!-- second -->" in text
    assert sorted(path.name for path in Path().iterdir()) == ["reliability.svg", "runs"]


def test_the_figure_goes_where_it_is_asked_for() -> None:
    Path("figures").mkdir()
    assert answer(run("first", found().as_dict()), "--out", "figures/mine.svg").endswith("wrote figures/mine.svg\n")
    assert Path("figures/mine.svg").read_text().startswith("<?xml")


def test_a_file_that_is_there_stays() -> None:
    folder = run("first", found().as_dict())
    Path("reliability.svg").write_text("mine")
    assert "there is a file at reliability.svg already; choose another --out, or remove it first" in refused(folder)
    assert Path("reliability.svg").read_text() == "mine"


def test_runs_with_the_same_name_are_told_apart() -> None:
    folders = [run(path, found().as_dict()) for path in ("a/seed/run", "b/seed/run", "c/other", "run")]
    rows = answer(*folders).splitlines()[1:5]
    here = Path().resolve().name
    assert [row.split()[0] for row in rows] == ["a/seed/run", "b/seed/run", "other", f"{here}/run"]
    text = Path("reliability.svg").read_text()
    assert "<!-- a/seed/run -->" in text
    assert "<!-- b/seed/run -->" in text


def test_the_folder_one_is_in_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run("runs/first", found().as_dict()))
    assert answer(".").splitlines()[1].split()[0] == "first"


def test_a_name_that_a_terminal_would_obey_is_spelled_out() -> None:
    said = answer(run("\x1b[31mred [bold]$x_2$\n", found().as_dict()))
    assert "\x1b" not in said
    assert r"\x1b[31mred [bold]$x_2$" in said


WRONG: dict[str, tuple[list[str], str]] = {
    "no run": ([], "Missing argument 'RUN...'"),
    "absent": (["runs/absent"], "there is no run folder at runs/absent; give a folder that `hoarfrost train` made"),
    "a file": (["some.txt"], "there is no run folder at some.txt"),
    "a folder": (["."], "is not a run folder: there is no recipe.toml in it"),
    "regression": (["regression"], "regression has no calibration.json: `hoarfrost train` writes it when the run of"),
    "its remedy": (["regression"], "or leave it out if it is a regression"),
    "good and bad": (["good", "regression"], "regression has no calibration.json"),
    "twice": (["good", "regression/../good"], "the run good is given twice"),
    "not JSON": (["junk"], "junk/calibration.json is not JSON"),
    "not UTF-8": (["binary"], "binary/calibration.json is not JSON"),
    "deep": (["deep"], "deep/calibration.json is not JSON"),
    "many digits": (["digits"], "digits/calibration.json is not JSON"),
    "a list": (["list"], "list/calibration.json: a calibration must have the keys examples, accuracy, "),
    "NaN": (["nan"], "nan/calibration.json: nll must be a number from 0 to 1.79769e+308, got nan"),
    "large": (["large"], "large/calibration.json is too large to be a calibration"),
    "no file": (["folder"], "the calibration folder/calibration.json is a folder, not a file"),
    "no place": (["good", "--out", "absent/x.svg"], "there is no folder absent for the figure; choose another --out"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_told_in_a_line_and_leaves_nothing(case: str) -> None:
    arguments, message = WRONG[case]
    run("good", found().as_dict())
    run("regression")
    run("junk", "{")
    (run("binary") / "calibration.json").write_bytes(b"\xff\xfe")
    run("deep", "[" * 100_000)
    run("digits", "1" * 10_000)
    run("list", [1, 2])
    run("nan", {**found().as_dict(), "nll": float("nan")})
    run("large", " " * 2_000_000)
    (run("folder") / "calibration.json").mkdir()
    Path("some.txt").touch()
    before = sorted(Path().rglob("*"))
    assert message in refused(*arguments)
    assert sorted(Path().rglob("*")) == before


def test_without_matplotlib_there_is_the_table_and_the_name_of_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = ask(run("first", found().as_dict()))
    assert result.exit_code == 2
    assert "first" in result.stdout
    assert "pip install 'hoarfrost[plot]'" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not Path("reliability.svg").exists()
