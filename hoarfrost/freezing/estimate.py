"""PGM-EST: what several noisy rounds, each about fewer partitions than the one before, say together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
MOST_TURNS = 1000
CONVERGED = 1e-12  # relative change of every scale in one turn


@dataclass(frozen=True)
class Estimate:
    """What was estimated.

    Args:
        magnitudes: v, [partitions].
        scales: λ, [rounds].
        per_noise: the standard error of each v for a noise multiplier of 1, [partitions].
    """

    magnitudes: Array
    scales: Array
    per_noise: Array


def estimate(observed: Sequence[Array], sensitivities: Sequence[float], first_scale: float) -> Estimate:
    """The likeliest magnitudes v and scales λ, where round t has seen λ_t·v_i with noise in proportion to Δ_t.

    A round has a scale of its own, since fewer partitions share what an example may say; one scale for all partitions
    is the paper's assumption. Lemmas 4 and 5 of the paper are used in turn, until nothing changes any more or 1,000
    times. The first scale stays as it is (otherwise v and λ would only be known up to a factor), and the others begin
    there.

    Args:
        observed: for each round [partitions], NaN where a partition did not take part. All take part in the first.
        sensitivities: Δ of each round.
        first_scale: λ_1: how many examples are expected in a sample, so that v is a mean over examples.

    >>> first, second = np.array([8.0, 4.0, 2.0]), np.array([np.nan, 8.0, 4.0])
    >>> found = estimate([first, second], [1.0, 1.0], first_scale=2.0)
    >>> found.magnitudes.round(6).tolist(), found.scales.round(6).tolist()
    ([4.0, 2.0, 1.0], [2.0, 4.0])
    """
    seen = np.stack([np.asarray(row, np.float64) for row in observed])
    part = ~np.isnan(seen)  # [rounds, partitions]
    seen = np.where(part, seen, 0.0)
    weight = np.asarray(sensitivities, np.float64)[:, None] ** -2.0
    scales = np.full(len(seen), float(first_scale))
    magnitudes = _magnitudes(seen, part, weight, scales)
    for _ in range(MOST_TURNS if len(seen) > 1 else 0):
        before = scales
        squares = (part * magnitudes**2).sum(1)
        known = squares > 0  # if all that is left seems to be zero, nothing is learned of the scale
        fitted = np.divide((seen * magnitudes).sum(1), squares, out=before.copy(), where=known)
        scales = np.concatenate([before[:1], fitted[1:]])
        magnitudes = _magnitudes(seen, part, weight, scales)
        if bool((abs(scales - before) <= CONVERGED * abs(scales)).all()):
            break
    information = (part * weight * scales[:, None] ** 2).sum(0)
    return Estimate(magnitudes, scales, information**-0.5)


def _magnitudes(seen: Array, part: npt.NDArray[np.bool_], weight: Array, scales: Array) -> Array:
    """Lemma 5."""
    column = scales[:, None]
    found: Array = (seen * column * weight).sum(0) / (part * column**2 * weight).sum(0)
    return found
