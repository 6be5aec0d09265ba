"""Clipping styles compared, by accuracy and calibration or by squared error.

The settings are those of "On the Convergence and Calibration of Deep Learning with Differential Privacy", where it
states them. Needs `hoarfrost data get mnist` and `cifar10`, and winequality-red.csv and california_housing.csv in the
current folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import mean, stdev
from typing import Any

from benchmarks.accuracy.experiments import Runs


def _clip(kind: str, **keys: Any) -> str:
    """The whole table, as --set takes it."""
    return f"clip={{ {', '.join(f'{key} = {_toml(value)}' for key, value in {'kind': kind, **keys}.items())} }}"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f'"{key}" = {_toml(each)}' for key, each in value.items()) + " }"
    return f"[{', '.join(map(_toml, value))}]" if isinstance(value, list) else repr(value)


def _style(kind: str, norm: float) -> dict[str, Any]:
    return {"kind": kind, "norm": norm}


def _mixed(local: float, other: float, rate: float) -> str:
    """Local clipping, and global clipping for the last twentieth."""
    styles = [_style("local", local), _style("global", other)]
    return _clip("schedule", starts=[0.0, 0.95], learning_rates=[1.0, rate], styles=styles)


NOT_PRIVATE = ("privacy.noise_multiplier=0", "clip.norm=10000")

EXPERIMENTS: dict[str, Runs] = {
    "clipping-mnist": Runs(
        "MNIST, ε 2.38",
        "mnist-clipping",
        {
            "not private, lr 0.05": (*NOT_PRIVATE, "optimizer.lr=0.05"),
            "local, R 1, lr 0.15": (),
            "global, R 210, lr 0.0007": (_clip("global", norm=210.0), "optimizer.lr=0.0007"),
            "local, R 210, lr 0.0007": ("clip.norm=210", "optimizer.lr=0.0007"),
            "local, then global for 5 %": (_mixed(1.0, 210.0, 0.00467),),
            "automatic, R 1, lr 0.15": (_clip("automatic", norm=1.0),),
            "adaptive local, lr 0.15": (_clip("adaptive", start=1.0),),
            "adaptive global, quantile 0.98, lr 0.0007": (
                _clip("adaptive", style="global", quantile=0.98, start=210.0), "optimizer.lr=0.0007",
            ),
        },
    ),
    "clipping-cifar10": Runs(
        "CIFAR-10, ε 2.00",
        "cifar10-clipping",
        {
            "not private, lr 0.05": NOT_PRIVATE,
            "local, R 1.5, lr 0.05": (),
            "global, R 75, lr 0.0007": (_clip("global", norm=75.0), "optimizer.lr=0.0007"),
            "local, R 75, lr 0.0007": ("clip.norm=75", "optimizer.lr=0.0007"),
            "global, R 75, lr 0.0007, momentum 0.9": (
                _clip("global", norm=75.0), "optimizer.lr=0.0007", "optimizer.momentum=0.9",
            ),
            "local, R 75, lr 0.0007, momentum 0.9": ("clip.norm=75", "optimizer.lr=0.0007", "optimizer.momentum=0.9"),
            "global, R 10, lr 0.0075": (_clip("global", norm=10.0), "optimizer.lr=0.0075"),
            "local, R 10, lr 0.0075": ("clip.norm=10", "optimizer.lr=0.0075"),
            "local, then global for 5 %": (_mixed(1.5, 75.0, 0.014),),
            "automatic, R 1.5, lr 0.05": (_clip("automatic", norm=1.5),),
            "adaptive local, lr 0.01": (_clip("adaptive", start=1.5), "optimizer.lr=0.01"),
            "adaptive global, quantile 0.95, lr 0.0007": (
                _clip("adaptive", style="global", quantile=0.95, start=75.0), "optimizer.lr=0.0007",
            ),
            "local per layer, R 1.5 each, lr 0.05": (_clip("per-layer", style=_style("local", 1.5)),),
            "global per layer, R 1.5 each, lr 0.05": (_clip("per-layer", style=_style("global", 1.5)),),
            "global per group, R 1.5 and 0.3, lr 0.05": (
                _clip("per-group", groups={"*.weight": _style("global", 1.5), "*.bias": _style("global", 0.3)}),
            ),
        },
    ),
    "clipping-noise": Runs(
        "CIFAR-10, local clipping, R 1.5, lr 0.05, noise multiplier σ",
        "cifar10-clipping",
        {f"σ {sigma}": (f"privacy.noise_multiplier={sigma}",) for sigma in ("0", "0.65", "1.3", "2.6")},
    ),
    "clipping-wine": Runs(
        "Wine quality, ε 4",
        "wine-clipping",
        {
            "not private": NOT_PRIVATE,
            "local, R 1": (),
            "global, R 1": (_clip("global", norm=1.0),),
            "global, R 3, a third of the learning rate": (_clip("global", norm=3.0), "optimizer.lr=0.0067"),
            "automatic, R 1": (_clip("automatic", norm=1.0),),
            "adaptive local": (_clip("adaptive", start=1.0),),
            "adaptive global, quantile 0.95": (_clip("adaptive", style="global", quantile=0.95, start=1.0),),
            "local, then global for 5 %": (_mixed(1.0, 1.0, 1.0),),
        },
    ),
    "clipping-housing": Runs(
        "California housing, ε 4",
        "housing-clipping",
        {
            "not private": NOT_PRIVATE,
            "local, R 1": (),
            "global, R 1": (_clip("global", norm=1.0),),
            "global, R 4": (_clip("global", norm=4.0),),
            "automatic, R 1": (_clip("automatic", norm=1.0),),
            "adaptive local": (_clip("adaptive", start=1.0),),
            "adaptive global, quantile 0.95": (_clip("adaptive", style="global", quantile=0.95, start=1.0),),
            "local, then global for 5 %": (_mixed(1.0, 1.0, 1.0),),
        },
    ),
}  # fmt: skip


COLUMNS: dict[str, Callable[[dict[str, Any]], float]] = {
    "accuracy, %": lambda row: 100 * row["accuracy"],
    "NLL": lambda row: row["nll"],
    "ECE, %": lambda row: 100 * row["ece"],
    "MCE, %": lambda row: 100 * row["mce"],
    "NLL, scaled": lambda row: row["scaled"]["nll"],
    "ECE, %, scaled": lambda row: 100 * row["scaled"]["ece"],
    "MSE": lambda row: row["mse"],
    "R²": lambda row: row["r2"],
}


def table(experiment: Runs, rows: list[dict[str, Any]]) -> str:
    """A row for each arm: mean and standard deviation over the seeds."""
    names = [name for name, value in COLUMNS.items() if _has(value, rows[0])]
    lines = [f"| {experiment.title} | seeds | {' | '.join(names)} |", "|---" * (len(names) + 2) + "|"]
    for arm in experiment.arms:
        found = [row for row in rows if row["arm"] == arm]
        if found:
            cells = [_spread([COLUMNS[name](row) for row in found], name) for name in names]
            lines.append(f"| {arm} | {len(found)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def tables(found: Mapping[str, list[dict[str, Any]]]) -> str:
    """All that was measured so far."""
    return "\n\n".join(table(EXPERIMENTS[name], rows) for name, rows in found.items() if rows)


def _has(value: Callable[[dict[str, Any]], float], row: dict[str, Any]) -> bool:
    try:
        value(row)
    except KeyError:
        return False
    return True


def _spread(values: list[float], name: str) -> str:
    digits = 1 if "%" in name else 3
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{spread}"
