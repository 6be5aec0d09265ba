"""A run that is killed and resumed again and again: how many steps are charged in the end?"""

import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.trust import processes
from hoarfrost.budget import Ledger, epsilon
from hoarfrost.train import Recipe, resume, run

COUNT = 10
STEPS = 300
RECIPE = {
    "data": {"name": "digits"},
    "model": {"name": "mlp", "hidden": [16]},
    "optimizer": {"kind": "sgd", "lr": 0.5, "momentum": 0.9},
    "privacy": {"noise_multiplier": 2.0, "delta": 1e-4, "batch_size": 100, "steps": STEPS},
    "loop": {"threads": 1, "checkpoint_every": 1, "evaluate_every": 1000},
}


def in_a_child(work: Callable[[], object], until: Callable[[], bool] | None = None) -> bool:
    """Runs the work in a process of its own, killed as soon as ``until`` says so; whether it came to its end."""
    child = processes.start(work)
    while until is not None and not until():
        time.sleep(0.0005)
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            raise RuntimeError("the training came to its end before it could be killed")
    if until is not None:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0


def measure(count: int = COUNT) -> dict[str, Any]:
    torch.set_num_threads(1)  # a forked process must not ask for the threads that its parent had
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        ledger = folder / "ledger.jsonl"

        def charged() -> int:
            return sum(entry.reserved for entry in Ledger(ledger).entries) if ledger.exists() else 0

        recipe = Recipe.model_validate(RECIPE)
        lost_at = []
        for number in range(count):
            target = charged() + rng.randrange(1, STEPS // (count + 1))

            def late(target: int = target) -> bool:
                # Records, not steps: a kill shall also fall between a reservation and its commit.
                return ledger.exists() and ledger.stat().st_size > 130 * 2 * target

            start = (lambda: run(recipe, out=folder)) if number == 0 else (lambda: resume(folder))
            if in_a_child(start, late):
                raise RuntimeError("the training came to its end before it could be killed")
            lost_at.append(charged())
        if not in_a_child(lambda: resume(folder)):
            raise RuntimeError("the last resume failed")
        (entry,) = Ledger(ledger).entries
        return {
            "kills": count,
            "steps planned": STEPS,
            "steps charged": entry.reserved,
            "charged when killed": lost_at,
            "epsilon of the plan": epsilon(replace(entry.event, steps=STEPS), 1e-4),
            "epsilon charged": epsilon(entry.spent, 1e-4),
        }


def summary(figures: dict[str, Any]) -> str:
    return (
        f"killed and resumed {figures['kills']} times, one step reserved at a time: {figures['steps charged']} steps "
        f"charged for {figures['steps planned']} (epsilon {figures['epsilon charged']:.4f} instead of "
        f"{figures['epsilon of the plan']:.4f})"
    )
