"""The file under a ledger: what kills, full disks and busy hands do to it, and what is noticed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import shutil
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hoarfrost.budget import _journal
from hoarfrost.budget._journal import Head, Journal, _encode
from hoarfrost.errors import HoarfrostError, InvalidValue, LedgerDamaged

KEY = b"k" * 32


def written(path: Path, records: int = 5, key: bytes | None = None) -> Journal:
    """A journal of so many records, and the object that wrote them."""
    journal = Journal(path, key)
    journal.create({"kind": "create"})
    for count in range(1, records):
        append(journal, count=count, what="ordinary text")
    return journal


def append(journal: Journal, **body: Any) -> None:
    with journal.locked() as writer:
        writer.append(body)


def numbers(path: Path, key: bytes | None = None) -> list[int]:
    """The numbers of the records that a new reader finds."""
    return [record["n"] for record in Journal(path, key).read()]


def refuses(path: Path) -> bool:
    try:
        Journal(path).read()
    except LedgerDamaged:
        return True
    return False


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


# Kills.


def test_a_line_cut_at_any_byte_is_read_over_and_repaired_by_the_next_writer(path: Path) -> None:
    written(path)
    whole = path.read_bytes()
    start = whole.rstrip(b"\n").rindex(b"\n") + 1
    for cut in range(start, len(whole)):
        path.write_bytes(whole[:cut])
        assert numbers(path) == [0, 1, 2, 3], cut
        append(Journal(path), count=99)
        assert numbers(path) == [0, 1, 2, 3, 4], cut
        assert path.read_bytes().endswith(b"\n")


def test_a_reader_sees_what_another_process_adds_and_nothing_twice(path: Path) -> None:
    writer = written(path, 3)
    reader = Journal(path)
    assert [record["n"] for record in reader.read()] == [0, 1, 2]
    assert reader.read() == []
    append(writer, count=3)
    assert [record["count"] for record in reader.read()] == [3]


# The disk.


def full_disk(*_: Any) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken_disk(*_: Any) -> int:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


_open = os.open


def no_head_file(path: Any, *rest: Any) -> int:
    """Everything can be opened but the head file."""
    return full_disk() if str(path).endswith(".head") else _open(path, *rest)


TROUBLES: dict[str, tuple[str, Callable[..., int], str]] = {
    "full": ("pwrite", full_disk, "No space left on device"),
    "full within the record": ("pwrite", lambda file, line, end: os.write(file, line[:9]), "the disk is full"),
    "broken": ("fsync", broken_disk, "Input/output error"),
    "full at repair": ("ftruncate", full_disk, "No space left on device"),
    "no head file": ("open", no_head_file, "No space left on device"),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_what_cannot_be_written_is_one_line_and_the_file_stays_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    journal = written(path, key=KEY)
    before = path.read_bytes()
    name, fault, message = TROUBLES[trouble]
    with monkeypatch.context() as broken:
        broken.setattr(f"hoarfrost.budget._journal.os.{name}", fault)
        for _ in range(2):
            with pytest.raises(HoarfrostError, match=message) as told:
                append(journal, count=5)
            assert "\n" not in str(told.value)
    assert path.read_bytes() == before
    append(journal, count=5)  # and when there is room again, it goes on
    assert numbers(path, KEY) == [0, 1, 2, 3, 4, 5]
    assert {p.name for p in path.parent.iterdir()} == {path.name, f"{path.name}.head"}


def test_a_disk_that_is_really_full(path: Path) -> None:
    """The operating system's own limit on the size of files: it writes what fits and refuses the rest."""
    journal = written(path)
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    asleep = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for room in (0, 1, 60):
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, hard))
        try:
            with pytest.raises(InvalidValue, match="cannot write the ledger"):
                append(journal, count=5)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert path.read_bytes() == before
    signal.signal(signal.SIGXFSZ, asleep)
    append(journal, count=5)
    assert numbers(path) == [0, 1, 2, 3, 4, 5]


