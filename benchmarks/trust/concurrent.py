"""Several processes on one budget, each starting runs until it is refused: do they overspend?"""

import os
import random
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.trust import processes
from hoarfrost.budget import Gaussian, Ledger
from hoarfrost.errors import BudgetSpent

COUNT = 8
BUDGET, DELTA = 3.0, 1e-5
STEP = {"noise_multiplier": 1.0, "sample_rate": 0.01}
LEAST = 25  # steps that a run asks for; a process that is refused so few stops


def spend(path: Path, seed: int) -> None:
    """Runs of any length, of which some end early, until even a short one is refused."""
    rng = random.Random(seed)
    ledger = Ledger(path)
    most = 16 * LEAST
    while most >= LEAST:
        steps = rng.randint(LEAST, most)
        try:
            allowance = ledger.admit(Gaussian(**STEP, steps=steps), ahead=rng.choice((1, 10)))
        except BudgetSpent:
            most //= 2
            continue
        for _ in range(rng.randint(1, steps)):
            allowance.reserve()
            allowance.commit()
        allowance.close()


def measure(count: int = COUNT) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.jsonl"
        Ledger.create(path, epsilon=BUDGET, delta=DELTA, accountant="rdp")
        started = [processes.start(partial(spend, path, number)) for number in range(count)]
        for child in started:
            if os.waitpid(child, 0)[1] != 0:
                raise RuntimeError("a process failed")
        ledger = Ledger(path)
        return {
            "processes": count,
            "runs": len(ledger.entries),
            "steps": sum(entry.reserved for entry in ledger.entries),
            "records": ledger.head.number + 1,
            "budget": BUDGET,
            "epsilon": ledger.epsilon(),
            "overspend": max(0.0, ledger.epsilon_with_held() - BUDGET),
            "would buy": ledger.steps_left(STEP["sample_rate"], STEP["noise_multiplier"]),
        }


def summary(figures: dict[str, Any]) -> str:
    return (
        f"{figures['processes']} processes made {figures['runs']} runs of {figures['steps']} steps in all, spent "
        f"epsilon {figures['epsilon']:.4f} of {figures['budget']:g}, overspend {figures['overspend']:g}"
    )
