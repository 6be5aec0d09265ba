"""The numbers of these scripts as Markdown, as far as they were measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.measure.arms import RESULTS

Rows = list[dict[str, Any]]


def tables(folder: Path = RESULTS) -> str:
    """All that there are."""
    parts = {"distortion": distortion, "freeze_counts": freeze_counts, "pruning_ratio": pruning_ratio, "ntk": ntk}
    found = [_of(folder / f"{name}.json", table) for name, table in parts.items()]
    return "\n\n".join(table for table in found if table)


def distortion(rows: Rows) -> str:
    """Angles and lengths in the second and in the last quarter of a run, layer by layer."""
    lines = [
        "| second quarter of the steps / last quarter | γ^UB, degrees | γ^BP | γ^UP | ‖s^B‖ | clipped, % |",
        "|---|---|---|---|---|---|",
    ]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        own = [row for row in rows if row["arm"] == arm]
        for layer in own[0]["after"]:
            cells = [
                " / ".join(_mean((row[when][layer][key] for row in own if layer in row[when]), 1) for when in _WHEN)
                for key in ("UB", "BP", "UP")
            ]
            cells.append(" / ".join(_mean((row[when][layer]["norm_B"] for row in own if layer in row[when]), 3)
                                    for when in _WHEN))  # fmt: skip
            clipped = " / ".join(_mean((100 * row["share_clipped"][when] for row in own), 0) for when in _WHEN)
            cells.append(clipped if layer == "all" else "")
            lines.append(f"| {arm}: {'all layers' if layer == 'all' else layer} | {' | '.join(cells)} |")
    return "\n".join(lines)


def freeze_counts(rows: Rows) -> str:
    """How unevenly coordinates are frozen."""
    lines = [
        "| Fashion-MNIST | accuracy, % | steps | mean count of a coordinate | standard deviation |",
        "|---|---|---|---|---|",
    ]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        own = [row for row in rows if row["arm"] == arm]
        cells = [
            _mean((100 * row["accuracy"] for row in own), 1),
            str(own[0]["steps"]),
            _mean((row["mean"] for row in own), 1),
            _mean((row["std"] for row in own), 1),
        ]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)


def pruning_ratio(rows: Rows) -> str:
    """R at the start and after 10 steps, by what is kept."""
    lines = ["| share of W₁ that is kept | R at the start | R after 10 steps |", "|---|---|---|"]
    for keep in rows[0]["keep"]:
        cells = [_range([row["keep"][keep]["R"][step] for row in rows]) for step in (0, 10)]
        lines.append(f"| {keep} | {' | '.join(cells)} |")
    return "\n".join(lines)


def ntk(rows: Rows) -> str:
    """In how many settings each property holds, at each kind of weights."""
    keys = ("symmetric", "positive in quadratic form", "positive in eigenvalues")
    lines = [
        f"| weights | clipping | NTK | {' | '.join(keys)} | steps in which the loss rose |",
        "|---" * (len(keys) + 4) + "|",
    ]
    for weights in dict.fromkeys(row["weights"] for row in rows):
        own = [row["table"] for row in rows if row["weights"] == weights]
        for way in zip(*own, strict=True):
            cells = [f"{sum(each[key] for each in way)} of {len(way)}" for key in keys]
            rises = f"{min(each['rises'] for each in way)} to {max(each['rises'] for each in way)}"
            lines.append(f"| {weights} | {way[0]['clipping']} | {way[0]['NTK']} | {' | '.join(cells)} | {rises} |")
    return "\n".join(lines)


_WHEN = ("before", "after")


def _of(path: Path, table: Callable[[Rows], str]) -> str:
    return table(json.loads(path.read_text())) if path.exists() else ""


def _mean(values: Iterable[float | None], digits: int) -> str:
    found = [value for value in values if value is not None]
    return f"{mean(found):.{digits}f}" if found else "–"


def _range(values: list[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"
