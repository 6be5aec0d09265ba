"""Run the benchmarks: ``python -m benchmarks --help``."""

import argparse
import json
from pathlib import Path

import torch
from rich.console import Console

from benchmarks import contenders, machine, memory, report, timing
from benchmarks.contenders import CONTENDERS
from benchmarks.workloads import LEARNING_RATE, WORKLOADS

RESULTS = Path(__file__).parent / "results" / "step.json"
ROUNDS = 15
QUICK_ROUNDS = 3


def main() -> None:
    options = _options()
    console = Console()
    torch.set_num_threads(machine.cores())
    described = machine.describe()
    console.print(", ".join(f"{key} {value}" for key, value in described.items()), highlight=False)
    if machine.load() > machine.cores() / 4:
        console.print("[yellow]Other programs are using this machine: expect noise in the times.[/]")

    names = ["plain", *(name for name in CONTENDERS if name in options.contender and name != "plain")]
    time: dict[str, report.Figures] = {}
    added: dict[str, report.Figures] = {}
    skipped: dict[str, dict[str, str]] = {}
    for workload in options.workload:
        skipped[workload] = {}
        able = []
        for name in names:
            reason = contenders.unavailable(name, WORKLOADS[workload])
            if reason is None:
                able.append(name)
            else:
                skipped[workload][name] = reason
                console.print(f"{workload}: {name} is skipped: {reason}", highlight=False)
        time[workload] = _time(console, workload, able, options.rounds)
        if options.memory:
            added[workload] = _memory(console, workload, able)

    report.show_time(console, time)
    if added:
        report.show_memory(console, added)
    settings = {
        "rounds": options.rounds,
        "optimizer": "SGD",
        "learning_rate": LEARNING_RATE,
        "clip": contenders.CLIP,
        "noise_multiplier": contenders.NOISE_MULTIPLIER,
    }
    results = {"machine": described, "settings": settings, "time": time, "memory": added, "skipped": skipped}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(results, indent=2) + "\n")
    console.print(f"Written to {options.json}", highlight=False, soft_wrap=True)


def _time(console: Console, workload: str, names: list[str], rounds: int) -> report.Figures:
    with console.status(f"{workload}: setting up") as status:
        built = {name: CONTENDERS[name](WORKLOADS[workload]) for name in names}
        seconds = timing.take_turns(built, rounds, tell=lambda doing: status.update(f"{workload}: {doing}"))
    return report.time_figures(WORKLOADS[workload], seconds)


def _memory(console: Console, workload: str, names: list[str]) -> report.Figures:
    added: dict[str, int] = {}
    for name in names:
        with console.status(f"{workload}: memory of {name}"):
            try:
                added[name] = memory.measure(workload, name)
            except memory.MemoryUnknown as reason:
                console.print(f"{workload}: the memory of {name} is unknown: {reason}", highlight=False)
    return report.memory_figures(added) if "plain" in added else {}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--workload", action="append", choices=list(WORKLOADS), help="only this one (may be repeated)"
    )
    parser.add_argument(
        "--contender",
        action="append",
        choices=list(CONTENDERS),
        help="only this one, besides plain (may be repeated)",
    )
    parser.add_argument("--rounds", type=int, help=f"steps timed of each contender (default {ROUNDS})")
    parser.add_argument(
        "--json", type=Path, default=RESULTS, help="where the figures go (default %(default)s)"
    )
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="measure time only")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds, and no memory")
    options = parser.parse_args()
    if options.rounds is not None and options.rounds < 1:
        parser.error(f"--rounds must be 1 or above, got {options.rounds}")
    options.workload = options.workload or list(WORKLOADS)
    options.contender = options.contender or list(CONTENDERS)
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    options.memory = options.memory and not options.quick
    return options


if __name__ == "__main__":
    main()
