"""DP-FROST from a recipe: alone, in a run, in a run that goes on, and what is in the files."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from typer.testing import CliRunner

from hoarfrost import budget
from hoarfrost.budget import Ledger
from hoarfrost.cli import app
from hoarfrost.errors import HoarfrostError, InvalidValue
from hoarfrost.query import Query
from hoarfrost.recipes.loading import to_toml
from hoarfrost.train import Recipe, read_recipe, resume, run
from hoarfrost.train.selecting import select

PLAN = [  # with a gap by which nothing is chosen before the last round
    "model={name='mlp', hidden=[24, 40, 24]}", "privacy.steps=4", "privacy.batch_size=100",
    "freeze={kind='frost', ratio=0.6, rounds=2, gap=1000, sample_rate=0.05, partitions='module'}",
]  # fmt: skip


def recipe(*more: str) -> Recipe:
    return read_recipe("digits", [*PLAN, *more])


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What was summed, before noise."""
    seen: list[Tensor] = []
    noised = Query._noised

    def watching(self: Query, sums: Tensor, sensitivity: float) -> Tensor:
        seen.append(sums.clone())
        return noised(self, sums, sensitivity)

    monkeypatch.setattr(Query, "_noised", watching)
    return seen


def shown_exactly(folder: Path, exact: list[Tensor]) -> list[str]:
    """Files that show a number without its noise: as text, or as a number of 4 or 8 bytes; also divided by 75."""
    found = []
    numbers = [float(value) / scale for sums in exact for value in sums for scale in (1.0, 75.0)]
    texts = [f"{value:.9f}"[:7].encode() for value in numbers]
    raw = [struct.pack(kind, value) for value in numbers for kind in ("<f", "<d")]
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            found += [path.name for each in (*texts, *raw) if each in content]
    return found


def test_a_run_selects_before_its_first_step_and_shows_noise_only(tmp_path: Path, exact: list[Tensor]) -> None:
    result = run(recipe(), out=tmp_path / "run")
    assert len(exact) == 2
    assert shown_exactly(tmp_path, exact) == []
    (tmp_path / "run" / "leak.txt").write_text(repr(float(exact[0][0])))  # it would be seen
    (tmp_path / "run" / "leak.bin").write_bytes(struct.pack("<d", float(exact[1][0])))
    assert {"leak.txt", "leak.bin"} <= set(shown_exactly(tmp_path, exact))
    assert result.statement.epsilon <= 3.0
    facts = json.loads((tmp_path / "run" / "selection.json").read_text())
    trained = {name for name in facts["train"] if name.endswith("weight")}
    assert "7.weight" in trained  # the head
    assert result.density is not None
    assert 0 < result.density <= 0.6
    assert len(facts["spent"]["releases"]) == 2
    assert len([e for e in Ledger(tmp_path / "run" / "ledger.jsonl").entries if e.owner is not None]) == 2


def test_a_crash_between_rounds_costs_that_round_and_resuming_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noised, calls = Query._noised, []

    def fails(self: Query, sums: Tensor, sensitivity: float) -> Tensor:
        calls.append(len(sums))
        if len(calls) == 2:
            raise RuntimeError("power")
        return noised(self, sums, sensitivity)

    monkeypatch.setattr(Query, "_noised", fails)
    with pytest.raises(HoarfrostError, match="the run can be resumed"):
        run(recipe(), out=tmp_path / "run")
    assert (tmp_path / "run" / "ledger.jsonl").exists()  # no step was taken, and something was spent
    result = resume(tmp_path / "run")
    assert len(calls) == 3  # one in vain
    assert len([each for each in result.statement.releases if each.sample_rate == 0.05]) == 1  # type: ignore[union-attr]
    assert sum(each.steps for each in result.statement.releases if each.sample_rate == 0.05) == 3  # type: ignore[union-attr]
    assert 0 < result.steps < 4
    assert result.statement.epsilon <= 3.0


def test_resuming_a_calibrated_run_takes_the_noise_that_was_found(tmp_path: Path) -> None:
    first = run(recipe("loop.checkpoint_every=2"), out=tmp_path / "run")
    assert first.status == "completed"
    half = tmp_path / "run" / "checkpoints" / "step-00000002.safetensors"
    with pytest.raises(HoarfrostError, match=r"nothing is left|no more"):  # all of it is spent
        resume(half)


def test_selecting_alone_and_training_the_choice(tmp_path: Path, exact: list[Tensor]) -> None:
    path = tmp_path / "chosen" / "selection.json"
    source = tmp_path / "own.toml"
    source.write_text(to_toml(recipe()))
    shown = CliRunner().invoke(app, ["select", str(source), "--out", str(path)])
    assert shown.exit_code == 0, shown.output
    for words in ("round 1 of 2", "round 2 of 2", "partition", "chosen", "always trained: 7.weight, 7.bias", "spent: "):
        assert words in shown.output
    assert len(exact) == 2
    assert shown_exactly(tmp_path, exact) == []
    books = Ledger(path.with_suffix(".ledger.jsonl"))
    assert books.held() == ()  # no step is kept
    assert sum(entry.reserved for entry in books.entries) == 2

    again = CliRunner().invoke(app, ["select", str(source), "--out", str(path)])
    assert again.exit_code == 2
    assert "is there already" in again.output
    facts = json.loads(path.read_text())
    source.write_text(to_toml(recipe(f"freeze={{kind='chosen', path='{path}'}}")))
    trained = run(read_recipe(source, root="/"), out=tmp_path / "run", ledger=books)
    assert len(exact) == 2  # it did not look again
    assert trained.statement.epsilon <= 3.0
    assert Ledger(books.path).epsilon() == pytest.approx(trained.statement.epsilon, rel=1e-6)
    alone = budget.epsilon([e.event for e in books.entries if e.owner is not None], 1e-4)
    assert trained.statement.epsilon > alone > 0
    assert {"7.weight", "7.bias"} <= set(facts["train"])


@pytest.mark.parametrize(("changes", "message"), [
    (["freeze={kind='random', rate=0.5}"], 'needs freeze.kind = "frost"'),
    (["freeze.selections=2"], "set selections = 1"),
    (["freeze.ratio=0.01"], "admits no partition"),
    (["freeze.rounds=9"], "rounds=9 are more than"),
    (["privacy.noise_multiplier=1.0"], "state its own noise"),
])  # fmt: skip
def test_what_selects_nothing_is_refused_and_leaves_nothing(tmp_path: Path, changes: Any, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        select(recipe(*changes), out=tmp_path / "a" / "selection.json")
    assert list(tmp_path.iterdir()) == []
