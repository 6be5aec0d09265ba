"""The time of a step, with the contenders taking turns so that a busy moment hits all of them alike."""

import gc
import random
from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter

from benchmarks.contenders import Contender

WARM_UPS = 2
SLOW = 5.0
"""A contender that takes more than this many steps of the first one runs only in the first few rounds."""
SLOW_ROUNDS = 2

Seconds = dict[str, list[float]]


def take_turns(
    contenders: Mapping[str, Contender], rounds: int, tell: Callable[[str], None] = lambda _: None
) -> Seconds:
    """The seconds of each contender's steps, one per round; the first contender is what others are compared with."""
    warm: dict[str, float] = {}
    for name, contender in contenders.items():
        tell(f"warming up {name}")
        warm[name] = [_seconds(contender) for _ in range(WARM_UPS)][-1]
    first = next(iter(contenders))
    slow = {name for name in contenders if warm[name] > SLOW * warm[first]}

    seconds: Seconds = {name: [] for name in contenders}
    order = random.Random(0)
    for turn in range(rounds):
        names = [name for name in contenders if name not in slow or turn < SLOW_ROUNDS]
        order.shuffle(names)
        for name in names:
            tell(f"round {turn + 1} of {rounds}: {name}")
            seconds[name].append(_seconds(contenders[name]))
    return seconds


def ratios(seconds: Seconds) -> dict[str, tuple[float, float]]:
    """Each contender's time in steps of the first one: the ratio of the medians, and of the fastest steps."""
    first = next(iter(seconds.values()))
    return {name: (median(s) / median(first), min(s) / min(first)) for name, s in seconds.items()}


def _seconds(contender: Contender) -> float:
    contender.prepare()
    gc.collect()
    gc.disable()  # a collection in the middle would be charged to whoever is running
    try:
        start = perf_counter()
        contender.step()
        return perf_counter() - start
    finally:
        gc.enable()
