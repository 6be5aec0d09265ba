"""Writes the figures of `results/` into the README and docs/: `python -m benchmarks.readme`."""

import json
from pathlib import Path

from benchmarks.accuracy import clipping, finetuning, frost_selection
from benchmarks.accuracy.tables import FOLDER
from benchmarks.accuracy.tables import tables as accuracy
from benchmarks.measure.tables import tables as measured_tables
from benchmarks.workloads import WANTED_MEMORY, WORKLOADS

HERE = Path(__file__).parent
COLUMNS = {
    "hoarfrost": "Hoarfrost",
    "hoarfrost-frozen": "lower half frozen",
    "plain+noise": "plain + `torch.randn` noise, non-private",
    "opacus-hooks": "Opacus 1.6, hooks",
    "opacus-ghost": "Opacus 1.6, ghost",
}

FROZEN = {
    "hoarfrost": "nothing frozen",
    "hoarfrost-frozen": "lower half of the layers",
    "hoarfrost-random": "0.9 of the elements",
    "hoarfrost-redrawn": "the same, drawn for every step",
    "hoarfrost-channels": "0.9 of the channels",
}


def table(results: dict[str, dict[str, dict[str, dict[str, float]]]]) -> str:
    """Time and memory of every contender in units of the plain step, one row a workload."""
    lines = [f"| | target | {' | '.join(COLUMNS.values())} |", "|---" * (len(COLUMNS) + 2) + "|"]
    for what, unit in (("time", "time"), ("memory", "memory added")):
        for name, figures in results[what].items():
            wanted = WORKLOADS[name].wanted if what == "time" else WANTED_MEMORY
            cells = [f"{figures[key]['ratio']:.2f}" if key in figures else "" for key in COLUMNS]
            cells[0] = f"**{cells[0]}**"
            lines.append(f"| {WORKLOADS[name].title}: {unit} | ≤ {wanted:.2f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def documents() -> dict[Path, str]:
    """Every document that holds figures, as it should be."""
    results = json.loads((HERE / "results" / "step.json").read_text())
    frozen = json.loads((HERE / "results" / "freezing.json").read_text())
    machine = results["machine"]
    place = f"({machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}, no GPU)"
    tables = {
        "README.md": ("bench", f"{table(results)}\n\n{place}"),
        "docs/freezing.md": ("freezing", costs_of_freezing(frozen)),
    }
    root = HERE.parent
    found = {root / name: between((root / name).read_text(), *new) for name, new in tables.items()}
    results = between((root / "docs/results.md").read_text(), "accuracy", accuracy())
    measured = {name: FOLDER / f"{name}.json" for name in clipping.EXPERIMENTS}
    rows = {name: json.loads(path.read_text()) for name, path in measured.items() if path.exists()}
    chosen = json.loads((FOLDER / "frost_selection.json").read_text())
    found[root / "docs/frost.md"] = between(
        (root / "docs/frost.md").read_text(), "frost", frost_selection.table(chosen)
    )
    results = between(results, "clipping", clipping.tables(rows))
    results = between(results, "fine-tuning", finetuning.tables())
    found[root / "docs/results.md"] = between(results, "measured", measured_tables())
    return found


def main() -> None:
    for path, text in documents().items():
        path.write_text(text)


def costs_of_freezing(results: dict[str, dict[str, dict[str, dict[str, float]]]]) -> str:
    """A frozen step in units of the plain step, and of the private step that freezes nothing."""
    names = [name for name in FROZEN if all(name in figures for figures in results["time"].values())]
    lines = [
        f"| ratio to the plain step (to the private one) | {' | '.join(FROZEN[name] for name in names)} |",
        "|---" * (len(names) + 1) + "|",
    ]
    for workload, figures in results["time"].items():
        dense = figures["hoarfrost"]["ratio"]
        cells = [f"{figures[name]['ratio']:.2f} ({figures[name]['ratio'] / dense:.2f})" for name in names]
        lines.append(f"| {WORKLOADS[workload].title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def between(text: str, name: str, new: str) -> str:
    """The text with what stands between two marks replaced."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"the document has no {begin} ... {end}")
    return f"{before}{begin}\n{new}\n{end}{after}"


if __name__ == "__main__":
    main()
