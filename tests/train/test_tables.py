"""Runs on a table: from the file to the weights, and the private release that standardises columns."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hoarfrost import budget
from hoarfrost.errors import InvalidValue
from hoarfrost.freezing import Freezer, PrivateScaling
from hoarfrost.info import RunInfo
from hoarfrost.masks import Live
from hoarfrost.models import Standardize
from hoarfrost.recipes import read_recipe, to_toml
from hoarfrost.train import resume, run
from hoarfrost.train.prepare import Prepared, prepare
from tests.support.kills import run_until_killed
from tests.support.recipes import tiny

ROWS = 2000
SCALING = budget.Gaussian(noise_multiplier=30.0)
PRIVATE = {"scaling": "private", "scaling_noise": 30.0}


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Any]:
    """A table in which the colour and a narrow column tell the class."""
    generator = np.random.RandomState(0)
    rows = ["height,hue,weight,kind"]
    for _ in range(ROWS):
        kind = generator.randint(2)
        hue = ("red", "blue", "green")[generator.randint(2) + kind]
        rows.append(f"{generator.normal(60 + 2 * kind, 1):.3f},{hue},{generator.normal(0, 30):.3f},{'ab'[kind]}")
    (tmp_path / "mine.csv").write_text("\n".join(rows) + "\n")
    return {
        "path": str(tmp_path / "mine.csv"),
        "target": "kind",
        "labels": ["a", "b"],
        "test_share": 0.25,
        "bounds": {"height": [0, 100], "weight": [-100, 100]},
        "categories": {"hue": ["red", "blue", "green"]},
    }


def prepared(data: dict[str, Any], **changes: Any) -> Prepared:
    return prepare(tiny(data=data, **changes), torch.device("cpu"))


def scaling_of(model: nn.Module) -> Standardize:
    layer = model.get_submodule("scaling")
    assert isinstance(layer, Standardize)
    return layer


def test_a_table_is_trained_on_and_the_recipe_reads_back(data: dict[str, Any], tmp_path: Path) -> None:
    recipe = tiny(data=data, privacy__steps=40, optimizer__lr=2.0, privacy__noise_multiplier=0.5)
    result = run(recipe, out=tmp_path / "run")
    assert result.test_accuracy is not None
    assert result.test_accuracy > 0.7
    assert read_recipe(tmp_path / "run" / "recipe.toml", root=tmp_path) == recipe


def test_a_real_target_is_learned_and_measured_in_its_own_units(data: dict[str, Any], tmp_path: Path) -> None:
    regression = {key: value for key, value in data.items() if key not in ("labels", "target", "bounds")}
    regression |= {"target": "weight", "target_bounds": [-100, 100], "bounds": {"height": [0, 100]}, "drop": ["kind"]}
    recipe = tiny(data=regression, loss={"kind": "squared_error"})
    result = run(recipe, out=tmp_path / "run")
    mse = result.test_metrics["mse"]
    assert result.test_loss is not None
    assert mse == pytest.approx(result.test_loss * 100**2, rel=1e-4)
    assert 0.5 * 30**2 < mse < 3 * 30**2  # the target is noise with a standard deviation of 30
    splits = prepare(recipe, torch.device("cpu")).splits
    assert (splits.classes, splits.unit, splits.train.tensors[1].dtype) == (None, 100.0, torch.float32)


def test_a_loss_that_does_not_fit_the_target_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match="takes real numbers, and the data set has classes"):
        prepare(tiny(data=data, loss={"kind": "squared_error"}), torch.device("cpu"))


WINE = {
    "fixed acidity": 7.4, "volatile acidity": 0.7, "citric acid": 0.0, "residual sugar": 1.9, "chlorides": 0.076,
    "free sulfur dioxide": 11.0, "total sulfur dioxide": 34.0, "density": 0.9978, "pH": 3.51, "sulphates": 0.56,
    "alcohol": 9.4, "quality": 5,
}  # fmt: skip
HOUSES = {
    "MedInc": 8.3, "HouseAge": 41.0, "AveRooms": 6.98, "AveBedrms": 1.02, "Population": 322.0, "AveOccup": 2.56,
    "Latitude": 37.9, "Longitude": -122.2, "MedHouseVal": 4.5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "row", "file", "separator"),
    [
        ("wine-clipping", WINE, "winequality-red.csv", ";"),
        ("housing-clipping", HOUSES, "california_housing.csv", ","),
    ],
)
def test_built_in_recipes_read_a_file_in_the_current_folder(
    name: str, row: dict[str, float], file: str, separator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header, values = (separator.join(map(str, each)) for each in (row, row.values()))
    (tmp_path / file).write_text("\n".join([header, *[values] * 1000]) + "\n")
    monkeypatch.chdir(tmp_path)
    steps = ["privacy.steps=2", "privacy.noise_multiplier=1"]
    recipe = read_recipe(name, steps)
    assert recipe.data.path == str(tmp_path / file)
    result = run(recipe, out=tmp_path / "run")
    assert result.steps == 2
    assert result.test_metrics["mse"] > 0
    monkeypatch.chdir("/")
    with pytest.raises(InvalidValue, match=f"no data file at /{file}"):
        run(read_recipe(name, steps), out=tmp_path / "other")


def test_private_scaling_finds_about_the_means_and_spreads(data: dict[str, Any], tmp_path: Path) -> None:
    result = run(tiny(data=data | PRIVATE), out=tmp_path / "run")
    layer, x = scaling_of(result.model), prepared(data).splits.train.tensors[0]
    noise = 30 * math.sqrt(2 * 2) / len(x)
    numeric = [0, 4]
    torch.testing.assert_close(layer.mean[numeric], x.mean(0)[numeric], rtol=0, atol=5 * noise)
    assert layer.mean[1:4].tolist() == [0, 0, 0]
    assert layer.std[1:4].tolist() == [1, 1, 1]
    spread = x.std(0)[4].item()
    assert layer.std[4].item() == pytest.approx(spread, rel=0.5)
    assert layer.std[0].item() >= math.sqrt(noise) * 0.999  # the column is narrower than the noise can tell


def test_the_release_is_planned_calibrated_for_and_in_the_statement(data: dict[str, Any], tmp_path: Path) -> None:
    privacy = {"epsilon": 1.0, "delta": 1e-4, "sample_rate": 0.2, "steps": 7}
    alone, with_it = prepared(data, privacy=privacy), prepared(data | PRIVATE, privacy=privacy)
    assert [release.event for release in with_it.private.plan.releases] == [SCALING]
    assert with_it.private.noise_multiplier > alone.private.noise_multiplier
    result = run(tiny(data=data | PRIVATE, privacy=privacy), out=tmp_path / "run")
    assert SCALING in result.statement.releases
    assert 0.95 < result.statement.epsilon <= 1
    paid = [entry for entry in budget.Ledger(tmp_path / "run" / "ledger.jsonl").entries if entry.owner is not None]
    assert [(entry.event, entry.reserved) for entry in paid] == [(SCALING, 1)]


def test_it_is_charged_before_a_row_is_read(data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    private = prepared(data | PRIVATE).private
    looked: list[tuple[Any, ...]] = []
    real = type(private.loader).one_by_one

    def watched(*arguments: Any) -> Any:
        looked.append(tuple(private.account.releases.values()))
        return real(*arguments)

    monkeypatch.setattr(type(private.loader), "one_by_one", watched)
    assert looked == []
    next(iter(private.loader))
    assert looked == [(SCALING,)]


def test_a_resumed_run_does_not_look_again(data: dict[str, Any], tmp_path: Path) -> None:
    recipe = tiny(data=data | PRIVATE, loop={"threads": 1, "checkpoint_every": 2})
    run_until_killed(5, run, recipe, out=tmp_path / "run")
    entries = budget.Ledger(tmp_path / "run" / "ledger.jsonl").entries
    before = [entry.id for entry in entries if entry.owner is not None]
    result = resume(tmp_path / "run")
    assert [event for event in result.statement.releases if event == SCALING] == [SCALING]
    entries = budget.Ledger(tmp_path / "run" / "ledger.jsonl").entries
    assert [entry.id for entry in entries if entry.owner is not None and entry.reserved] == before
    assert scaling_of(result.model).mean[0] != 0


def test_an_interrupted_run_and_a_whole_one_are_the_same(data: dict[str, Any], tmp_path: Path) -> None:
    """Without noise in the steps, with all examples in each, and with a seed."""
    settings: dict[str, Any] = {
        "privacy": {"noise_multiplier": 0.0, "delta": 1e-4, "sample_rate": 1.0, "steps": 7, "seed": 3},
        "loop": {"threads": 1, "checkpoint_every": 2},
    }
    run_until_killed(5, run, tiny(data=data | PRIVATE, **settings), out=tmp_path / "run")
    resumed = resume(tmp_path / "run")
    whole = run(tiny(data=data | PRIVATE, **settings), out=tmp_path / "whole")
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


@pytest.mark.parametrize(
    "freeze",
    [
        {"kind": "random", "rate": 0.5, "cooling": 2},
        {"kind": "ranked", "rate": 0.5},
        {"kind": "random_tensors", "share": 0.5},
        {"kind": "layers", "first": 1, "step": 2},
    ],
    ids=lambda freeze: freeze["kind"],
)
def test_it_goes_with_every_freezer(data: dict[str, Any], tmp_path: Path, freeze: dict[str, Any]) -> None:
    result = run(tiny(data=data | PRIVATE, freeze=freeze), out=tmp_path / "run")
    assert result.steps == 7
    assert SCALING in result.statement.releases
    assert result.density is not None
    assert result.density < 1
    assert scaling_of(result.model).mean[0] != 0


class Recorded:
    """A query without noise that keeps what it was told."""

    def __init__(self, rows: Tensor) -> None:
        self.rows, self.expected_batch = rows, float(len(rows))
        self.contributions: list[Tensor] = []
        self.bound = 0.0

    def sum(self, compute: Any, *, size: int, bound: float) -> Tensor:
        self.bound = bound
        self.contributions = [compute(None, (row[None], torch.zeros(1))) for row in self.rows]
        assert all(each.shape == (size,) for each in self.contributions)
        return torch.stack(self.contributions).sum(0).float()


def test_no_row_moves_the_sums_by_more_than_the_bound() -> None:
    """Every row that the encoding can give: numbers in [-1, 1]; the extremes are as long as the bound says."""
    layer = Standardize([0, 2, 3], width=4)
    rows = torch.cat([torch.tensor([[-1.0, 1, 1, -1], [0, 0, 0, 0]]), torch.rand(50, 4) * 2 - 1])
    query: Any = Recorded(rows)
    PrivateScaling(layer, noise_multiplier=1e-3).prepare(0, query, RunInfo({}))
    norms = torch.stack(query.contributions).norm(dim=1)
    assert query.bound == pytest.approx(math.sqrt(6))
    assert norms.max().item() == pytest.approx(query.bound, abs=1e-6)
    assert norms.argmax() == 0
    exact = rows[:, [0, 2, 3]]
    torch.testing.assert_close(layer.mean[[0, 2, 3]], exact.mean(0))
    torch.testing.assert_close(layer.std[[0, 2, 3]], exact.std(0, correction=0))


def test_what_it_sets_is_finite_whatever_the_noise() -> None:
    layer = Standardize([0], width=1)
    for noisy in (torch.tensor([1e30, -1e30]), torch.tensor([-5.0, 0.0]), torch.zeros(2)):
        query: Any = SimpleNamespace(expected_batch=10.0, sum=lambda *_, noisy=noisy, **__: noisy)
        PrivateScaling(layer, noise_multiplier=1.0).prepare(0, query, RunInfo({}))
        assert -1 <= layer.mean.item() <= 1
        assert math.sqrt(math.sqrt(2) / 10) * 0.999 <= layer.std.item() <= 1


def test_it_needs_a_layer_and_noise() -> None:
    with pytest.raises(InvalidValue, match="sets a Standardize layer"):
        PrivateScaling(nn.Linear(2, 2), 1.0)
    with pytest.raises(InvalidValue, match="noise_multiplier must be above 0"):
        PrivateScaling(Standardize([0], width=1), 0.0)


@pytest.mark.parametrize("trait", ["velocity_flows", "clips_everything"])
def test_it_goes_with_a_freezer_that_means_something_else_by_frozen(trait: str) -> None:
    class Odd(Freezer):
        def live(self, step: int, info: RunInfo) -> Live:
            return dict.fromkeys(info.shapes, False)

    odd, layer = Odd(), Standardize([0], width=1)
    setattr(odd, trait, True)
    with pytest.raises(InvalidValue, match="cannot be combined"):
        odd & PrivateScaling(layer, 1.0)
    both = odd & PrivateScaling(layer, 1.0, beside=odd)
    assert getattr(both, trait)
    assert both.live(0, RunInfo({"w": torch.Size([2])})) == {"w": False}


# Recipes.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": None}, "data.target is missing"),
        ({"test_share": None}, "data.test or test_share is missing"),
        ({"labels": None}, "data.target needs one of classes = N"),
        ({"classes": 2}, "give one of classes=, labels= and target_bounds="),
        ({"test": "other.csv"}, "give one of test= and test_share="),
        ({"test": "other.npz", "test_share": None}, "data.test must be a table"),
        ({"test": "other.csv", "test_share": None, "split_seed": 1}, "data.split_seed is for test_share"),
        ({"scaling": "private"}, "scaling_noise belong together"),
        ({"scaling_noise": 1.0}, "scaling_noise belong together"),
        ({"mean": [1.0]}, "mean and std are not for tables"),
        ({"path": "a.npz"}, "data.target is for a table"),
        ({"bounds": {"height": [1, 0]}}, "data.bounds of 'height' must be two numbers, the lower one first"),
        ({"columns": ["hue"], "drop": ["weight"]}, "give one of columns= and drop="),
    ],
)
def test_keys_that_do_not_fit_are_refused_when_the_recipe_is_read(
    data: dict[str, Any], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    given = {key: value for key, value in (data | {"path": "mine.csv"} | changes).items() if value is not None}
    (tmp_path / "recipe.toml").write_text(as_text(given))
    with pytest.raises(InvalidValue, match=message):
        read_recipe(tmp_path / "recipe.toml")


def as_text(data: dict[str, Any]) -> str:
    """A recipe with that table of data."""
    rest = to_toml(tiny()).partition("[model]")[2]
    inline = {key: value for key, value in data.items() if not isinstance(value, dict)}
    lines = ["[data]", *(f"{key} = {value!r}" for key, value in inline.items())]
    for key, entries in data.items():
        if isinstance(entries, dict):
            lines += [f"[data.{key}]", *(f"{name} = {value!r}" for name, value in entries.items())]
    return "\n".join([*lines, "[model]", rest])


def test_the_test_file_is_found_beside_the_recipe(data: dict[str, Any], tmp_path: Path) -> None:
    given = {key: value for key, value in data.items() if key != "test_share"} | {
        "path": "mine.csv",
        "test": "b/t.csv",
    }
    (tmp_path / "recipe.toml").write_text(as_text(given))
    recipe = read_recipe(tmp_path / "recipe.toml")
    assert (recipe.data.path, recipe.data.test) == (str(tmp_path / "mine.csv"), str(tmp_path / "b" / "t.csv"))


def test_long_lists_read_back_from_the_run_folder(data: dict[str, Any], tmp_path: Path) -> None:
    """No line is longer than a recipe's may be."""
    many = {"hue": [f"value {number} of a long list" for number in range(300)], "a.b c": ["x"]}
    recipe = tiny(data=data | {"categories": many})
    text = to_toml(recipe, explained=True)
    assert max(map(len, text.splitlines())) < 300
    (tmp_path / "recipe.toml").write_text(text)
    assert read_recipe(tmp_path / "recipe.toml") == recipe
