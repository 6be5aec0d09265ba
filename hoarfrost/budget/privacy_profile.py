"""profile(): the delta of every epsilon. All of it together says more about an attack than one pair does."""

from collections.abc import Iterable, Sequence

from hoarfrost.budget import _pld
from hoarfrost.budget.events import Event, gathered, mechanisms, noiseless
from hoarfrost.validate import finite, not_negative


def profile(events: Event | Iterable[Event], epsilons: Sequence[float]) -> tuple[float, ...]:
    """The privacy profile δ(ε): for each epsilon the delta at which the releases are (ε, δ)-differentially private.

    Computed by privacy loss distributions, which compose the releases themselves: no central limit is taken.

    Args:
        events: one release, or any number of them, in any order.
        epsilons: each 0 or above.

    Guarantees:
        All pairs (ε, δ(ε)) hold at once, each in the sense of `epsilon`. A delta is 0 if nothing was released, and 1,
        which says nothing, if something was released without noise.

    >>> from hoarfrost.budget import Gaussian
    >>> training = Gaussian(noise_multiplier=1.54, sample_rate=0.02, steps=2000)
    >>> [f"{delta:.1e}" for delta in profile(training, [0.0, 1.0, 2.754])]
    ['2.5e-01', '2.8e-02', '1.0e-05']
    """
    for each in epsilons:
        finite(epsilon=each)
        not_negative(epsilon=each)
    counted = dict(mechanisms(gathered(events)))
    if not counted:
        return (0.0,) * len(epsilons)
    if any(map(noiseless, counted)):
        return (1.0,) * len(epsilons)
    return _pld.deltas(counted, epsilons)
