"""Recipes with some values replaced, trained and measured. What was finished before is not trained again."""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hoarfrost.files import replace_file
from hoarfrost.measure.measurement import Row
from hoarfrost.measure.run_rows import FILE, read_rows
from hoarfrost.train import RunResult, read_recipe, run
from hoarfrost.untrusted import line

RESULTS = Path(__file__).parents[1] / "results" / "measure"
RUNS = Path("runs-measure") / "not-private"
SEEDS = (1, 2, 3)
FASHION = "fashion-mnist-random"  # a small network that one core trains in minutes
DENSE = "freeze=none"
# 300 steps of 1000 examples: short enough for sweeps, and long enough to see which settings are good.
SHORT = ("privacy.epsilon=3", "privacy.batch_size=1000", "privacy.epochs=5", "loop.evaluate_every=1000")


class Rows:
    """Finished rows in a JSON file, one object for each, written as they come. Of a quick run nothing is kept."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.path, self.quick, self._rows = RESULTS / f"{name}.json", options.quick, list[Row]()
        if self.path.exists() and not self.quick:
            self._rows = json.loads(self.path.read_text())

    def has(self, **key: Any) -> bool:
        """Whether there is a row with these entries."""
        return any(all(row.get(name) == value for name, value in key.items()) for row in self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def add(self, row: Row) -> None:
        """Writes it at once."""
        self._rows.append(row)
        print(line(json.dumps(row)), flush=True)
        if not self.quick:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            text = "[\n" + ",\n".join(map(json.dumps, self._rows)) + "\n]\n"
            replace_file(self.path, lambda draft: draft.write_text(text))


def missing(rows: Rows, arms: Iterable[str], options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """Arms and seeds that are not there yet: all arms with the first seed, then with the next one."""
    names = list(arms)
    for seed in options.seed or SEEDS[: 1 if options.quick else None]:
        yield from ((arm, seed) for arm in names if not rows.has(arm=arm, seed=seed))


def trained(
    script: str, arm: str, seed: int, recipe: str, overrides: Sequence[str], options: argparse.Namespace
) -> tuple[RunResult, dict[str, list[Row]]]:
    """Trains an arm, and what it has measured by kind. The run folder stays for `hoarfrost measure`."""
    folder = RUNS / script / f"{arm.replace(' ', '-').replace('/', '-')}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was broken off
    quick = ("privacy.steps=4", "privacy.batch_size=64") if options.quick else ()
    kept = [each for each in overrides if each != DENSE]
    wanted = read_recipe(recipe, ["loop.threads=1", *kept, *quick, f"privacy.seed={seed}"])
    if DENSE in overrides:
        wanted = wanted.model_copy(update={"freeze": None})
    result = run(wanted, out=folder)
    return result, read_rows(folder) if (folder / FILE).exists() else {}


def median(values: Iterable[float | None]) -> float | None:
    """Of those that are there."""
    found = [value for value in values if value is not None]
    return round(statistics.median(found), 6) if found else None
