"""Recipes whose unit is a person: what is drawn, what run folders say, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hoarfrost import budget
from hoarfrost.errors import InvalidValue
from hoarfrost.recipes import read_recipe
from hoarfrost.train import resume, run
from hoarfrost.train.prepare import Prepared, prepare
from tests.support.kills import run_until_killed
from tests.support.recipes import tiny

PRIVACY = {"noise_multiplier": 1.0, "delta": 1e-4, "batch_size": 20, "steps": 6, "per_person": 3}


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Any]:
    """300 people with one row to six each."""
    generator = np.random.RandomState(0)
    rows = ["customer,height,kind"]
    for who in range(300):
        kind = generator.randint(2)
        for _ in range(1 + who % 6):
            rows.append(f"c{who},{generator.normal(20 + 60 * kind, 5):.3f},{'ab'[kind]}")
    (tmp_path / "mine.csv").write_text("\n".join(rows) + "\n")
    return {
        "path": str(tmp_path / "mine.csv"),
        "target": "kind",
        "labels": ["a", "b"],
        "person": "customer",
        "test_share": 0.25,
        "bounds": {"height": [0, 100]},
    }


def prepared(data: dict[str, Any], **changes: Any) -> Prepared:
    return prepare(tiny(**{"data": data, "privacy": PRIVACY, **changes}), torch.device("cpu"))


def test_the_plan_counts_people(data: dict[str, Any]) -> None:
    parts = prepared(data)
    plan, people = parts.private.plan, parts.splits.people
    assert people is not None
    assert plan.unit == "one person"
    assert plan.size == len(people.unique()) < len(parts.splits.train) / 2
    assert plan.sample_rate == 20 / plan.size
    assert f"{plan.size} people with {len(people)} rows" in parts.overview().headline
    assert "20 people expected in each" in parts.overview().headline
    chunk = None

    def noted(given: Any) -> None:
        nonlocal chunk
        chunk = given

    parts.private.loader.on_chunk = noted
    x, _ = next(iter(parts.private.loader))
    assert chunk is not None
    assert chunk.groups is not None
    assert len(x) == chunk.groups.rows
    assert 1 <= int(chunk.groups.sizes.min()) <= int(chunk.groups.sizes.max()) == 3


def test_a_run_folder_says_for_whom(data: dict[str, Any], tmp_path: Path) -> None:
    recipe = tiny(data=data, privacy=PRIVACY | {"steps": 40, "noise_multiplier": 0.5}, optimizer__lr=2.0)
    result = run(recipe, out=tmp_path / "run")
    assert result.test_accuracy is not None
    assert result.test_accuracy > 0.8
    assert result.statement.unit == "one person"
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["unit"] == "one person"
    assert facts["people"] == facts["expected_batch"] / facts["sample_rate"] < facts["train_examples"]
    assert json.loads((tmp_path / "run" / "budget.json").read_text())["unit"] == "one person"
    words = (tmp_path / "run" / "budget.txt").read_text()
    assert "for one person: add or remove one" in words
    assert "Whether any one person was among the training data, with all their rows, or not changes" in words
    assert budget.Ledger(tmp_path / "run" / "ledger.jsonl").unit == "one person"
    assert read_recipe(tmp_path / "run" / "recipe.toml", root=tmp_path) == recipe


def test_a_run_that_was_killed_goes_on(data: dict[str, Any], tmp_path: Path) -> None:
    recipe = tiny(data=data, privacy=PRIVACY, loop={"threads": 1, "checkpoint_every": 2, "max_physical_batch": 12})
    run_until_killed(4, run, recipe, out=tmp_path / "run")
    result = resume(tmp_path / "run")
    assert (result.status, result.steps, result.statement.unit) == ("completed", 6, "one person")


def test_whose_the_rows_are_is_part_of_the_data(data: dict[str, Any], tmp_path: Path) -> None:
    """The same rows with other owners are other data: what was stated for the old people does not hold for them."""
    digest = prepared(data).digest
    path = Path(data["path"])
    path.write_text(path.read_text().replace("c12,", "c18,"))
    assert prepared(data).digest != digest


def test_private_scaling_counts_people(data: dict[str, Any]) -> None:
    parts = prepared(data | {"scaling": "private", "scaling_noise": 1e-3})
    next(iter(parts.private.loader))
    people, x = parts.splits.people, parts.splits.train.tensors[0][:, 0]
    assert people is not None
    means = torch.stack([x[people == who].mean() for who in people.unique()])
    layer = parts.private.model.get_submodule("scaling")
    # Of those with more than three rows, three at random are taken.
    assert float(layer.mean[0]) == pytest.approx(float(means.mean()), abs=0.02)


def test_what_does_not_fit_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="belong together"):
        tiny(data=data, privacy={**PRIVACY, "per_person": None})
    with pytest.raises(ValueError, match="belong together"):
        tiny(privacy__per_person=2)
    with pytest.raises(ValueError, match="person is for a table"):
        tiny(data={"name": "digits", "person": "who"}, privacy=PRIVACY)
    with pytest.raises(InvalidValue, match=r"more than the \d+ people there are"):
        prepared(data, privacy=PRIVACY | {"batch_size": 301})


def test_a_ledger_for_examples_is_refused(data: dict[str, Any], tmp_path: Path) -> None:
    ledger = budget.Ledger.create(tmp_path / "ledger.jsonl", epsilon=10.0, delta=1e-4)
    with pytest.raises(InvalidValue, match="is for one example, and this run is for one person"):
        run(tiny(data=data, privacy=PRIVACY), out=tmp_path / "run", ledger=ledger)
    assert not (tmp_path / "run").exists()
    assert ledger.entries == ()
