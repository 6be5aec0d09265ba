"""Audits where the unit is a person: whole people are left out, and wrong ways with their rows are found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hoarfrost import audit
from hoarfrost.audit.one_run_audit import one_run
from hoarfrost.audit.suite import Subject, run_suite
from hoarfrost.clipping import Local
from hoarfrost.errors import InvalidValue
from hoarfrost.groups import Groups
from hoarfrost.sampling import draws
from hoarfrost.sampling.people import People
from hoarfrost.train.prepare import Parts, prepare
from tests.support.recipes import tiny


def rows_one_by_one(poisson: Any, people: Any, stream: Any) -> Any:
    """Every row of a drawn person is clipped for itself."""
    rows = people.bring(poisson.draw(stream).tolist(), stream)
    return [[row] for own in rows for row in own]


def test_whole_people_are_left_out() -> None:
    result = audit.sensitivity(per_person=3, rounds=1)
    assert (result.passed, result.unit) == (True, "one person")
    assert result.ratio > 0.999
    assert "one person apart" in str(result)
    assert audit.sensitivity(per_person=2, views=2, max_physical_batch=8, rounds=1).passed


def test_of_a_network_too() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 3))
    for most in (None, 6):
        result = audit.sensitivity(
            clip=Local(0.2), model=network, shape=(1, 6, 6), per_person=3, max_physical_batch=most, rounds=1
        )
        assert result.passed, result
        assert result.ratio > 0.9


def test_rows_that_are_clipped_one_by_one_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "brought", rows_one_by_one)
    result = audit.sensitivity(per_person=3, rounds=1)
    assert result.ratio > 2.9
    assert result.alarms


def test_a_person_whose_rows_are_taken_for_another_persons_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last row of everybody is counted with the next one's."""
    right = Groups.split

    def shifted(self: Groups, t: torch.Tensor, **options: bool) -> torch.Tensor:
        return right(self, t if self.sizes is None else t.roll(1, 0), **options)

    monkeypatch.setattr(Groups, "split", shifted)
    assert audit.sensitivity(per_person=3, rounds=1).alarms


def test_people_are_drawn_as_poisson_sampling_has_it() -> None:
    result = audit.sampling(sample_rate=0.1, records=300, steps=300, per_person=3, seed=1)
    assert (result.passed, result.unit) == (True, "one person")
    assert "300 records, each one person" in str(result)


@pytest.mark.parametrize(
    ("wrong", "alarm"),
    [
        (lambda self, people, stream: [self._rows(who).tolist() for who in people], "another number of rows"),
        (lambda self, people, stream: [[self._rows(who)[0]] * 2 for who in people], "more than once"),
        (lambda self, people, stream: [self._rows(who)[:1].tolist() for who in people], "another number of rows"),
        (
            lambda self, people, stream: [
                self._rows(who)[:3].tolist() for who in people if len(self._rows(who)) > 1 or who % 20 == 0
            ],
            "records are drawn at a rate",
        ),
    ],
    ids=["no limit", "a row twice", "one row each", "few rows, seldom"],
)
def test_other_ways_to_bring_rows_are_found(wrong: Any, alarm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(People, "bring", wrong)
    result = audit.sampling(sample_rate=0.1, records=600, steps=300, per_person=3, seed=1)
    assert any(alarm in each for each in result.alarms), result.alarms


@pytest.fixture
def recipe(tmp_path: Path) -> Any:
    generator = np.random.RandomState(0)
    rows = ["who,height,kind"]
    rows += [f"{who},{generator.normal():.3f},{'ab'[who % 2]}" for who in range(300) for _ in range(1 + who % 4)]
    (tmp_path / "mine.csv").write_text("\n".join(rows) + "\n")
    data = {
        "path": str(tmp_path / "mine.csv"), "target": "kind", "labels": ["a", "b"], "person": "who", "test_share": 0.2,
        "bounds": {"height": [-3, 3]},
    }  # fmt: skip
    return tiny(
        data=data, privacy={"noise_multiplier": 0.0, "delta": 1e-4, "batch_size": 30, "steps": 3, "per_person": 2}
    )


def test_the_audits_of_a_recipe_are_for_its_unit(recipe: Any) -> None:
    results = list(run_suite(Subject(recipe)))
    units = [json.loads(json.dumps(result.as_dict())).get("unit") for result in results]
    assert units == ["one person"] * 3
    assert all(result.passed for result in results)


def test_canaries_of_the_one_run_audit_are_people(recipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take the places of people, each with all their rows: the plan is the recipe's own."""
    built: list[Any] = []
    right = Parts.prepare
    monkeypatch.setattr(Parts, "prepare", lambda self, plan: built.append((self.splits, plan)) or right(self, plan))
    before = prepare(recipe, torch.device("cpu"))
    built.clear()
    result = one_run(recipe, canaries=100)
    ((splits, plan),) = built
    assert (plan.size, plan.unit) == (before.private.plan.size, "one person")
    people = before.splits.people
    counts = splits.people.bincount()
    canaries = counts[int(people.max()) + 1 :]
    assert (canaries == 1).all()
    assert 30 <= len(canaries) <= 70
    kept = counts[: int(people.max()) + 1]
    assert int((kept > 0).sum()) == plan.size - 50
    assert torch.equal(kept[kept > 0], people.bincount()[kept > 0])
    assert result.canaries == 100
    with pytest.raises(InvalidValue, match=r"more than the \d+ people"):
        one_run(recipe, canaries=2 * plan.size)
