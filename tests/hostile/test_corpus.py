"""A file from somebody else, whatever is in it, runs nothing, writes nothing, and is refused in a line."""

import os
import pickle
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hoarfrost.cli import app
from hoarfrost.untrusted import LINE
from tests.hostile import tables
from tests.hostile.corpus import CORPUS, as_data, as_recipe, as_table
from tests.hostile.good import save_npz
from tests.hostile.watch import watched
from tests.support import payload
from tests.support.recipes import changed

SECOND = 1.0
HANGS = 20  # seconds: a machine that is busy with other things still gets there


@pytest.fixture(scope="module", autouse=True)
def _warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is as it should be is trained: all that has to be imported is imported, and good files are not refused."""
    good = {"good.toml": as_recipe, "good.npz": as_data, "good.csv": as_table, "good.parquet": as_table}
    for name, command in good.items():
        file = tmp_path_factory.mktemp("warm") / name
        if name == "good.npz":
            save_npz(file)
        elif name == "good.csv":
            file.write_text(tables.HEADER + tables.ROWS)
        elif name == "good.parquet":
            file.write_bytes(tables.GOOD_PARQUET)
        else:
            file.write_text(changed().replace("batch_size = 2", "batch_size = 20"))
        result = CliRunner().invoke(app, command(file, file.with_name("out")))
        assert result.exit_code == 0, result.output


def listing(folder: Path) -> dict[str, tuple[int, int, int]]:
    found = {}
    for here, folders, files in os.walk(folder):
        for name in (*folders, *files):
            status = os.lstat(os.path.join(here, name))
            found[os.path.join(here, name)] = (status.st_mode, status.st_size, status.st_mtime_ns)
    return found


@contextmanager
def no_hanging() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(HANGS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", CORPUS, ids=ascii)
def test_it_runs_nothing_writes_nothing_and_ends_in_a_line_within_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    for folder in ("files", "here", "home"):
        (tmp_path / folder).mkdir()
    file, out = tmp_path / "files" / name, tmp_path / "out"
    CORPUS[name].write(file)
    arguments = CORPUS[name].command(file, out)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for elsewhere in ("HOARFROST_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(elsewhere, raising=False)
    save_npz(tmp_path / "home" / "secret.npz")
    before = listing(tmp_path)

    with watched() as acts, warnings.catch_warnings(), no_hanging():
        warnings.simplefilter("error")  # a warning would be a second line
        start = time.process_time()  # not the clock on the wall: others may be using the machine
        result = CliRunner().invoke(app, arguments)
        taken = time.process_time() - start

    assert result.exit_code == 2, result.exception
    assert result.stdout == ""
    assert result.stderr.startswith("hoarfrost: ")
    assert result.stderr.endswith("\n")
    assert len(result.stderr) <= LINE + len("hoarfrost: \n")
    assert result.stderr[:-1].isprintable()  # one line, and nothing that a terminal obeys
    assert "".join(capfd.readouterr()) == ""
    assert taken < SECOND
    assert acts == []
    assert listing(tmp_path) == before
    assert not out.exists()
    assert not list(tmp_path.rglob(payload.MARKER))


def test_the_corpus_is_large_enough() -> None:
    assert len(CORPUS) >= 60


def test_the_pickles_would_act_if_they_were_loaded_and_it_would_be_seen(tmp_path: Path) -> None:
    payload.pickled(tmp_path / "pickle")
    with watched() as acts:
        pickle.loads((tmp_path / "pickle").read_bytes())
    assert (tmp_path / payload.MARKER).exists()
    assert any("pickle.find_class" in act for act in acts)
    assert any(payload.MARKER in act for act in acts)
