"""What looking at a model costs: ``python -m benchmarks.probe [WORKLOAD ...]``.

At the start, in plain passes forward and backward on as many examples as are looked at; afterwards, as a share of a
plain run of ``--steps`` steps: the later looks (after 1, 10, 100, ... steps), and the comparison of what is not trained
before every release.
"""

import argparse
import math
import statistics
from collections.abc import Callable
from time import perf_counter

import torch
from torch import nn

from benchmarks.machine import cores
from benchmarks.workloads import WORKLOADS, Workload
from hoarfrost.clipping import Local
from hoarfrost.gradients import Engine
from hoarfrost.gradients.arguments import Examples
from hoarfrost.gradients.prober import EXAMPLES

WANTED_PASSES, WANTED_SHARE = 20.0, 0.02


def seconds(work: Callable[[], object], rounds: int) -> float:
    """The median of ``rounds`` calls, after one that is not counted."""
    work()
    taken = []
    for _ in range(rounds):
        begin = perf_counter()
        work()
        taken.append(perf_counter() - begin)
    return statistics.median(taken)


def figures(workload: Workload, *, steps: int, rounds: int) -> dict[str, float]:
    """Plain passes that the first look counts and takes, and the share of ``steps`` steps that later looks take."""
    x, y = workload.batch()

    def plain_pass(model: nn.Module, examples: int) -> Callable[[], object]:
        return lambda: nn.functional.cross_entropy(model(x[:examples]), y[:examples]).backward()

    few = seconds(plain_pass(workload.build(), EXAMPLES), rounds)
    step = seconds(plain_pass(workload.build(), len(x)), rounds)
    model = workload.build()
    engine = Engine(model, dict(model.named_parameters()), Local(1.0))
    chosen = engine.prober._choose(Examples(len(x), True), ((x,), {}), (0,))
    first = seconds(lambda: engine.prober.look(chosen), rounds)
    counted = engine.prober.passes / (rounds + 1)
    later, check = seconds(engine.prober.again, rounds), seconds(engine.state.check, rounds)
    looks = 1 + math.floor(math.log10(steps))
    return {
        "passes counted": counted,
        "passes taken": first / few,
        "share afterwards": (looks * later + steps * check) / (steps * step),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS), metavar="WORKLOAD")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(cores())
    print(f"{'':10} {'passes counted':>15} {'passes taken':>13} {'share afterwards':>17}")
    for name in options.workloads:
        found = figures(WORKLOADS[name], steps=options.steps, rounds=options.rounds)
        print(
            f"{name:10} {found['passes counted']:15.1f} {found['passes taken']:13.1f} {found['share afterwards']:16.2%}"
            f"   wanted: {WANTED_PASSES:g} and {WANTED_SHARE:.0%}"
        )


if __name__ == "__main__":
    main()
