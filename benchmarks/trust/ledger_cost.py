"""What a ledger adds to a step: one reservation on the disk, one commit."""

import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from hoarfrost.budget import Gaussian, Ledger

COUNT = 2000
STEP = 0.1  # seconds, of a step that it is compared with


def measure(count: int = COUNT) -> dict[str, Any]:
    return {"without a key": _measure(count, None), "with a key": _measure(count, b"k" * 32), "steps": count}


def _measure(count: int, key: bytes | None) -> dict[str, float]:
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(Path(folder) / "ledger.jsonl", epsilon=None, delta=1e-5, key=key)
        allowance = ledger.admit(Gaussian(noise_multiplier=1.0, steps=count))
        for _ in range(count):
            start = perf_counter()
            allowance.reserve()
            allowance.commit()
            seconds.append(perf_counter() - start)
    middle = median(seconds)
    return {"median microseconds": 1e6 * middle, "percent of a 100 ms step": 100 * middle / STEP}


def summary(figures: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {figures[name]['median microseconds']:.0f} µs a step "
        f"({figures[name]['percent of a 100 ms step']:.2f} % of 100 ms)"
        for name in ("without a key", "with a key")
    )
