"""`hoarfrost measure membership`, as it is typed."""

from __future__ import annotations

import csv
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hoarfrost.cli import app
from hoarfrost.cli.measure_attacks import Attack
from hoarfrost.train import membership, run
from tests.support.recipes import tiny

WRITTEN = {f"membership-{what}.{kind}" for what in ("roc", "classes") for kind in ("svg", "png", "csv")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    run(tiny(name="first"), out=folder / "first")
    run(tiny(name="second", privacy__noise_multiplier=0.0), out=folder / "second")
    return folder / "first", folder / "second"


def ask(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["measure", "membership", *map(str, arguments)])


def answer(*arguments: Any) -> list[str]:
    result = ask(*arguments)
    assert result.exit_code == 0, result.output
    return str(result.stdout).splitlines()


def refused(*arguments: Any) -> str:
    result = ask(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    return str(result.stderr)


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_one_run_has_its_figures_in_its_own_folder(runs: tuple[Path, Path]) -> None:
    before = {*runs[0].iterdir()}
    header, row, empty, wrote, honest = answer(runs[0], "--attack", "threshold")
    assert header.split()[:4] == ["run", "members", "AUC", "at"]
    assert row.split()[:2] == ["first", "297"]
    assert empty == ""
    assert wrote.endswith(f"{runs[0]}/not-private: not private, like all of this")
    assert "lower bounds on the leak" in honest
    assert {*runs[0].iterdir()} == before
    assert {path.name for path in (runs[0] / "not-private").iterdir()} >= WRITTEN
    whole, *classes = rows(runs[0] / "not-private/membership-classes.csv")
    assert (whole["class"], whole["members"]) == ("all", "297")
    assert [each["class"] for each in classes] == list("0123456789")
    assert f"{float(whole['auc']):.3f}" in row
    assert f"{float(whole['auc_bound']):.3f}" in row
    curve = rows(runs[0] / "not-private/membership-roc.csv")
    assert (curve[0]["fpr"], curve[0]["tpr"], curve[-1]["fpr"], curve[-1]["tpr"]) == ("0.0", "0.0", "1.0", "1.0")
    area = sum(
        (float(b["fpr"]) - float(a["fpr"])) * (float(a["tpr"]) + float(b["tpr"])) / 2 for a, b in pairwise(curve)
    )
    assert area == pytest.approx(float(whole["auc"]))


def test_several_runs_and_attacks_are_compared(runs: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "not-private"
    said = answer(*runs, "--attack", "threshold", "--attack", "logistic", "--out", out, "--examples", 60)
    names = ["first, threshold", "first, logistic", "second, threshold", "second, logistic"]
    assert [line.split("  ")[0] for line in said[1:5]] == names
    assert said[3].split()[-1] == "1.000"  # the second run bounds nothing
    assert list(dict.fromkeys(row["run"] for row in rows(out / "membership-roc.csv"))) == names
    assert {path.name for path in out.iterdir()} == WRITTEN


def test_shadow_models_say_how_long_they_take(runs: tuple[Path, Path]) -> None:
    said = answer(runs[0], "--attack", "lira", "--shadows", 4, "--examples", 40)
    assert said[0].startswith("4 of 4 shadow models are still to be trained, each as long as the run itself (")
    assert "not-private/shadows" in said[0]
    assert said[4] == "shadow model 4 of 4 is trained"
    assert not any("shadow model" in line for line in answer(runs[0], "--attack", "lira", "--shadows", 4,
                                                             "--examples", 40))  # fmt: skip


def test_a_red_flag_is_told_in_words(runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    real = membership.allowed
    monkeypatch.setattr(membership, "allowed", lambda folder: (real(folder)[0], membership.Tradeoff([(0.0, 0.0)])))
    monkeypatch.setattr(membership, "loss_threshold", lambda losses: -1.0 * (losses * 0 + _numbers(len(losses))))
    (flag, *_) = [line for line in answer(runs[0], "--attack", "threshold") if line.startswith("RED FLAG")]
    assert flag.startswith("RED FLAG: first: AUC 1.000 [")
    assert "where at most 0.500 is possible. Either training leaks more than it states, or members and" in flag


def _numbers(count: int) -> Any:
    import torch

    return torch.arange(count, dtype=torch.float64)


def test_it_is_refused_before_anything_is_computed(runs: tuple[Path, Path], tmp_path: Path) -> None:
    assert "several runs need --out: a folder called not-private" in refused(*runs)
    assert "is not called not-private: what an attack finds must not be released" in refused(runs[0], "--out", tmp_path)
    assert "there is no folder" in refused(runs[0], "--out", tmp_path / "absent" / "not-private")
    assert "is given twice" in refused(runs[0], runs[0], "--out", tmp_path / "not-private")
    assert "is not a run folder" in refused(tmp_path)
    assert "even number of shadow models" in refused(runs[0], "--attack", "lira", "--shadows", "3")
    assert "examples must be a whole number" in refused(runs[0], "--examples", "0")
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_its_folder_for_private_things_gets_one(runs: tuple[Path, Path], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(runs[0], copy)
    shutil.rmtree(copy / "not-private")
    answer(copy, "--attack", "threshold", "--examples", 20)
    assert {path.name for path in (copy / "not-private").iterdir()} == WRITTEN


def test_the_attacks_are_those_of_the_library() -> None:
    assert tuple(Attack) == membership.ATTACKS
