"""How long a new run waits for a ledger with many finished runs, no two of a kind: far from the budget, and near it.

Every figure is a new process's, from opening the ledger to the admission.
"""

import json
import os
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from benchmarks.trust import finished, processes
from hoarfrost.budget import Gaussian, Ledger, _rdp
from hoarfrost.budget.events import mechanisms

COUNT = 1000
NEAR = 10  # near the budget so many times fewer runs are tried: every kind takes its time there
WANTED = Gaussian(noise_multiplier=1.0, sample_rate=0.01, steps=10)


def measure(count: int = COUNT) -> dict[str, Any]:
    few = max(1, count // NEAR)
    return {
        "far from the budget": _measure(count, 3 * _quick(count)),
        "near the budget": _measure(few, 0.99 * _quick(few)),  # so that the quick bound does not suffice
    }


def _quick(runs: int) -> float:
    return _rdp.quick_epsilon(mechanisms([*finished.kinds(runs), WANTED]), finished.DELTA)


def _measure(runs: int, budget: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path, said = Path(folder) / "ledger.jsonl", Path(folder) / "seconds"
        finished.write(path, runs, budget)
        if os.waitpid(processes.start(partial(_admit, path, said)), 0)[1] != 0:
            raise RuntimeError("the process failed")
        return {"finished runs": runs, "budget": budget, **json.loads(said.read_text())}


def _admit(path: Path, said: Path) -> None:
    start = perf_counter()
    ledger = Ledger(path)
    opened, busy = perf_counter(), process_time()
    ledger.admit(WANTED)
    figures = {
        "opening seconds": opened - start,
        "admission seconds": perf_counter() - opened,
        "admission processor seconds": process_time() - busy,  # what it takes where nobody else is at work
    }
    said.write_text(json.dumps(figures))


def summary(figures: dict[str, Any]) -> str:
    return "; ".join(
        f"{name}, after {each['finished runs']} runs of as many kinds: {each['admission seconds']:.2f} s "
        f"({each['admission processor seconds']:.2f} s of work; and {each['opening seconds']:.2f} s to open)"
        for name, each in figures.items()
    )
