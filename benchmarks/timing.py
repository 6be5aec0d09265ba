"""The time of a step, with the contenders taking turns so that a busy moment hits all of them alike."""

import gc
import json
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.machine import cores
from benchmarks.workloads import WORKLOADS

WARM_UPS = 2
SLOW = 5.0
"""A contender that takes more than this many steps of the first one runs only in the first few rounds."""
SLOW_ROUNDS = 2

Seconds = dict[str, list[float]]


def take_turns(
    contenders: Mapping[str, Contender], rounds: int, tell: Callable[[str], None] = lambda _: None, *, steps: int = 1
) -> Seconds:
    """The seconds of each contender's step, one figure per round; the first contender is what others are compared with.

    Args:
        steps: that each takes in a round, whose figure is their median: one step of a small model is too short.
    """
    warm: dict[str, float] = {}
    for name, contender in contenders.items():
        tell(f"warming up {name}")
        warm[name] = [_seconds(contender, collect=steps == 1) for _ in range(max(WARM_UPS, steps))][-1]
    first = next(iter(contenders))
    slow = {name for name in contenders if warm[name] > SLOW * warm[first]}

    seconds: Seconds = {name: [] for name in contenders}
    order = random.Random(0)
    for turn in range(rounds):
        names = [name for name in contenders if name not in slow or turn < SLOW_ROUNDS]
        taken: Seconds = {name: [] for name in names}
        for step in range(steps):
            order.shuffle(names)
            for name in names:
                if step == 0:
                    tell(f"round {turn + 1} of {rounds}: {name}")
                taken[name].append(_seconds(contenders[name], collect=step == 0))
        for name in names:
            seconds[name].append(median(taken[name]))
    return seconds


def ratios(seconds: Seconds) -> dict[str, tuple[float, float]]:
    """Each contender's time in steps of the first one: the ratio of the medians, and of the fastest steps."""
    first = next(iter(seconds.values()))
    return {name: (median(s) / median(first), min(s) / min(first)) for name, s in seconds.items()}


def alone(workload: str, contender: str, rounds: int) -> list[float]:
    """The same for one contender in a process of its own, where the others leave it all of the cache."""
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.timing", workload, contender, str(rounds)],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return list(json.loads(child.stdout))


def _seconds(contender: Contender, *, collect: bool = True) -> float:
    contender.prepare()
    if collect:  # where every step is short, once a round
        gc.collect()
    gc.disable()  # a collection in the middle would be charged to whoever is running
    try:
        start = perf_counter()
        contender.step()
        return perf_counter() - start
    finally:
        gc.enable()


def _alone(workload: str, contender: str, rounds: str) -> list[float]:
    each = WORKLOADS[workload]
    torch.set_num_threads(each.threads or cores())
    return take_turns({contender: CONTENDERS[contender](each)}, int(rounds), steps=each.steps)[contender]


if __name__ == "__main__":
    print(json.dumps(_alone(*sys.argv[1:])))
