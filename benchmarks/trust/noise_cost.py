"""The cost of cryptographic noise, beside torch.randn and as a share of a private step."""

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import torch

from benchmarks import machine
from benchmarks.contenders import Hoarfrost
from benchmarks.workloads import WORKLOADS
from hoarfrost.noise import Noise

COUNT = 7
NUMBERS = 10_000_000
WARM_UPS = 2


def measure(count: int = COUNT) -> dict[str, Any]:
    torch.set_num_threads(machine.cores())
    noise = Noise()
    ours, theirs = [], []
    for _ in range(WARM_UPS + count):  # taking turns, so that a busy moment hits both
        ours.append(_seconds(lambda: noise.standard((NUMBERS,))))
        theirs.append(_seconds(lambda: torch.randn(NUMBERS)))
    step, drawing = _in_a_step(count)
    return {
        "numbers": NUMBERS,
        "hoarfrost milliseconds": 1e3 * min(ours),
        "torch.randn milliseconds": 1e3 * min(theirs),
        "ratio": min(ours) / min(theirs),
        "step milliseconds": 1e3 * step,
        "noise milliseconds": 1e3 * drawing,
        "share of a step": drawing / step,
    }


def _in_a_step(count: int) -> tuple[float, float]:
    """The medians of the tanh CNN's private step and of the drawing and adding of noise in it."""
    contender = Hoarfrost(WORKLOADS["tanh"])
    noise = contender.optimizer.noise
    add, drawing, steps = noise.add_, [], []
    noise.add_ = lambda *arguments: drawing.append(_seconds(lambda: add(*arguments)))
    for _ in range(WARM_UPS + count):
        contender.prepare()
        steps.append(_seconds(contender.step))
    return median(steps[WARM_UPS:]), median(drawing[WARM_UPS:])


def _seconds(run: Callable[[], Any]) -> float:
    start = perf_counter()
    run()
    return perf_counter() - start


def summary(figures: dict[str, Any]) -> str:
    return (
        f"{figures['numbers'] / 1e6:g}M numbers in {figures['hoarfrost milliseconds']:.0f} ms, torch.randn "
        f"{figures['torch.randn milliseconds']:.0f} ms, ratio {figures['ratio']:.2f}; "
        f"{100 * figures['share of a step']:.1f} % of the tanh CNN's private step"
    )
