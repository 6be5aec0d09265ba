"""`hoarfrost audit`: what it says of a right run, and of wrong ones."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hoarfrost import audit
from hoarfrost.budget import Ledger
from hoarfrost.cli import app
from hoarfrost.errors import InvalidValue
from hoarfrost.train import run
from tests.audit.faults import noise_times
from tests.support.recipes import changed, tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tiny(), out=tmp_path_factory.mktemp("runs") / "tiny").folder


def test_a_right_run_raises_no_alarm(folder: Path) -> None:
    result = CliRunner().invoke(app, ["audit", str(folder), "--json"])
    assert result.exit_code == 0, result.stderr
    said = json.loads(result.stdout)
    assert said["passed"]
    kinds = [each["kind"] for each in said["audits"]]
    assert kinds == ["ledger", "sampling", "sensitivity", "sensitivity", "noise", "step"]
    step = said["audits"][-1]
    assert step["mu_claimed"] == 1.0
    assert 0.9 < step["mu_lower"] < 1.0


def test_a_recipe_is_audited_without_training_it() -> None:
    result = CliRunner().invoke(app, ["audit", "digits"])
    assert result.exit_code == 0, result.stderr
    assert "ε 3.000 claimed, lower bound" in result.stdout
    assert result.stdout.rstrip().endswith("no evidence against the claim; this is not a proof")


GROUPS = """kind = "per-group"
[clip.groups."*.weight"]
kind = "global"
norm = 1.5
[clip.groups."*.bias"]
kind = "local"
norm = 0.3"""
STAGES = """kind = "schedule"
starts = [0, 0.5]
[[clip.styles]]
kind = "local"
[[clip.styles]]
kind = "per-layer"
style = {kind = "adaptive"}"""
PRIVACY = 'noise_multiplier = 1.0\ndelta = 1e-4\nbatch_size = 300\nsteps = 8\naccountant = "rdp"'


@pytest.mark.parametrize(("clip", "shown"), [(GROUPS, ["PerGroup"]), (STAGES, ["from step 0 on", "from step 4 on"])])
def test_a_recipe_is_audited_with_its_own_clipping(clip: str, shown: list[str], tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(changed(clip=clip, privacy=PRIVACY))
    result = CliRunner().invoke(app, ["audit", str(path)])
    assert result.exit_code == 0, result.output
    for kind in ("sensitivity", "noise", "step"):
        lines = [line for line in result.stdout.splitlines() if line.startswith(f"{kind} audit: ")]
        assert all(any(words in line for line in lines) for words in shown)


def test_half_the_noise_is_found_with_exit_code_1(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise_times(0.5)(monkeypatch)
    result = CliRunner().invoke(app, ["audit", str(folder)])
    assert result.exit_code == 1
    assert "ALARM" in result.stdout
    assert "do not rely on this privacy claim" in result.stdout


def copied(folder: Path, to: Path) -> Path:
    to.mkdir()
    for name in ("budget.json", "run.json", "ledger.jsonl", "recipe.toml"):
        (to / name).write_bytes((folder / name).read_bytes())
    return to


def test_a_statement_that_says_less_than_the_ledger_is_found(folder: Path, tmp_path: Path) -> None:
    run = copied(folder, tmp_path / "run")
    stated = json.loads((run / "budget.json").read_text())
    stated["releases"][0]["steps"] -= 1
    (run / "budget.json").write_text(json.dumps(stated))
    assert "the ledger charged more than the run states" in str(audit.ledger(run))


def test_an_epsilon_that_its_releases_exceed_is_found(folder: Path, tmp_path: Path) -> None:
    run = copied(folder, tmp_path / "run")
    stated = json.loads((run / "budget.json").read_text())
    stated["epsilon"] *= 0.99
    (run / "budget.json").write_text(json.dumps(stated))
    assert "the stated releases cost" in str(audit.ledger(run))


def test_a_ledger_that_was_cut_after_the_statement_is_found(folder: Path, tmp_path: Path) -> None:
    run = copied(folder, tmp_path / "run")
    lines = (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (run / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))
    assert audit.ledger(folder).passed
    assert "cut" in str(audit.ledger(run))


def test_one_run_draws_on_the_ledger_it_is_given(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger.jsonl", epsilon=0.5, delta=1e-4)
    arguments = ["audit", "digits", "--one-run", "--canaries", "50", "--ledger", str(ledger.path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "what is left buys" in result.stderr
    ledger.refresh()
    assert ledger.entries == ()


@pytest.mark.parametrize("name", ["budget.json", "run.json"])
@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 100_000, '{"releases": 3}', '{"run": [], "releases": [{}]}'])
def test_a_folder_that_is_not_a_run_s_is_refused_in_words(folder: Path, tmp_path: Path, name: str, text: str) -> None:
    run = copied(folder, tmp_path / "run")
    (run / name).write_text(text)
    with pytest.raises(InvalidValue):
        audit.ledger(run)
