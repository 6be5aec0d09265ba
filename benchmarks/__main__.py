"""Run the benchmarks: ``python -m benchmarks --help``."""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks import contenders, machine, memory, report, timing
from benchmarks.contenders import CONTENDERS, STYLE_CONTENDERS, STYLES
from benchmarks.workloads import LEARNING_RATE, WORKLOADS

RESULTS = Path(__file__).parent / "results"
ROUNDS = 15
QUICK_ROUNDS = 3


def main() -> None:
    options = _options()
    console = Console(highlight=False)
    results: dict[str, Any] = {
        "machine": machine.describe(),
        "settings": {
            "rounds": options.rounds,
            "optimizer": "SGD",
            "learning_rate": LEARNING_RATE,
            "clip": {name: repr(style) for name, style in STYLES.items()} if options.styles else contenders.CLIP,
            "noise_multiplier": contenders.NOISE_MULTIPLIER,
        },
        "time": {},
        "memory": {},
        "skipped": {},
    }
    console.print(", ".join(f"{key} {value}" for key, value in results["machine"].items()), soft_wrap=True)
    if machine.load() > machine.cores() / 4:
        console.print("[yellow]Other programs are using this machine: expect noise in the times.[/]")

    for workload in options.workload:
        skipped = results["skipped"][workload] = _skipped(console, workload, options.contender)
        names = [name for name in options.contender if name not in skipped]
        results["time"][workload] = _time(console, workload, names, options.rounds)
        if options.memory and WORKLOADS[workload].steps == 1:
            results["memory"][workload] = _memory(console, workload, names)
        # After every workload, so that a run that is broken off was not for nothing.
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(results, indent=2) + "\n")

    report.show_time(console, results["time"])
    if any(results["memory"].values()):
        report.show_memory(console, results["memory"])
    console.print(f"Written to {options.json}", soft_wrap=True)


def _skipped(console: Console, workload: str, names: list[str]) -> dict[str, str]:
    """The contenders that cannot run here, and why."""
    reasons = {name: contenders.unavailable(name, WORKLOADS[workload]) for name in names}
    skipped = {name: reason for name, reason in reasons.items() if reason is not None}
    for name, reason in skipped.items():
        console.print(f"{workload}: {name} is skipped: {reason}", markup=False, soft_wrap=True)
    return skipped


def _time(console: Console, workload: str, names: list[str], rounds: int) -> report.Figures:
    torch.set_num_threads(WORKLOADS[workload].threads or machine.cores())
    with console.status(f"{workload}: setting up") as status:
        built = {name: (CONTENDERS | STYLE_CONTENDERS)[name](WORKLOADS[workload]) for name in names}
        steps = WORKLOADS[workload].steps
        seconds = timing.take_turns(
            built, rounds, tell=lambda doing: status.update(f"{workload}: {doing}"), steps=steps
        )
        alone = {name: timing.alone(workload, name, rounds) for name in names if steps > 1 and name in CONTENDERS}
    figures = report.time_figures(WORKLOADS[workload], seconds, alone)
    summary = ", ".join(f"{name} {row['ratio']:.2f}" for name, row in figures.items())
    console.print(f"{workload}: {summary}", soft_wrap=True)
    return figures


def _memory(console: Console, workload: str, names: list[str]) -> report.Figures:
    added: dict[str, int] = {}
    for name in names:
        with console.status(f"{workload}: memory of {name}"):
            try:
                added[name] = memory.measure(workload, name)
            except memory.MemoryUnknown as reason:
                console.print(f"{workload}: no memory figure for {name}: {reason}", markup=False)
    return report.memory_figures(added) if "plain" in added else {}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS), help="only this one (may be repeated)")
    parser.add_argument(
        "--contender",
        action="append",
        choices=[*CONTENDERS, *STYLE_CONTENDERS],
        help="only this one, besides the one that others are compared with (may be repeated)",
    )
    parser.add_argument("--rounds", type=int, help=f"steps timed of each contender (default {ROUNDS})")
    parser.add_argument("--styles", action="store_true", help="clipping styles, compared with Local; time only")
    parser.add_argument(
        "--json", type=Path, help=f"where the figures go (default {RESULTS / 'step.json'}, or styles.json beside it)"
    )
    parser.add_argument("--other", type=Path, help="another checkout of this library, timed as hoarfrost-other")
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="measure time only")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds, and no memory")
    options = parser.parse_args()
    if options.rounds is not None and options.rounds < 1:
        parser.error(f"--rounds must be 1 or above, got {options.rounds}")
    contenders.OtherHoarfrost.folder = options.other and options.other.resolve()
    options.workload = options.workload or list(WORKLOADS)
    known = STYLE_CONTENDERS if options.styles else CONTENDERS
    asked = options.contender or list(known)
    if unknown := set(asked) - set(known):
        parser.error(f"{', '.join(sorted(unknown))}: {'not with' if options.styles else 'only with'} --styles")
    options.contender = [name for at, name in enumerate(known) if name in asked or at == 0]
    options.json = options.json or RESULTS / ("styles.json" if options.styles else "step.json")
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    options.memory = options.memory and not options.quick and not options.styles
    return options


if __name__ == "__main__":
    main()
