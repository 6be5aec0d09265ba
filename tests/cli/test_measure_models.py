"""`hoarfrost measure` looks at trained models: its tables are what the functions say, its figures in not-private/."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from hoarfrost.cli import app
from hoarfrost.clipping import Local, PerLayer
from hoarfrost.measure import TangentKernels, activations, cka, connectivity, loss_surface, pwcca, random_directions
from hoarfrost.train import read_recipe, run
from hoarfrost.train.loading import Trained

OVERRIDES = ["model.channels=[4]", "privacy.steps=20", "data.name=digits"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of the same recipe, and one of another architecture."""
    folder = tmp_path_factory.mktemp("runs")
    for name, seed, channels in (("one", 1, 4), ("two", 2, 4), ("wide", 3, 5)):
        recipe = read_recipe("digits", [*OVERRIDES, f"privacy.seed={seed}", f"model.channels=[{channels}]"])
        run(recipe, out=folder / name, device="cpu")
    return folder


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def ask(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["measure", *map(str, arguments), "--device", "cpu"])


def answer(*arguments: Any) -> list[list[str]]:
    """The lines of a table, cell by cell; what is above and below it first and last."""
    result = ask(*arguments)
    assert result.exit_code == 0, result.output
    assert "not private" in result.stdout.splitlines()[0]
    return [re.split(r" {2,}", line.strip()) for line in result.stdout.splitlines()]


