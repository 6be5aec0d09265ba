"""The results of fine-tuning MiniLM as Markdown: SST-2 (`sst2.py`) and SNLI (`snli.py`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.accuracy.tables import FOLDER

Rows = list[dict[str, Any]]
TARGETS: dict[float | None, str] = {None: "no noise, not private", 8.0: "ε 8", 2.0: "ε 2", 0.5: "ε 0.5"}


def tables(folder: Path = FOLDER) -> str:
    """All that was measured so far."""
    parts = [
        _of(folder / "sst2.json", _accuracies),
        _of(folder / "sst2.json", _calibration),
        _of(folder / "sst2-rates.json", _rates),
        _of(folder / "snli.json", _mixed),
    ]
    return "\n\n".join(part for part in parts if part)


def _of(path: Path, table: Callable[[Rows], str]) -> str:
    return table(json.loads(path.read_text())) if path.exists() else ""


def _accuracies(rows: Rows) -> str:
    """One row for each part that is trained, one column for each budget."""
    targets = {target: name for target, name in TARGETS.items() if any(row["target"] == target for row in rows)}
    lines = [
        f"| SST-2, accuracy in % | numbers trained | learning rate | {' | '.join(targets.values())} | s a step | "
        "s of selection |",
        "|---" * (len(targets) + 5) + "|",
    ]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        own = [row for row in rows if row["arm"] == arm]
        cells = [_spread([100 * row["accuracy"] for row in own if row["target"] == target], 1) for target in targets]
        sizes = sorted({row["parameters"] for row in own})
        trained = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
        # A machine that does other things, too, only makes it longer.
        step, selection = (min(row[key] for row in own) for key in ("seconds_a_step", "seconds_of_selection"))
        chosen = f"{selection:.0f}" if selection else ""
        lines.append(f"| {arm} | {trained} | {own[0]['lr']:g} | {' | '.join(cells)} | {step:.1f} | {chosen} |")
    return "\n".join(lines)


def _calibration(rows: Rows) -> str:
    lines = ["| SST-2 | | NLL | ECE, % | NLL, scaled | ECE, %, scaled |", "|---|---|---|---|---|---|"]
    for target, name in TARGETS.items():
        for arm in dict.fromkeys(row["arm"] for row in rows if row["target"] == target):
            own = [row for row in rows if row["arm"] == arm and row["target"] == target]
            cells = [
                _spread([row["nll"] for row in own], 3),
                _spread([100 * row["ece"] for row in own], 1),
                _spread([row["scaled"]["nll"] for row in own], 3),
                _spread([100 * row["scaled"]["ece"] for row in own], 1),
            ]
            lines.append(f"| {name} | {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _rates(rows: Rows) -> str:
    rates = sorted({row["lr"] for row in rows})
    lines = [
        f"| learning rate, 5,000 sentences, accuracy in % | {' | '.join(f'{rate:g}' for rate in rates)} |",
        "|---" * (len(rates) + 1) + "|",
    ]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        found = {row["lr"]: row["accuracy"] for row in rows if row["arm"] == arm}
        cells = [f"{100 * found[rate]:.1f}" if rate in found else "" for rate in rates]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _mixed(rows: Rows) -> str:
    lines = [
        "| SNLI | accuracy, % | NLL | ECE, % | MCE, % | NLL before the last 5 % | ECE before, % |",
        "|---|---|---|---|---|---|---|",
    ]
    for way in dict.fromkeys(row["way"] for row in rows):
        own = [row for row in rows if row["way"] == way]
        cells = [
            _spread([100 * row["accuracy"] for row in own], 1),
            _spread([row["nll"] for row in own], 3),
            _spread([100 * row["ece"] for row in own], 1),
            _spread([100 * row["mce"] for row in own], 1),
            _spread([row["before"]["nll"] for row in own], 3),
            _spread([100 * row["before"]["ece"] for row in own], 1),
        ]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(values: Sequence[float], digits: int) -> str:
    if not values:
        return ""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f} ({len(values)} seeds)"