def test_a_journal_that_could_not_be_begun_leaves_no_file_in_the_way(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("hoarfrost.budget._journal.os.pwrite", full_disk)
        with pytest.raises(InvalidValue, match="No space left"):
            written(path)
    assert not path.exists()
    written(path)


def test_a_file_that_is_there_already_is_not_overwritten(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(InvalidValue, match="already"):
        written(path)
    assert path.read_text() == "precious"


@contextmanager
def without_rights() -> Iterator[None]:
    """As somebody to whom permissions apply: to root they do not."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that anybody may look into."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_read_only_file_is_read_and_refuses_writers_in_one_line(public: Path) -> None:
    path = public / "ledger.jsonl"
    written(path)
    path.chmod(0o444)
    public.chmod(0o555)
    with without_rights():
        assert numbers(path) == [0, 1, 2, 3, 4]
        with pytest.raises(InvalidValue, match=r"^cannot write the ledger .*: Permission denied$"):
            append(Journal(path), count=5)
        with pytest.raises(InvalidValue, match=r"^cannot make the ledger .*: Permission denied$"):
            written(public / "another.jsonl")


def test_a_record_that_is_too_long_is_refused_before_it_is_written(path: Path) -> None:
    journal = written(path)
    before = path.read_bytes()
    with pytest.raises(InvalidValue, match="too long"):
        append(journal, what="x" * 70_000)
    assert path.read_bytes() == before


# The lock.


@contextmanager
def locked_by_another(path: Path) -> Iterator[None]:
    file = os.open(path, os.O_RDWR)
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(file)


def test_a_lock_that_is_never_given_back_is_waited_for_with_a_word_and_a_limit(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = written(path)
    before = path.read_bytes()
    monkeypatch.setattr(_journal, "WORD_AFTER", 0.05)
    monkeypatch.setattr(_journal, "GIVE_UP_AFTER", 0.2)
    with (
        locked_by_another(path),
        pytest.warns(UserWarning, match="waiting for the lock of the ledger") as said,
        pytest.raises(InvalidValue, match=r"ledger\.jsonl for 0 seconds\. Nothing was written") as told,
    ):
        append(journal, count=5)
    assert (len(said), "\n" in str(told.value), path.read_bytes()) == (1, False, before)
    append(journal, count=5)
    assert numbers(path) == [0, 1, 2, 3, 4, 5]


def test_a_lock_that_is_given_back_in_time_is_taken(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = written(path)
    monkeypatch.setattr(_journal, "WORD_AFTER", 0.05)
    with ExitStack() as other:
        other.enter_context(locked_by_another(path))
        monkeypatch.setattr(warnings, "warn", lambda *_, **__: other.close())
        append(journal, count=5)
    assert numbers(path) == [0, 1, 2, 3, 4, 5]


def test_reading_does_not_need_the_lock(path: Path) -> None:
    written(path)
    with locked_by_another(path):
        assert numbers(path) == [0, 1, 2, 3, 4]


# Changes.


def test_a_changed_byte_is_noticed_wherever_it_is(path: Path) -> None:
    journal = written(path)
    whole = path.read_bytes()
    for place in range(len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        assert refuses(path), place
    # The last newline is the one exception: without it the record is as good as cut off, which a head tells.
    path.write_bytes(whole[:-1] + b" ")
    reader = Journal(path)
    reader.read()
    assert not reader.contains(journal.head)


def test_a_deleted_line_and_swapped_lines_are_noticed(path: Path) -> None:
    written(path)
    lines = path.read_bytes().splitlines(keepends=True)
    for gone in range(len(lines) - 1):
        path.write_bytes(b"".join(lines[:gone] + lines[gone + 1 :]))
        assert refuses(path), gone
    for first in range(len(lines)):
        for second in range(first + 1, len(lines)):
            swapped = list(lines)
            swapped[first], swapped[second] = lines[second], lines[first]
            path.write_bytes(b"".join(swapped))
            assert refuses(path), (first, second)


def test_a_line_written_twice_or_in_another_way_is_noticed(path: Path) -> None:
    written(path)
    whole = path.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    for extra in (last, b"\n", b"{}\n", b"[]\n", b"0\n", b"\xff\n", b"\0\n", b"[" * 60_000 + b"\n", b"{" * 70_000):
        path.write_bytes(whole + extra)
        assert refuses(path), extra[:9]
    path.write_bytes(whole.replace(b'"kind":"create"', b'"kind": "create"'))
    assert refuses(path)


def test_a_hash_at_another_place_of_its_line_is_noticed(path: Path) -> None:
    """Nothing but the order of the names has changed, and what is hashed is the same."""
    written(path)
    lines = path.read_bytes().splitlines(keepends=True)
    seal = b'"hash":"%s",' % json.loads(lines[2])["hash"].encode()
    lines[2] = b"{" + seal + lines[2].replace(seal, b"")[1:]
    path.write_bytes(b"".join(lines))
    assert refuses(path)


@pytest.mark.parametrize("key", [None, KEY])
def test_a_record_may_hold_what_looks_like_its_own_seal(path: Path, key: bytes | None) -> None:
    """What is hashed is the record without its seal, not without what is like it."""
    written(path, key=key)
    other = {"hash": "b" * 64, "mac": "c" * 64, "z": 1}
    append(Journal(path, key), **{"event": other, 'a"hash': "b" * 64, 'a"mac': "c" * 64, "z": [other]})
    assert numbers(path, key) == [0, 1, 2, 3, 4, 5]


def test_a_shorter_file_does_not_contain_the_head_that_was_exported(path: Path) -> None:
    journal = written(path)
    lines = path.read_bytes().splitlines(keepends=True)
    for kept in range(1, len(lines)):
        path.write_bytes(b"".join(lines[:kept]))
        reader = Journal(path)
        reader.read()
        assert not reader.contains(journal.head)
    path.write_bytes(b"".join(lines))
    append(journal, count=5)
    reader = Journal(path)
    reader.read()
    assert reader.contains(Head.parse(str(journal.head)))


@pytest.mark.parametrize("change", ["cut", "older copy", "another ledger", "removed"])
def test_a_file_that_is_replaced_while_it_is_open_is_noticed(path: Path, change: str) -> None:
    journal = written(path)
    match change:
        case "cut":
            os.truncate(path, path.stat().st_size // 2)
        case "older copy":
            lines = path.read_bytes().splitlines(keepends=True)
            (path.parent / "copy").write_bytes(b"".join(lines[:3]))
            os.replace(path.parent / "copy", path)
        case "another ledger":
            Journal(path.parent / "other").create({"kind": "create", "note": "a longer one " * 999})
            os.replace(path.parent / "other", path)
        case "removed":
            path.unlink()
    for _ in range(2):
        with pytest.raises(InvalidValue if change == "removed" else LedgerDamaged):
            append(journal, count=5)
        with pytest.raises(InvalidValue if change == "removed" else LedgerDamaged):
            journal.read()


def test_damage_once_found_is_not_forgotten(path: Path) -> None:
    """What was read before the damage is not handed out, so going on after a repair would miss it."""
    written(path)
    whole = path.read_bytes()
    reader = Journal(path)
    path.write_bytes(whole + b"{}\n")
    with pytest.raises(LedgerDamaged):
        reader.read()
    path.write_bytes(whole)
    with pytest.raises(LedgerDamaged):
        reader.read()


# The owner's key.


@pytest.mark.parametrize("mac", [None, "", "0" * 64, "é" * 64, "\ud800", 7, [], {}])
def test_a_record_without_the_key_s_mac_is_refused(path: Path, mac: Any) -> None:
    written(path, key=KEY)
    stranger = Journal(path)
    with stranger.locked() as writer:
        body = {"n": 5} if mac is None else {"n": 5, "mac": mac}
        line = _encode({**body, "hash": stranger._hash(_encode({"n": 5}))})
        os.pwrite(writer._file, line, stranger._end)
    assert numbers(path) == [0, 1, 2, 3, 4, 5]  # the chain alone is anybody's to write
    with pytest.raises(LedgerDamaged, match="not written with this key"):
        numbers(path, KEY)


@pytest.mark.parametrize(
    "text",
    ["", "5", "x:" + "0" * 64, "5:" + "0" * 63, "5:" + "é" * 64, "5:" + "٣" * 64, "-1:" + "0" * 64, "٣:" + "0" * 64],
)
def test_what_is_not_a_head_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="a ledger's head is"):
        Head.parse(text)
