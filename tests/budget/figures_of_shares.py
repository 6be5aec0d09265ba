"""`python -m tests.budget.figures_of_shares`: the noise of a split budget by dp_accounting alone."""

from __future__ import annotations

from dp_accounting import ComposedDpEvent, DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant

N, BATCH, STEPS, RATE = 67_349, 1024, 197, 0.02


def event(sigma: float, rate: float, steps: int) -> DpEvent:
    return SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)), steps)


def epsilon(*events: DpEvent) -> float:
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    return float(accountant.compose(ComposedDpEvent(list(events))).get_epsilon(1 / (2 * N)))


def least(target: float, rate: float, steps: int, *others: DpEvent) -> float:
    low, high = 0.3, 8.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if epsilon(*others, event(middle, rate, steps)) <= target else (middle, high)
    return high


if __name__ == "__main__":
    for target in (0.5, 2.0):
        training = least(0.9 * target, BATCH / N, STEPS)
        for rounds in (5, 1):
            selection = least(target, RATE, rounds, event(training, BATCH / N, STEPS))
            print(f"epsilon {target}, {rounds} rounds: steps {training:.3f}, rounds {selection:.3f}")
