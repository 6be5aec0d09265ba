"""Is this the noise that was promised? Tests of numbers that should be independent and standard Gaussian."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2, kstest, norm

from hoarfrost.audit.result import ALPHA

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def faults(noise: Floats, live: Mask, names: list[str]) -> Iterator[str]:
    """What speaks against ``noise`` being one independent N(0, 1) for each live coordinate and step.

    Args:
        noise: [steps, coordinates], divided by its stated standard deviation, 0 where a coordinate is frozen.
        live: [steps, coordinates], where there should be noise.
        names: of the coordinates.

    Guarantees:
        Five tests, each of which alarms with probability at most 1e-6 if the noise is right. Chi-square and correlation
        tests are exact; the Kolmogorov-Smirnov test is nearly so from a thousand numbers on.
    """
    if not np.isfinite(noise).all():
        yield "the release is not finite"
        return
    squares = np.square(noise)

    share = float(squares.sum() / live.sum())
    p = float(_two_sided(squares.sum(), live.sum()))
    if p < ALPHA:
        yield f"the noise has {share:.3g} times its stated variance (p = {p:.1g})"

    counts = live.sum(0)
    seen = counts > 0
    ps = _two_sided(squares.sum(0)[seen], counts[seen])
    odd = np.flatnonzero(seen)[ps < ALPHA / seen.sum()]
    if len(odd):
        shown = ", ".join(names[i] for i in odd[:3]) + (", ..." if len(odd) > 3 else "")
        yield f"{len(odd)} of {seen.sum()} coordinates get noise of another size than stated: {shown}"

    p = float(kstest(noise[live], "norm", method="asymp").pvalue)
    if p < ALPHA:
        yield f"the release minus what it should hold is not Gaussian noise of the stated size (p = {p:.1g})"

    steps = len(noise)
    if steps > 1:
        one, other = np.triu_indices(steps, 1)
        z = _normal((noise @ noise.T)[one, other], (squares @ live.T.astype(float))[one, other])
        if _outlying(z):
            worst = int(np.abs(z).argmax())
            yield f"the noise of steps {one[worst]} and {other[worst]} is correlated (z = {z[worst]:.1f})"

    half = noise.shape[1] // 2
    if half:
        shifted = _correlated(noise[:, :half], noise[:, half : 2 * half])
        weight = _correlated(squares[:, :half], live[:, half : 2 * half].astype(float))
        z = _normal(shifted, weight)
        if _outlying(z):
            yield f"noise is repeated within a step, from tensor to tensor (z = {z[np.abs(z).argmax()]:.1f})"


def _two_sided(value: Floats | float, degrees: npt.NDArray[np.int64] | int) -> Floats:
    p: Floats = 2 * np.minimum(chi2.cdf(value, degrees), chi2.sf(value, degrees))
    return p


def _normal(products: Floats, weight: Floats) -> Floats:
    """⟨a, b⟩ over the length of a's part that meets b: given a, it is N(0, 1) exactly if b is independent of a."""
    # Where b is frozen, or a has no noise at all, there is nothing to say (rounding of the transform aside).
    known = weight > 1e-6 * max(1.0, float(weight.max()))
    return np.where(known, products, 0.0) / np.sqrt(np.where(known, weight, 1.0))


def _outlying(z: Floats) -> bool:
    return bool((2 * norm.sf(np.abs(z)) < ALPHA / z.size).any())


def _correlated(a: Floats, b: Floats) -> Floats:
    """Σ_steps Σ_i a[i] b[i + shift], for every circular shift."""
    spectrum = (np.fft.rfft(a, axis=1).conj() * np.fft.rfft(b, axis=1)).sum(0)
    return np.fft.irfft(spectrum, n=a.shape[1])
