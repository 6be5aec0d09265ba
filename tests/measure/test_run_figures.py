"""Figures about measured runs show the numbers of the rows, with their range, and are written to not-private/ alone."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hoarfrost.cli.app import app
from hoarfrost.errors import InvalidValue
from hoarfrost.measure.run_panels import FIGURES, panels_for, rows_of
from hoarfrost.measure.run_rows import read_measured


def signals(value: float) -> dict[str, Any]:
    return {"norms": dict.fromkeys("UBP", value), "angles": dict.fromkeys(("UB", "BP", "UP"), value / 10)}


def rows(scale: float) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for step in (0, 10, 20):
        value = scale * (step + 1)
        found += [
            {"kind": "distortion", "step": step, **signals(value), "layers": {"a": signals(value), "b": signals(2.0)}},
            {
                "kind": "clipping", "step": step, "bounds": {"all parameters": 0.5}, "share_clipped": 0.25 * scale,
                "histogram": {"-3": step, "2": 4, "zero": 1}, "R": value, "alignment": None, "alignment_bound": -value,
            },
            {
                "kind": "truth", "step": step, "angles": dict.fromkeys(("U", "B", "P", "clipped"), 0.1), "mse": value,
                "signal_loss": value, "noise_variance": value,
            },
            {
                "kind": "freezing", "step": step,
                **{k: {"share_clipped": 0.5, "norm_B": value, "angle_UB": None, "signal_loss": 1, "mse": 2}
                   for k in ("frozen", "unfrozen")},
            },
            {"kind": "freeze-counts", "step": step, "steps": step + 1, "coordinates": {"0": 5, "3": 7}},
        ]  # fmt: skip
    return found


def run(folder: Path, scale: float = 1.0, seed: int = 1, lr: float = 0.5) -> Path:
    (folder / "not-private").mkdir(parents=True)
    recipe = f'name = "{folder.name}"\n[optimizer]\nlr = {lr}\n[privacy]\nseed = {seed}\n'
    (folder / "recipe.toml").write_text(recipe)
    (folder / "not-private/measure.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(scale)))
    return folder


def ask(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["measure", *map(str, arguments)])


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_is_drawn_into_the_run_s_folder_for_what_is_not_private(figure: str, tmp_path: Path) -> None:
    folder = run(tmp_path / "run")
    before = set(tmp_path.rglob("*"))
    result = ask(figure, folder)
    assert result.exit_code == 0, result.output
    made = set(tmp_path.rglob("*")) - before
    assert made == {folder / "not-private" / f"{figure}.{kind}" for kind in ("svg", "png", "csv")}
    numbers = list(csv.DictReader((folder / "not-private" / f"{figure}.csv").read_text("utf-8").splitlines()))
    assert len(numbers) == len(rows_of(panels_for(figure, read_measured({"run": folder}))))
    assert "not private" in result.output


def test_runs_that_differ_in_their_seed_are_one_line_with_its_range(tmp_path: Path) -> None:
    first, second = run(tmp_path / "a", 1.0, seed=1), run(tmp_path / "b", 3.0, seed=2)
    other = run(tmp_path / "c", 1.0, seed=1, lr=0.9)
    found = read_measured({"a": first, "b": second, "c": other})
    assert [each.label for each in found] == ["a (2 runs)", "c"]
    numbers = [row for row in rows_of(panels_for("norms", found)) if row["quantity"] == "‖s^B‖" and row["x"] == 10]
    assert [(row["curve"], row["mean"], row["least"], row["most"], row["runs"]) for row in numbers] == [
        ("a (2 runs)", 22.0, 11.0, 33.0, 2),
        ("c", 11.0, 11.0, 11.0, 1),
    ]


def test_one_run_is_shown_with_its_layers_and_several_with_one_of_them(tmp_path: Path) -> None:
    first, second = run(tmp_path / "a"), run(tmp_path / "b", lr=0.1)
    alone = panels_for("angles", read_measured({"a": first}))
    assert [curve.label for curve in alone[0].curves] == ["all layers", "a", "b"]
    both = panels_for("norms", read_measured({"a": first, "b": second}), "b")
    assert [list(curve.points.values()) for curve in both[0].curves] == [[[2.0]] * 3] * 2
    with pytest.raises(InvalidValue, match="of the layer 'x': there are a, b"):
        panels_for("norms", read_measured({"a": first}), "x")


def test_a_histogram_has_its_bins_and_the_clipping_norm(tmp_path: Path) -> None:
    first, middle, last = panels_for("histogram", read_measured({"a": run(tmp_path / "a")}))
    assert [panel.title for panel in (first, middle, last)] == ["step 0", "step 10", "step 20"]
    assert middle.marks == {"C": 0.5}
    points = middle.curves[0].points
    assert points[10 ** (-2.5 / 10)] == [10.0]
    assert points[10 ** (2.5 / 10)] == [4.0]
    assert sum(values[0] for values in points.values()) == 14


def test_steps_that_were_taken_again_count_once(tmp_path: Path) -> None:
    folder = run(tmp_path / "a")
    with (folder / "not-private/measure.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "distortion", "step": 10, **signals(5.0), "layers": {}}) + "\n")
    (curve, *_) = panels_for("norms", read_measured({"a": folder}))[0].curves
    assert curve.points == {0: [1.0], 10: [5.0], 20: [21.0]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["angles", "good", "other"], "several runs need --out DIR"),
        (["angles", "good", "--out", "public"], "not below a folder called not-private"),
        (["angles", "absent"], "there is no run folder at absent"),
        (["angles", "plain"], "plain has no not-private/measure.jsonl: nothing was measured"),
        (["truth", "some"], "none of these runs measured truth: train with --measure truth"),
        (["angles", "junk"], "has a line that is no measurement"),
        (["angles", "good", "good"], "given twice"),
    ],
)
def test_what_is_wrong_is_told_in_a_line_and_leaves_nothing(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("good", "some", "junk", "other"):
        run(Path(name), lr=len(name))
    (Path("plain") / "not-private").mkdir(parents=True)
    Path("public").mkdir()
    Path("junk/not-private/measure.jsonl").write_text('{"kind": "distortion"}\n')
    Path("some/not-private/measure.jsonl").write_text('{"kind": "clipping", "step": 0}\n')
    before = sorted(Path().rglob("*"))
    result = ask(*arguments)
    assert result.exit_code != 0
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert sorted(Path().rglob("*")) == before