def refused(*arguments: Any) -> str:
    result = ask(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.count("\n") == 1
    return str(result.stderr)


def sample(trained: Trained, test: bool, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As the commands draw it."""
    x, y = (trained.splits.test if test else trained.splits.train).tensors  # type: ignore[union-attr]
    places = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:count]
    return x[places], y[places]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def figures(folder: Path, name: str) -> None:
    for kind, start in (("svg", b"<?xml"), ("png", b"\x89PNG")):
        assert (folder / f"{name}.{kind}").read_bytes().startswith(start)


@pytest.mark.parametrize("test", [False, True])
def test_connectivity_is_that_of_the_two_runs(runs: Path, tmp_path: Path, test: bool) -> None:
    out, flags = tmp_path / "not-private", ["--test"] * test
    said = answer("connectivity", runs / "one", runs / "two", "--out", out, "--points", 5, "--examples", 60, *flags)
    one, two = (Trained.load(runs / name) for name in ("one", "two"))
    expected = connectivity(one.model, two.model, [sample(one, test, 60)], points=5)
    assert said[0] == [f"on the {'test' if test else 'training'} set; not private"]
    numbers = (expected.distance, expected.losses[0], expected.losses[-1], expected.highest, expected.instability)
    assert said[2] == ["one and two", *(f"{number:.4g}" for number in numbers)]
    assert [float(row["loss"]) for row in rows(out / "connectivity.csv")] == pytest.approx(expected.losses)
    figures(out, "connectivity")


def test_directions_go_as_far_as_the_other_run(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "not-private"
    arguments = ["--count", 3, "--points", 4, "--examples", 30, "--seed", 7, "--out", out]
    said = answer("directions", runs / "one", "--towards", runs / "two", *arguments)
    one, two = (Trained.load(runs / name) for name in ("one", "two"))
    way = connectivity(one.model, two.model, [sample(one, False, 30)], points=4)
    expected = random_directions(
        one.model, [sample(one, False, 30)], distance=way.distance, count=3, points=4, seed=7
    )  # fmt: skip
    ends = sorted(losses[-1] for losses in expected.losses)
    numbers = (way.distance, expected.losses[0][0], ends[0], expected.mean[-1], ends[-1])
    assert said[2] == ["3 random directions", *(f"{number:.4g}" for number in numbers)]
    assert said[3][:2] == ["towards two", f"{way.distance:.4g}"]
    assert said[4] == [
        f"largest |cosine| between two directions: {expected.largest_cosine:.2g}; the loss rises along "
        f"{expected.rises} of 3"
    ]
    assert len(rows(out / "directions.csv")) == 3 * 4 + 4
    figures(out, "directions")
    assert answer("directions", runs / "one", "--distance", 2, *arguments)[2][1] == "2"


def test_a_surface_lands_in_the_run(runs: Path) -> None:
    said = answer("surface", runs / "one", "--points", 3, "--examples", 30, "--reach", 0.5)
    one = Trained.load(runs / "one")
    expected = loss_surface(one.model, [sample(one, False, 30)], points=3, reach=0.5)
    every = sorted(value for row in expected.losses for value in row)
    numbers = (expected.losses[1][1], every[0], every[4], every[-1])
    assert said[2] == ["one", *(f"{number:.4g}" for number in numbers)]
    figures(runs / "one" / "not-private", "surface")


def test_the_ntk_has_the_papers_table(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "not-private"
    said = answer("ntk", runs / "one", "--examples", 6, "--norm", 0.2, "--steps", 5, "--out", out)
    one = Trained.load(runs / "one")
    batch = TangentKernels(one.model, *sample(one, False, 6))
    kernels = [batch.kernel(clip) for clip in (None, Local(1e6), Local(0.2), PerLayer(Local(0.2)))]
    shown = {line[0]: line[1:] for line in said}
    assert shown["NTK"] == ["H", "HC", "HC", "Σ H_r C_r"]
    assert shown["clipping norm R"][1:] == ["0.2", "0.2"]
    assert shown["symmetric"] == ["yes" if each.symmetric else "no" for each in kernels] == ["yes", "yes", "no", "no"]
    assert shown["positive in eigenvalues"] == ["yes" if each.positive_in_eigenvalues else "no" for each in kernels]
    assert shown["-dL/dt, predicted"] == [f"{each.decay:.7g}" for each in kernels]
    for predicted, measured in zip(shown["-dL/dt, predicted"], shown["-dL/dt, measured"], strict=True):
        assert float(measured) == pytest.approx(float(predicted), rel=1e-5)
    figures(out, "ntk")
    part = answer(
        "ntk", runs / "one", "--examples", 6, "--norm", 0.2, "--steps", 1, "--parameters", "*.bias", "--out", out
    )
    assert {line[0]: line[1:] for line in part}["-dL/dt, predicted"] != shown["-dL/dt, predicted"]


def test_similarity_is_by_layer(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "not-private"
    said = answer("similarity", runs / "one", runs / "wide", "--examples", 100, "--out", out, "--test")
    one, wide = (Trained.load(runs / name) for name in ("one", "wide"))
    batch = [sample(one, True, 100)]
    seen, known = activations(one.model, batch), activations(wide.model, batch)
    for line, (name, found) in zip(said[2:], seen.of.items(), strict=False):
        scores = [f"{measure(found, known.of[name]):.3f}" for measure in (pwcca, cka)]
        assert line == [name, str(found.shape[1]), str(found.shape[0]), *scores]
    figures(out, "similarity")


def test_what_cannot_be_is_refused_before_anything_is_computed(runs: Path, tmp_path: Path) -> None:
    one, two, out = runs / "one", runs / "two", tmp_path / "not-private"
    assert "Missing option '--out'" in refused("connectivity", one, two)
    assert "is not called not-private" in refused("connectivity", one, two, "--out", tmp_path)
    assert "is not called not-private" in refused("surface", one, "--out", tmp_path / "public")
    assert "the models have different shapes" in refused("connectivity", one, runs / "wide", "--out", out)
    assert "either --towards another run, or --distance" in refused("directions", one)
    assert "either --towards another run, or --distance" in refused(
        "directions", one, "--towards", two, "--distance", 1
    )
    assert "is not a run folder" in refused("ntk", tmp_path / "absent")
    assert "is given twice" in refused("similarity", one, one, "--out", out)
    assert "examples must be a whole number" in refused("surface", one, "--examples", 0)
    assert "the model has no layer 77" in refused("similarity", one, two, "--out", out, "--layer", 77)
    assert not out.exists()
    assert not (tmp_path / "public").exists()
