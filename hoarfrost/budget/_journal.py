"""A file that can only grow: records chained by hashes, safe under concurrent writers, kills and a full disk."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hoarfrost.errors import HoarfrostError, InvalidValue, LedgerDamaged

MOST_BYTES = 1 << 16  # of one record: what is longer was not written by us
HEAD_BYTES = 160  # of the head file: 15 digits, two hashes, and room
WORD_AFTER, GIVE_UP_AFTER = 2.0, 60.0  # seconds of waiting for a lock that others hold for milliseconds
START = "0" * 64  # what the first record is chained to
HASH = re.compile("[0-9a-f]{64}")
SEAL = ("hash", "mac")  # what a record carries in addition to what it says


@dataclass(frozen=True)
class Head:
    """The last record's number and hash: whoever keeps it can later tell that nothing before it was taken away.

    >>> str(Head(3, "ab" * 32))[:6], Head.parse(str(Head(3, "ab" * 32))).number
    ('3:abab', 3)
    """

    number: int
    hash: str

    def __str__(self) -> str:
        return f"{self.number}:{self.hash}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Reads what ``str`` wrote."""
        number, _, digest = text.strip().partition(":")
        if not re.fullmatch("[0-9]{1,15}", number) or not HASH.fullmatch(digest):
            raise InvalidValue("a ledger's head is a number, a colon and 64 hexadecimal digits")
        return cls(int(number), digest)


