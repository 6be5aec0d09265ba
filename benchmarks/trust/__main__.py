"""Runs one command, prints its line and keeps its figures in `results/trust.json`, beside those of the others."""

import argparse
import json
from pathlib import Path
from typing import Any, Protocol

from benchmarks import machine
from benchmarks.trust import admission, concurrent, edits, empty, kills, ledger_cost, noise_cost, opening, resumes

RESULTS = Path(__file__).parents[1] / "results" / "trust.json"


class Command(Protocol):
    """What a module here offers."""

    COUNT: int

    def measure(self, count: int) -> dict[str, Any]: ...

    def summary(self, figures: dict[str, Any]) -> str: ...


COMMANDS: dict[str, Command] = {
    "kills": kills,
    "resumes": resumes,
    "concurrent": concurrent,
    "edits": edits,
    "empty": empty,
    "admission": admission,
    "opening": opening,
    "ledger-cost": ledger_cost,
    "noise-cost": noise_cost,
}  # type: ignore[dict-item] # a module is a command if it has its names


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trust", description="Figures behind the guarantees.")
    parser.add_argument("command", choices=list(COMMANDS))
    parser.add_argument("--count", type=int, help="how many trials (by default what the guarantees state)")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the figures go (default %(default)s)")
    options = parser.parse_args()
    command = COMMANDS[options.command]
    figures = command.measure(options.count or command.COUNT)
    print(f"{options.command}: {command.summary(figures)}")
    keep(options.json, options.command, figures)


def keep(path: Path, name: str, figures: dict[str, Any]) -> None:
    """Writes the figures under their name; what is there under other names stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(path.read_text()) if path.exists() else {}
    known[name] = {**figures, "machine": machine.describe()}
    path.write_text(json.dumps(known, indent=2) + "\n")


if __name__ == "__main__":
    main()
