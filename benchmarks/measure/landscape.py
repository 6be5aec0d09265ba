"""Where SGD and DP-SGD end in the loss landscape: lines between models (paper 002, Figures 3 to 8), LeNet on MNIST.

A first phase of k epochs, by SGD or DP-SGD, is continued four times: twice by SGD and twice by DP-SGD. Not private.
`python -m benchmarks.measure landscape [--quick]`
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.measure.arms import Rows
from benchmarks.measure.rows import figures, once, seeds_of
from benchmarks.measure.spread import draw
from benchmarks.measure.ways import Way, part, plain, seeded
from hoarfrost import data
from hoarfrost.measure import Connectivity, Directions, connectivity, loss_surface, random_directions
from hoarfrost.measure.model_figures import connectivity_figure, directions_figure, surface_figure
from hoarfrost.models.lenet import lenet

SGD, DP_SGD = Way("SGD", 0.1, 128), Way("DP-SGD", 1.0, 512, clip=1.0, noise=1.0)
KS, LAST, SEEDS, EXAMPLES, MEASURED = (0, 1, 2, 5), 3, (1, 2, 3), 10_000, 1000
PAIRS = (("SGD 1", "SGD 2"), ("DP-SGD 1", "DP-SGD 2"), ("SGD 1", "DP-SGD 1"), ("start", "SGD 1"), ("start", "DP-SGD 1"))


def main(options: argparse.Namespace) -> None:
    """All first phases with all seeds; then the directions and surfaces of one of them."""
    rows = Rows("landscape", options)
    splits = data.load("mnist")
    train = part(splits.train, 700 if options.quick else EXAMPLES)
    batches = list(data.batches(part(splits.train, 100 if options.quick else MEASURED), 500))
    last, count = (1, 3) if options.quick else (LAST, 100)
    for seed in seeds_of(options, SEEDS):
        for k in KS[: 2 if options.quick else None]:
            for first in (SGD, DP_SGD)[: 1 if k == 0 else 2]:
                key = {"seed": seed, "k": k, "phase 1": first.name if k else "none"}
                once(rows, key, partial(_lines, first, k, seed, train, batches, last))
        once(rows, {"seed": seed, "other seed": seed + 10}, partial(_other_start, seed, train, batches, last))
    once(rows, {"basin of": "SGD"}, partial(_basin, train, batches, last, count, figures(options)))
    _figures(list(rows), figures(options))


def _ends(first: Way, k: int, seed: int, train: TensorDataset, last: int) -> dict[str, nn.Module]:
    start = first.train(seeded(lenet, seed), train, k, seed)
    found = {"start": start}
    for second in (SGD, DP_SGD):
        for copy in (1, 2):
            found[f"{second.name} {copy}"] = second.train(plain(start), train, last, 100 * copy + seed)
    return found


def _lines(first: Way, k: int, seed: int, train: TensorDataset, batches: Any, last: int) -> dict[str, Any]:
    ends = _ends(first, k, seed, train, last)
    return {"pairs": {f"{a} and {b}": _told(connectivity(ends[a], ends[b], batches)) for a, b in PAIRS}}


def _other_start(seed: int, train: TensorDataset, batches: Any, last: int) -> dict[str, Any]:
    """Figure 3: other initial weights, too."""
    one, other = (SGD.train(seeded(lenet, s), train, last, s) for s in (seed, seed + 10))
    return {"pairs": {"SGD 1 and SGD 2": _told(connectivity(one, other, batches))}}


def _basin(train: TensorDataset, batches: Any, last: int, count: int, folder: Path) -> dict[str, Any]:
    """Figure 4: as far in random directions as to the other model of the same basin; and the surfaces of both ways."""
    ends = _ends(SGD, 2 if count == 100 else 1, SEEDS[0], train, last)
    way = connectivity(ends["SGD 1"], ends["SGD 2"], batches)
    around = random_directions(ends["SGD 1"], batches, distance=way.distance, count=count, points=10)
    surfaces = {f"{name} in phase 2": loss_surface(ends[f"{name} 1"], batches, points=15) for name in ("SGD", "DP-SGD")}
    surface_figure(surfaces, folder, "landscape-surface", loss="mean training loss")
    return {
        "towards": _told(way), "distances": around.distances, "losses": around.losses,
        "largest cosine": around.largest_cosine, "rises": around.rises,
        "surfaces": {name: {"steps": each.steps, "losses": each.losses} for name, each in surfaces.items()},
    }  # fmt: skip


def _told(found: Connectivity) -> dict[str, Any]:
    return {"alphas": found.alphas, "losses": found.losses, "distance": found.distance,
            "instability": found.instability}  # fmt: skip


def _line(told: dict[str, Any]) -> Connectivity:
    return Connectivity(alphas=tuple(told["alphas"]), losses=tuple(told["losses"]), distance=told["distance"])


def _figures(rows: list[dict[str, Any]], folder: Path) -> None:
    lines = [row for row in rows if "k" in row]
    seed = lines[0]["seed"]
    other = {f"seeds {r['seed']} and {r['other seed']}": _line(r["pairs"]["SGD 1 and SGD 2"])
             for r in rows if "other seed" in r}  # fmt: skip
    connectivity_figure(other, folder, "landscape-3-other-starts")
    basin = next(row for row in rows if "basin of" in row)
    around = Directions(
        distances=tuple(basin["distances"]), losses=tuple(map(tuple, basin["losses"])),
        largest_cosine=basin["largest cosine"],
    )  # fmt: skip
    directions_figure(around, folder, "landscape-4-directions", towards=_line(basin["towards"]))
    panels: dict[str, dict[str, dict[float, list[float]]]] = {}
    for row in lines:
        for first in ("SGD", "DP-SGD") if row["phase 1"] == "none" else (row["phase 1"],):
            panel = panels.setdefault(f"phase 1: {first}", {})
            for name in ("SGD", "DP-SGD"):
                line = panel.setdefault(f"phase 2: {name}, twice", {})
                line.setdefault(row["k"], []).append(row["pairs"][f"{name} 1 and {name} 2"]["instability"])
    draw(folder, "landscape-5-instability", panels, "k: epochs of phase 1", "linear interpolation instability")
    for number, pair in ((6, "SGD 1 and DP-SGD 1"), (7, "SGD 1 and DP-SGD 1")):
        first = {6: "SGD", 7: "DP-SGD"}[number]
        found = {f"k = {r['k']}": _line(r["pairs"][pair]) for r in lines
                 if r["seed"] == seed and r["phase 1"] in (first, "none")}  # fmt: skip
        connectivity_figure(found, folder, f"landscape-{number}-{first}-first")
    latest = max(row["k"] for row in lines)
    found = {
        f"phase 1 {row['phase 1']}, phase 2 {name}": _line(row["pairs"][f"start and {name} 1"])
        for row in lines
        if row["seed"] == seed and row["k"] == latest
        for name in ("SGD", "DP-SGD")
    }
    connectivity_figure(found, folder, "landscape-8-start-to-end")
