"""What a recipe measures is written to one file, below not-private/, and the weights are those of an unmeasured run."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from hoarfrost.cli.app import app
from hoarfrost.errors import InvalidValue
from hoarfrost.registry import components
from hoarfrost.train import read_recipe, resume, run

SMALL = ["privacy.steps=6", "privacy.seed=1", "privacy.batch_size=40", "freeze={kind='random', rate=0.5}"]
KINDS = [*components("measure")]
EVERY = "measure=[" + ", ".join(f"{{kind='{kind}', every=2}}" for kind in KINDS) + "]"


def rows(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "not-private/measure.jsonl").read_text().splitlines()]


def test_every_kind_is_written_and_the_weights_are_the_same(tmp_path: Path) -> None:
    run(read_recipe("digits", SMALL), out=tmp_path / "plain")
    result = run(read_recipe("digits", [*SMALL, EVERY]), out=tmp_path / "measured")
    assert [(row["kind"], row["step"]) for row in rows(tmp_path / "measured")] == [
        (kind, step) for step in (0, 2, 4) for kind in KINDS
    ]
    plain, measured = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "measured"))
    assert plain.keys() == measured.keys()
    assert all(torch.equal(plain[name], measured[name]) for name in plain)
    assert not (tmp_path / "plain/not-private/measure.jsonl").exists()
    assert any("not covered: not-private/measure.jsonl" in note for note in result.statement.notes)


def test_the_statement_says_that_it_is_not_covered(tmp_path: Path) -> None:
    run(read_recipe("digits", SMALL), out=tmp_path / "plain")
    run(read_recipe("digits", [*SMALL, EVERY]), out=tmp_path / "measured")
    for name in ("budget.txt", "budget.json"):
        assert "measure.jsonl" not in (tmp_path / "plain" / name).read_text()
        assert "not covered: not-private/measure.jsonl" in (tmp_path / "measured" / name).read_text()


def test_nothing_that_was_measured_lies_elsewhere(tmp_path: Path) -> None:
    """No number of any row is in a file outside of not-private/, and no other file there is but the usual ones."""
    run(read_recipe("digits", SMALL), out=tmp_path / "plain")
    run(read_recipe("digits", [*SMALL, EVERY]), out=tmp_path / "measured")
    files = lambda name: {p.relative_to(tmp_path / name) for p in (tmp_path / name).rglob("*") if p.is_file()}  # noqa: E731
    assert files("measured") - files("plain") == {Path("not-private/measure.jsonl")}

    def numbers(value: object) -> list[float]:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return [value] if isinstance(value, float) else [n for each in inner for n in numbers(each)]

    measured = {repr(n) for row in rows(tmp_path / "measured") for n in numbers(row) if len(repr(n)) > 12}
    assert len(measured) > 50
    for path in (tmp_path / "measured").rglob("*"):
        if path.is_file() and "not-private" not in path.parts:
            text = path.read_bytes().decode("latin-1")
            assert not [n for n in measured if n in text], path


def test_a_resumed_run_goes_on_measuring_and_may_change_what(tmp_path: Path) -> None:
    recipe = [
        *SMALL,
        "privacy.noise_multiplier=2",
        "loop.checkpoint_every=2",
        "loop.checkpoints_kept=9",
        "measure=[{kind='distortion', every=2}]",
    ]
    run(read_recipe("digits", [each for each in recipe if "seed" not in each]), out=tmp_path / "run")
    first = tmp_path / "run/checkpoints/step-00000004.safetensors"
    (tmp_path / "run/not-private/measure.jsonl").unlink()
    resume(first, overrides=["measure=[{kind='clipping', every=1}]"])
    assert [(row["kind"], row["step"]) for row in rows(tmp_path / "run")] == [("clipping", 4), ("clipping", 5)]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("[{kind='distortoin'}]", "distortoin"),
        ("[{kind='distortion', every=0}]", "every"),
        ("[{kind='distortion'}, {kind='distortion'}]", "measure names distortion twice"),
        ("[]", "measure"),
        ("[{every=3}]", "kind"),
    ],
)
def test_what_cannot_be_measured_is_refused(value: str, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        read_recipe("digits", [f"measure={value}"])


def test_the_command_line_names_kinds(tmp_path: Path) -> None:
    arguments = ["train", "digits", "--measure", "distortion, clipping", "--out", str(tmp_path / "run"), "-q"]
    settings = [part for each in SMALL for part in ("--set", each)]
    result = CliRunner().invoke(app, [*arguments, *settings])
    assert result.exit_code == 0, result.output
    assert {row["kind"] for row in rows(tmp_path / "run")} == {"distortion", "clipping"}
