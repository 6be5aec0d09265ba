"""What runs have measured, read back: rows of ``not-private/measure.jsonl``, and which runs are repetitions."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hoarfrost.errors import InvalidValue
from hoarfrost.measure.measurement import Row
from hoarfrost.untrusted import line, shown_path, size_of

FILE = Path("not-private") / "measure.jsonl"
MOST_BYTES = 1 << 28
REPEATED = ("name", "measure")  # what may differ between repetitions of one run, and the seed


@dataclass(frozen=True)
class Measured:
    """Repetitions of one run, which differ in their seed and name alone: the rows of each, by kind."""

    label: str
    runs: Sequence[Mapping[str, Sequence[Row]]]


def read_measured(runs: Mapping[str, Path]) -> list[Measured]:
    """The rows of run folders, by their labels; repetitions are put together. The files may come from anybody.

    >>> read_measured({"absent": Path("runs/absent")})
    Traceback (most recent call last):
        ...
    hoarfrost.errors.InvalidValue: there is no run folder at runs/absent; give a folder that `hoarfrost train` made
    """
    groups: dict[str, list[tuple[str, Mapping[str, Sequence[Row]]]]] = {}
    for label, folder in runs.items():
        rows = read_rows(folder)
        groups.setdefault(_setting(folder), []).append((label, rows))
    return [
        Measured(group[0][0] if len(group) == 1 else f"{group[0][0]} ({len(group)} runs)", [rows for _, rows in group])
        for group in groups.values()
    ]


def read_rows(folder: Path) -> dict[str, list[Row]]:
    """The rows of a run by their kind, in the order of steps. Of steps that were taken again, the last ones."""
    where, path = shown_path(folder), folder / FILE
    if not os.path.isdir(folder):
        raise InvalidValue(f"there is no run folder at {where}; give a folder that `hoarfrost train` made")
    if not os.path.exists(path):
        raise InvalidValue(
            f"{where} has no {FILE}: nothing was measured in this run. Train with --measure KIND, or with [[measure]] "
            "in the recipe"
        )
    if size_of(path, "measurements") > MOST_BYTES:
        raise InvalidValue(f"{shown_path(path)} is too large to be read")
    found: dict[str, dict[int, Row]] = {}
    try:
        for text in path.read_text("utf-8").splitlines():
            row = json.loads(text)
            found.setdefault(str(row["kind"]), {})[int(row["step"])] = row
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidValue(f"{shown_path(path)} has a line that is no measurement") from error
    except OSError as error:
        raise InvalidValue(f"cannot read {shown_path(path)}: {error.strerror}") from error
    return {kind: [rows[step] for step in sorted(rows)] for kind, rows in found.items()}


def _setting(folder: Path) -> str:
    """What repetitions have in common."""
    path = folder / "recipe.toml"
    try:
        recipe = tomllib.loads(path.read_text("utf-8"))
        for key in REPEATED:
            recipe.pop(key, None)
        recipe.get("privacy", {}).pop("seed", None)
        return json.dumps(recipe, sort_keys=True, default=str)
    except OSError as error:
        raise InvalidValue(f"{shown_path(folder)} is not a run folder: there is no recipe.toml in it") from error
    except (ValueError, AttributeError, RecursionError) as error:
        raise InvalidValue(line(f"{shown_path(path)} is not a recipe")) from error