class Journal:
    """Records as lines of JSON, each with the hash of itself and of all before it.

    Args:
        path: the file. It is never replaced, only appended to.
        key: the owner's. With one, every record carries a MAC, and ``<path>.head`` the newest record's: nobody without
            the key can add, change or take away records unnoticed.

    Guarantees:
        A durable record is on the disk when `append` returns, or `append` raises and nothing was added. A line that a
        kill cut short was never acknowledged; it is left out by readers and removed by the next writer. Any other
        change to what was read before, and any record that does not fit the chain, is refused.
    """

    def __init__(self, path: Path, key: bytes | None = None) -> None:
        self.path = path
        self.hashes: list[str] = []
        self._key = None if key is None else hmac.digest(key, b"hoarfrost ledger", "sha256")
        self.damage: LedgerDamaged | None = None  # once found, it stays
        self._end = 0  # up to here the file was read and is sound
        self._last = b""

    @property
    def head(self) -> Head:
        """The newest record that was read."""
        return Head(len(self.hashes) - 1, self.hashes[-1])

    def contains(self, head: Head) -> bool:
        """Whether that record is in the chain, at its place."""
        return head.number < len(self.hashes) and hmac.compare_digest(self.hashes[head.number], head.hash)

    def create(self, first: Mapping[str, Any]) -> None:
        """Makes the file, which must not exist, with its first record."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._trouble("make the folder of", error) from error
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            try:
                with self.locked() as writer:
                    writer.append(first)
            except HoarfrostError:
                self.path.unlink()  # nothing is in it, and its name would be in the way
                raise
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)  # or a power cut could take the file's name
            finally:
                os.close(folder)
        except FileExistsError:
            raise InvalidValue(f"there is a ledger or another file at {self.path} already") from None
        except OSError as error:
            raise self._trouble("make", error) from error

    def read(self) -> list[dict[str, Any]]:
        """The records that were added since the last time, checked."""
        try:
            with open(self.path, "rb") as file:
                return self._read(file.fileno())
        except OSError as error:
            raise self._trouble("read", error) from error

    @contextmanager
    def locked(self) -> Iterator[Writer]:
        """Keeps all other writers out; whoever enters has read everything that is there."""
        try:
            file = os.open(self.path, os.O_RDWR)
        except OSError as error:
            raise self._trouble("write", error) from error
        try:
            try:
                self._wait_for_lock(file)
                new = self._read(file)
            except OSError as error:
                raise self._trouble("lock and read", error) from error
            yield Writer(self, file, new)
        finally:
            os.close(file)  # which gives the lock back

    def head_file(self) -> str:
        """What it says. Read it before the records: those that are added meanwhile must not be missed among them."""
        text = ""
        for _ in range(5 if self._key is not None else 0):
            try:
                text = self._head_file.read_text("ascii")
                said, mac = text.split()
                if _same(mac, self._mac(f"head {Head.parse(said)}")):
                    break
            except (OSError, ValueError):
                pass
            time.sleep(0.002)  # it may have been read while it was being written
        return text

    def check_head_file(self, text: str) -> None:
        """With a key: that the newest record which the owner's head file vouches for is still there."""
        if self._key is None:
            return
        try:
            said, mac = text.split()
            head = Head.parse(said)
        except ValueError:
            raise LedgerDamaged(
                f"the ledger {self.path} has a key, but {self._head_file} is missing or not readable: records may have "
                "been taken away. Put the file back from a copy, or check the ledger against an exported head."
            ) from None
        if not hmac.compare_digest(self._mac(f"head {head}"), mac):
            raise LedgerDamaged(f"{self._head_file} was not written with this ledger's key")
        if not self.contains(head):
            raise LedgerDamaged(
                f"the ledger {self.path} was cut: it ends before record {head.number}, which its head file vouches for"
            )

    def _wait_for_lock(self, file: int) -> None:
        """Asks again and again, not the system to wait: it would neither say a word nor give up."""
        start, pause, said = time.monotonic(), 2e-4, False
        while not lock(file):
            waited = time.monotonic() - start
            if waited >= GIVE_UP_AFTER:
                raise InvalidValue(
                    f"another process has held the lock of the ledger {self.path} for {waited:.0f} seconds. Nothing "
                    "was written. End or continue that process (`fuser` with the file's name shows it), and try again"
                )
            if waited >= WORD_AFTER and not said:
                said = True
                warnings.warn(
                    f"waiting for the lock of the ledger {self.path}, which another process holds", stacklevel=2
                )
            time.sleep(min(pause, GIVE_UP_AFTER - waited))
            pause = min(1.5 * pause, 0.02)

    def _read(self, file: int) -> list[dict[str, Any]]:
        if self.damage is not None:  # a part of it may have been read: what would follow is not the whole
            raise self.damage
        size = os.fstat(file).st_size
        if size < self._end or os.pread(file, len(self._last), self._end - len(self._last)) != self._last:
            self.damage = LedgerDamaged(f"the ledger {self.path} was changed or cut since it was opened")
            raise self.damage
        found = []
        with os.fdopen(os.dup(file), "rb") as lines:
            lines.seek(self._end)
            while line := lines.readline(MOST_BYTES):
                if not line.endswith(b"\n"):
                    if len(line) >= MOST_BYTES:
                        raise self._damaged("it is too long")
                    break  # torn: whoever wrote it was killed, or is writing it now
                found.append(self._checked(line))
                self._end += len(line)
                self._last = line
        return found

    def _checked(self, line: bytes) -> dict[str, Any]:
        try:
            record = json.loads(line.decode("ascii"))
            as_written = isinstance(record, dict) and _encode(record) == line
        except (ValueError, RecursionError):
            as_written = False
        if not as_written:
            raise self._damaged("it is not written as records are")
        seal = {name: record.pop(name) for name in SEAL if name in record}
        digest = self._hash(_unsealed(line, seal, record))
        if record.get("n") != len(self.hashes) or seal.get("hash") != digest:
            raise self._damaged("it does not follow from the records before it")
        if self._key is not None and not _same(seal.get("mac"), self._mac(digest)):
            raise self._damaged("it was not written with this key")
        self.hashes.append(digest)
        body: dict[str, Any] = record
        return body

    def _hash(self, body: bytes) -> str:
        before = self.hashes[-1] if self.hashes else START
        return hashlib.sha256(before.encode() + b"\n" + body).hexdigest()

    def _mac(self, text: str) -> str:
        assert self._key is not None
        return hmac.digest(self._key, text.encode(), "sha256").hex()

    @property
    def _head_file(self) -> Path:
        return self.path.with_name(f"{self.path.name}.head")

    def _vouch(self, head: Head) -> None:
        """Always the same length, written in place by one call: a new file for every record would double the price.

        Not flushed: a head that is older than the records is no harm.
        """
        line = f"{head} {self._mac(f'head {head}')}".ljust(HEAD_BYTES - 1) + "\n"
        file = os.open(self._head_file, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            if os.pwrite(file, line.encode("ascii"), 0) != HEAD_BYTES:
                raise OSError("the disk is full")
        finally:
            os.close(file)

    def _damaged(self, why: str) -> LedgerDamaged:
        self.damage = LedgerDamaged(
            f"the ledger {self.path} was changed: record {len(self.hashes)} is not sound ({why}). Nothing is spent "
            "from a ledger that cannot be trusted; put it back from a copy."
        )
        return self.damage

    def _trouble(self, what: str, error: OSError) -> HoarfrostError:
        return InvalidValue(f"cannot {what} the ledger {self.path}: {error.strerror or error}")


class Writer:
    """The one who may append just now. ``new`` is what others wrote since this journal was last read."""

    def __init__(self, journal: Journal, file: int, new: list[dict[str, Any]]) -> None:
        self.new = new
        self._journal, self._file = journal, file

    def append(self, body: Mapping[str, Any], *, durable: bool = True) -> dict[str, Any]:
        """Adds a record and returns it as readers will see it."""
        journal = self._journal
        body = {**body, "n": len(journal.hashes)}
        digest = journal._hash(_encode(body))
        seal = {"hash": digest} if journal._key is None else {"hash": digest, "mac": journal._mac(digest)}
        line = _encode({**body, **seal})
        if len(line) > MOST_BYTES:
            raise InvalidValue("a ledger's record is too long; give a shorter description")
        try:
            os.ftruncate(self._file, journal._end)  # a torn line, if there is one
            if os.pwrite(self._file, line, journal._end) != len(line):
                raise OSError("the disk is full")
            if durable:
                os.fsync(self._file)
                if journal._key is not None:
                    journal._vouch(Head(len(journal.hashes), digest))
        except OSError as error:
            self._take_back()
            raise journal._trouble("write", error) from error
        journal.hashes.append(digest)
        journal._end += len(line)
        journal._last = line
        return body

    def _take_back(self) -> None:
        # If that fails, the next writer meets a torn line, or a reservation that nobody used.
        with suppress(OSError):
            os.ftruncate(self._file, self._journal._end)


def _same(mac: object, expected: str) -> bool:
    return isinstance(mac, str) and mac.isascii() and hmac.compare_digest(mac, expected)


_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def _encode(body: Mapping[str, Any]) -> bytes:
    """One way only to write a record, so that a change of any byte shows."""
    return _JSON.encode(body).encode() + b"\n"


def _unsealed(line: bytes, seal: Mapping[str, object], body: Mapping[str, Any]) -> bytes:
    """`_encode` of the body, of which the line, written as records are, is the encoding together with the seal.

    Cut out of the line, which takes a fraction of the time of encoding it anew. A hash's own place always matches (the
    number "n" follows it); if something inside the record does too, or what is there is no hash, the body is encoded.
    """
    for name, value in seal.items():
        part = f'"{name}":"{value}",'.encode() if isinstance(value, str) and HASH.fullmatch(value) else b""
        if line.count(part) != 1:
            return _encode(body)
        line = line.replace(part, b"")
    return line


def lock(file: int) -> bool:
    """Locks an open file until it is closed; says whether that worked, or whether somebody else has locked it."""
    try:
        import fcntl
    except ImportError:
        raise HoarfrostError("ledgers need the file locks of POSIX systems (Linux, macOS)") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
