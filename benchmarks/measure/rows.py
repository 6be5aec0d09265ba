"""Rows of scripts that train without a recipe, and where their figures go."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure.arms import RUNS, Rows


def once(rows: Rows, key: Mapping[str, Any], compute: Callable[[], Mapping[str, Any]]) -> None:
    """Adds the row of this key, if it is not there yet."""
    if not rows.has(**key):
        rows.add({**key, **compute()})


def seeds_of(options: argparse.Namespace, seeds: Sequence[int]) -> Sequence[int]:
    """Those that are asked for; of a quick run the first."""
    return options.seed or seeds[: 1 if options.quick else None]


def figures(options: argparse.Namespace) -> Path:
    """Where figures go: below a folder that git ignores; those of a quick run apart from the others."""
    folder = RUNS / "quick" if options.quick else RUNS
    folder.mkdir(parents=True, exist_ok=True)
    return folder
