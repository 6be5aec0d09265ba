"""How long a ledger of many records takes to open, every one of them checked."""

import tempfile
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from benchmarks.trust import finished
from hoarfrost.budget import Ledger

COUNT = 100_000


def measure(count: int = COUNT) -> dict[str, Any]:
    return {"without a key": _measure(count, None), "with a key": _measure(count, b"k" * 32)}


def _measure(count: int, key: bytes | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.jsonl"
        finished.write(path, count // finished.RECORDS, budget=None, key=key)
        start, busy = perf_counter(), process_time()
        ledger = Ledger(path, key)
        return {
            "records": ledger.head.number + 1,
            "runs": len(ledger.entries),
            "seconds": perf_counter() - start,
            "processor seconds": process_time() - busy,  # what it takes where nobody else is at work
        }


def summary(figures: dict[str, Any]) -> str:
    return ", ".join(
        f"{each['records']} records in {each['seconds']:.2f} s {name} ({each['processor seconds']:.2f} s of work)"
        for name, each in figures.items()
    )
