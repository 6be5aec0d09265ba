"""A choice of what is trained that was made before, and paid for."""

from __future__ import annotations

import json
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from hoarfrost.budget import Snapshot
from hoarfrost.errors import InvalidValue
from hoarfrost.freezing.base import Freezer
from hoarfrost.freezing.report import FORMAT
from hoarfrost.info import RunInfo
from hoarfrost.masks import Live
from hoarfrost.registry import FilePath, component
from hoarfrost.untrusted import shown_path, size_of

MOST_BYTES = 64 << 20


@component("freeze", "chosen")
class Chosen(Freezer):
    """Trains what a selection of DP-FROST chose before (`hoarfrost select`, `Selection.save`).

    Args:
        path: of the file that it wrote; written as ``data.path`` is.

    Guarantees:
        What was spent for the choice counts in every run that uses it: in its epsilon, in the budget that its noise is
        calibrated for, and in its ledger. A ledger that knows of it already is not charged again.
    """

    def __init__(self, path: FilePath) -> None:
        self.path = str(path)
        where = Path(path).expanduser()
        if size_of(where, "selection") > MOST_BYTES:
            raise InvalidValue(f"{shown_path(where)} is too large for a selection")
        try:
            facts = json.loads(where.read_text("utf-8"))
            if facts["format"] != FORMAT:
                raise ValueError("another format")
            self._train, self._spent = _names(facts["train"]), Snapshot.from_dict(facts["spent"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, InvalidValue) as error:
            raise InvalidValue(
                f"{shown_path(where)} is no selection that `hoarfrost select` or Selection.save wrote"
            ) from error

    def __repr__(self) -> str:
        return f"Chosen(path={self.path!r})"

    def check(self, info: RunInfo) -> None:
        unknown = [name for name in self._train if name not in info.shapes]
        if unknown:
            raise InvalidValue(
                f"{shown_path(self.path)} was chosen for another model, or for one of which more is trained: it names "
                f"{', '.join(unknown[:3])}, which the optimizer does not move"
            )

    def key(self, step: int, info: RunInfo) -> Hashable:
        return None

    def live(self, step: int, info: RunInfo) -> Live:
        return {name: name in self._train for name in info.shapes}

    def spent(self) -> tuple[Snapshot, ...]:
        return (self._spent,)


def _names(names: Any) -> tuple[str, ...]:
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError("no names of parameters")
    return tuple(names)
