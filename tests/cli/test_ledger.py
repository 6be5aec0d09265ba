"""`hoarfrost ledger`: what is told of a ledger, whoever wrote it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

from hoarfrost.budget import Gaussian, Ledger, epsilon, read_key
from hoarfrost.cli import app

STEP = Gaussian(noise_multiplier=1.5, sample_rate=0.02)
HEAD = "9:" + "0" * 64


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def ask(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["ledger", *map(str, arguments)])


def answer(*arguments: Any) -> str:
    result = ask(*arguments)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def refused(*arguments: Any) -> str:
    """The one line that is told instead."""
    result = ask(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("hoarfrost: ")
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith("\n")
    return str(result.stderr)


def facts(*arguments: Any) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(answer("show", *arguments, "--json"))
    return said


def used(path: Path, budget: float | None = 3.0, **options: Any) -> Ledger:
    """A ledger with an open run and a closed one."""
    ledger = Ledger.create(path, epsilon=budget, delta=1e-5, accountant="rdp", **options)
    allowance = ledger.admit(replace(STEP, steps=100), run="first", what="a first model")
    for _ in range(3):
        allowance.reserve()
        allowance.commit()
    allowance.reserve()
    with ledger.release(Gaussian(noise_multiplier=30.0), what="a metric"):
        pass
    return ledger


# Making one.


def test_a_ledger_is_made_as_it_is_asked_for(path: Path, tmp_path: Path) -> None:
    said = answer(
        "create", path, "--epsilon", 8, "--delta", 1e-6, "--accountant", "rdp", "--key", tmp_path / "key",
        "--allow-seeded", "--note", "records of 2020",
    )  # fmt: skip
    ledger = Ledger(path, read_key(tmp_path / "key"))
    assert (ledger.budget, ledger.delta, ledger.accountant) == (8.0, 1e-6, "rdp")
    assert (ledger.seeded, ledger.keyed, ledger.note) == (True, True, "records of 2020")
    assert said.splitlines()[0] == f"created {path}: epsilon 8 at delta 1e-06 (rdp accountant), for one example"
    assert said.splitlines()[-1] == f"head {ledger.head}"


def test_a_key_that_is_there_is_used_and_a_new_one_does_not_outlive_a_failure(path: Path, tmp_path: Path) -> None:
    answer("create", path, "--no-limit", "--delta", 1e-6, "--key", tmp_path / "key")
    answer("create", tmp_path / "other", "--no-limit", "--delta", 1e-6, "--key", tmp_path / "key")
    Ledger(tmp_path / "other", read_key(tmp_path / "key"))
    assert Ledger(path).budget is None
    assert "already" in refused("create", path, "--no-limit", "--delta", 1e-6, "--key", tmp_path / "unused")
    assert not (tmp_path / "unused").exists()


WRONG: dict[str, tuple[list[Any], str]] = {
    "no budget": (["create", "new", "--delta", 1e-6], "give either --epsilon or --no-limit"),
    "two budgets": (["create", "new", "--delta", 1e-6, "--epsilon", 1, "--no-limit"], "give either --epsilon or"),
    "no delta": (["create", "new", "--epsilon", 1], "Missing option '--delta'"),
    "epsilon": (["create", "new", "--delta", 1e-6, "--epsilon", -1], "epsilon must be above 0"),
    "infinite": (["create", "new", "--delta", 1e-6, "--epsilon", "inf"], "epsilon must be finite"),
    "delta": (["create", "new", "--delta", 2, "--epsilon", 1], "delta must lie strictly between 0 and 1"),
    "key is no key": (["create", "new", "--delta", 1e-6, "--epsilon", 1, "--key", "junk"], "is not a ledger's key"),
    "below a file": (["create", "junk/new", "--delta", 1e-6, "--epsilon", 1], "cannot make the folder of the ledger"),
    "missing": (["show", "new"], "there is no ledger at new"),
    "folder": (["check", "."], "there is no ledger at ."),
    "junk": (["head", "junk"], "was changed: record 0 is not sound"),
    "empty": (["show", "empty"], "is empty"),
    "head": (["check", "ledger", "--head", HEAD], "does not contain the record 9"),
    "head when shown": (["show", "ledger", "--head", HEAD], "does not contain the record 9"),
    "no head": (["check", "ledger", "--head", "é" * 66], "a ledger's head is"),
    "no key": (["check", "ledger", "--key", "absent"], "cannot read the key absent: No such file"),
    "key to an open ledger": (["check", "ledger", "--key", "key"], "key"),
    "no such run": (["close", "ledger", "nobody"], "knows no run named 'nobody'"),
    "closed already": (["close", "ledger", "second"], "the run 'second' is closed"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_error_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("junk").write_text("not a ledger\n")
    Path("empty").touch()
    Path("key").write_text("0" * 64)
    used(Path("ledger")).admit(STEP, run="second").close()
    arguments, message = WRONG[case]
    assert message in refused(*arguments)
    assert not Path("new").exists()


# Reading one.


def test_show_tells_who_spent_what_and_what_is_left(path: Path) -> None:
    ledger = used(path, note="records of 2020")
    said = answer("show", path)
    lines = [line.rstrip() for line in said.splitlines()]
    assert max(map(len, lines[1:])) <= 80  # the first is a path, as long as it is
    spent, with_held = ledger.epsilon(), ledger.epsilon_with_held()
    told = dict(line.split(maxsplit=1) for line in lines[:8])
    assert told["note"] == "records of 2020"
    assert told["budget"] == "epsilon 3 at delta 1e-05 (rdp accountant)"
    assert told["unit"] == "one example"
    assert spent <= float(told["spent"].removeprefix("epsilon ")) < spent + 0.01
    assert f"epsilon {with_held + 0.005:.2f}" in told["held"]
    assert 3 - with_held - 0.01 < float(told["left"].removeprefix("epsilon ")) <= 3 - with_held
    assert told["head"] == str(ledger.head)
    for text in ("first", "a first model", "rate 0.02", "noise 1.5", "100 admitted", "4 reserved", "3 released", "open",
                 "a metric", "closed", f"{ledger.steps_left(0.02, 1.5)} steps"):  # fmt: skip
        assert any(text in line for line in lines), text
    assert "no earlier head checked" in said


def test_show_as_json_is_one_object_with_all_of_it(path: Path) -> None:
    ledger = used(path)
    said = facts(path, "--head", ledger.head)
    spent = [replace(STEP, steps=4), Gaussian(noise_multiplier=30.0)]
    assert said["epsilon"] == epsilon(spent, 1e-5, "rdp")
    assert said["epsilon_with_held"] == epsilon([*spent, replace(STEP, steps=96)], 1e-5, "rdp")
    assert said["epsilon_left"] == 3.0 - said["epsilon_with_held"]
    assert said["checked"] == {"chain": True, "macs": False, "head": True}
    first, second = said["entries"]
    assert (first["steps_admitted"], first["steps_reserved"], first["steps_released"]) == (100, 4, 3)
    assert (first["open"], second["open"], first["seeded"]) == (True, False, False)
    assert first["steps_left"] == ledger.steps_left(0.02, 1.5)
    Ledger(path).admit(replace(STEP, steps=first["steps_left"]))  # which can really be had


def test_without_a_limit_or_without_noise_it_is_said_so(path: Path) -> None:
    ledger = used(path, budget=None)
    ledger.admit(Gaussian(noise_multiplier=0.0)).reserve()
    assert "no limit at delta 1e-05" in answer("show", path)
    said = facts(path)
    assert (said["budget"], said["epsilon"], said["private"], said["epsilon_left"]) == (None, None, False, None)
    assert [entry["steps_left"] for entry in said["entries"]] == [None, None, None]


def test_a_ledger_of_many_kinds_of_steps_counts_for_the_newest_unless_asked_for_all(path: Path) -> None:
    ledger = Ledger.create(path, epsilon=8.0, delta=1e-5, accountant="rdp")
    for noise in (4.0, 5.0, 6.0, 7.0, 7.0):
        ledger.admit(Gaussian(noise_multiplier=noise, sample_rate=0.01))
    assert [entry["steps_left"] is None for entry in facts(path)["entries"]] == [True, False, False, False, False]
    assert all(entry["steps_left"] for entry in facts(path, "--all")["entries"])


def test_an_empty_ledger_is_shown(path: Path) -> None:
    Ledger.create(path, epsilon=2.0, delta=1e-5)
    assert "spent    epsilon 0\n" in answer("show", path)
    assert facts(path)["entries"] == []


HOSTILE = "\x1b[2J\x1b]0;owned\x07\r\x08\x9b31m\u202e[/bold]\n\ntail"


def test_other_people_s_text_does_not_reach_the_terminal_raw(path: Path) -> None:
    ledger = Ledger.create(path, epsilon=2.0, delta=1e-5, accountant="rdp", note=HOSTILE)
    ledger.admit(STEP, run=f"run {HOSTILE}", what=f"what {HOSTILE}")
    for said in (answer("show", path), answer("close", path, f"run {HOSTILE}")):
        assert [c for c in said if not (c.isprintable() or c == "\n")] == []
        assert "[/bold]" in said.replace("\n", "")  # told as it is, not obeyed as markup
    assert facts(path)["note"] == HOSTILE
    assert "\x1b" not in answer("show", path, "--json")


def test_a_hostile_file_does_not_reach_the_terminal_either(path: Path) -> None:
    from hoarfrost.budget._journal import Journal

    Journal(path).create({"kind": "create", "format": HOSTILE})
    said = refused("show", path)
    assert all(c.isprintable() for c in said.rstrip("\n"))


def test_a_read_only_ledger_is_read(path: Path) -> None:
    used(path)
    path.chmod(0o444)
    before = path.read_bytes()
    for command in ("show", "head", "check"):
        answer(command, path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_it_fits_a_terminal_of_80_columns_or_more_and_never_cuts_a_number(path: Path, columns: int) -> None:
    ledger = Ledger.create(path, epsilon=None, delta=1e-5, accountant="rdp")
    event = Gaussian(noise_multiplier=1.2345e-6, sample_rate=1.2345e-100, steps=10**9)
    ledger.admit(event, run="r" * 100, what="日本語 " * 30, ahead=10**9).reserve()
    said = CliRunner().invoke(app, ["ledger", "show", str(path)], env={"COLUMNS": str(columns)})
    table = said.stdout[said.stdout.index("\nrun ") :]
    assert max(cell_len(line.rstrip()) for line in table.splitlines()) <= max(columns, 80)
    for text in ("rate 1.234e-100 ", "noise 1.234e-06 ", "1000000000 admitted ", "1000000000 reserved ", "0 released "):
        assert text in table


def test_it_can_be_piped_and_cut_off_in_any_encoding(path: Path) -> None:
    used(path, note="données …").admit(STEP, run="ü" * 100, what="日本語" * 30)
    command = f"{sys.executable} -c 'from hoarfrost.cli import main; main()' ledger show {path} | head -2"
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    shown = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment, check=False)
    assert (shown.stderr, shown.stdout) == ("", f"ledger   {path}\nnote     donn\\xe9es \\u2026\n")


# Checking and closing.


def test_the_head_alone_is_printed_and_can_be_checked_later(path: Path) -> None:
    ledger = used(path)
    head = answer("head", path).strip()
    assert head == str(ledger.head)
    ledger.admit(STEP)
    assert answer("check", path, "--head", head).startswith("ok: hash chain is intact, the given head is in the chain")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]))
    assert "was cut" in refused("check", path, "--head", head)
    path.write_bytes(b"".join([*lines[:4], *lines[5:]]))
    assert "record 4 is not sound" in refused("check", path)


def test_with_the_key_macs_are_checked_too(path: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    answer("create", path, "--epsilon", 3, "--delta", 1e-5, "--accountant", "rdp", "--key", key)
    Ledger(path, read_key(key)).admit(STEP, run="first")
    assert "MACs are valid" in answer("check", path, "--key", key)
    assert "MACs are valid" in answer("show", path, "--key", key)
    assert "MACs not checked" in answer("show", path)
    assert facts(path, "--key", key)["checked"] == {"chain": True, "macs": True, "head": False}
    assert "--key FILE" in refused("close", path, "first")
    answer("close", path, "first", "--key", key)
    key.write_text("0" * 64)
    assert "key" in refused("check", path, "--key", key)


def test_closing_gives_back_what_was_not_reserved_and_nothing_else(path: Path) -> None:
    used(path)
    before = facts(path)
    assert answer("close", path, "first") == "closed first: 96 steps returned, 4 stay spent\n"
    after = facts(path)
    assert after["epsilon"] == before["epsilon"] == after["epsilon_with_held"] < before["epsilon_with_held"]
    assert after["entries"][0]["open"] is False


def test_a_ledger_says_for_whom_it_is_kept(path: Path) -> None:
    created = answer("create", path, "--epsilon", 3, "--delta", 1e-5, "--unit", "person")
    assert created.splitlines()[0].endswith("for one person")
    assert facts(path)["unit"] == "one person"
    assert any(line.split() == ["unit", "one", "person"] for line in answer("show", path).splitlines())
    other = path.with_name("other.jsonl")
    answer("create", other, "--epsilon", 3, "--delta", 1e-5)
    assert facts(other)["unit"] == "one example"


def test_a_ledger_from_before_there_was_a_choice_is_for_examples(path: Path) -> None:
    from hoarfrost.budget._journal import Journal

    Ledger.create(path, epsilon=1.0, delta=1e-5)
    (first,) = Journal(path, None).read()
    older = path.with_name("older.jsonl")
    body = {key: value for key, value in first.items() if key not in ("n", "prev", "hash", "mac", "unit")}
    Journal(older, None).create(body)
    assert Ledger(older).unit == "one example"
    odd = path.with_name("odd.jsonl")
    Journal(odd, None).create({**body, "unit": "one house"})
    assert "cannot be" in refused("show", odd)
