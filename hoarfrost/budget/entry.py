"""What a ledger's records add up to, for one run or any other thing that drew on it."""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

from hoarfrost.budget.events import Gaussian

# How ledgers of earlier versions named a release that belongs to a run: in the words of what it is for.
EARLIER_OWNER = " · freezing · "


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What a ledger knows of one run, or of any other thing that drew on it."""

    number: int  # of the record that admitted it
    id: str  # drawn when it was admitted: never the same in two ledgers, or for two runs
    owner: str | None  # the id of the run that it belongs to, if it is a release in addition to that run's steps
    run: str
    what: str
    who: str
    code: str
    at: int  # seconds since 1970, when it was admitted
    event: Gaussian  # what one step is; its ``steps`` are those admitted
    seeded: bool
    data: str | None  # the data set's fingerprint under the owner's key
    reserved: int = 0
    committed: int = 0
    closed: bool = False

    @property
    def spent(self) -> Gaussian:
        """What it has cost: all that was reserved, used or not."""
        return replace(self.event, steps=self.reserved)

    @property
    def left(self) -> int:
        """How many steps it may still reserve."""
        return 0 if self.closed else self.event.steps - self.reserved

    @property
    def held(self) -> Gaussian:
        """What it may still reserve, and nobody else meanwhile."""
        return replace(self.event, steps=self.left)

    def after(self, record: Mapping[str, Any]) -> Entry:
        """The entry after one more record about it; one that does not fit is refused."""
        kind = record["kind"]
        if self.closed and kind != "commit":  # of a step that was under way when somebody closed the run
            raise ValueError(f"run {self.run!r} went on after it was closed")
        match kind:
            case "reserve" if record["steps"] <= self.left:
                return replace(self, reserved=self.reserved + record["steps"])
            case "commit" if self.committed + record["steps"] <= self.reserved:
                return replace(self, committed=self.committed + record["steps"])
            case "extend":
                return replace(self, event=replace(self.event, steps=self.event.steps + record["steps"]))
            case "close":
                return replace(self, closed=True)
        raise ValueError(f"a record of kind {kind!r} that does not fit what run {self.run!r} was admitted for")


def now() -> int:
    """Whole seconds since 1970, no finer: how long a step took may tell how many examples it had."""
    return int(time.time())


def who() -> str:
    """Who writes a record, and where."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"


def code() -> str:
    """With which versions."""
    return f"hoarfrost {metadata.version('hoarfrost')}, torch {metadata.version('torch')}"
