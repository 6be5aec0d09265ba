"""Statistical tests of noise that should be independent and standard Gaussian."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2, kstest, norm

from hoarfrost.audit.result import ALPHA

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def faults(noise: Floats, live: Mask, names: list[str]) -> Iterator[str]:
    """Evidence against ``noise`` being independent N(0, 1) for each live coordinate and step.

    Args:
        noise: [steps, coordinates], divided by its stated standard deviation, 0 where a coordinate is frozen.
        live: [steps, coordinates], where there must be noise.
        names: of the coordinates.

    Guarantees:
        Five tests, each of which alarms with probability at most 1e-6 if the noise is correct. Chi-square and
        correlation tests are exact; the Kolmogorov-Smirnov test is nearly exact from 1000 numbers on.
    """
    if not np.isfinite(noise).all():
        yield "the release is not finite"
        return
    squares = np.square(noise)

    ratio = float(squares.sum() / live.sum())
    p = float(_two_sided(squares.sum(), live.sum()))
    if p < ALPHA:
        yield f"the noise has {ratio:.3g} times the stated variance (p = {p:.1g})"

    counts = live.sum(0)
    tested = counts > 0
    ps = _two_sided(squares.sum(0)[tested], counts[tested])
    wrong = np.flatnonzero(tested)[ps < ALPHA / tested.sum()]
    if len(wrong):
        shown = ", ".join(names[i] for i in wrong[:3]) + (", ..." if len(wrong) > 3 else "")
        yield f"{len(wrong)} of {tested.sum()} coordinates get noise of the wrong variance: {shown}"

    p = float(kstest(noise[live], "norm", method="asymp").pvalue)
    if p < ALPHA:
        yield f"the release minus the clipped sum is not Gaussian noise of the stated variance (p = {p:.1g})"

    steps = len(noise)
    if steps > 1:
        one, other = np.triu_indices(steps, 1)
        z = _z_scores((noise @ noise.T)[one, other], (squares @ live.T.astype(float))[one, other])
        if _any_outlier(z):
            worst = int(np.abs(z).argmax())
            yield f"the noise of steps {one[worst]} and {other[worst]} is correlated (z = {z[worst]:.1f})"

    half = noise.shape[1] // 2
    if half:
        shifted = _cross_correlation(noise[:, :half], noise[:, half : 2 * half])
        weight = _cross_correlation(squares[:, :half], live[:, half : 2 * half].astype(float))
        z = _z_scores(shifted, weight)
        if _any_outlier(z):
            yield f"noise is repeated within a step, across tensors (z = {z[np.abs(z).argmax()]:.1f})"


def _two_sided(value: Floats | float, degrees: npt.NDArray[np.int64] | int) -> Floats:
    p: Floats = 2 * np.minimum(chi2.cdf(value, degrees), chi2.sf(value, degrees))
    return p


def _z_scores(products: Floats, weight: Floats) -> Floats:
    """⟨a, b⟩ over the norm of a where b is live: given a, this is exactly N(0, 1) if b is independent of a."""
    # Where b is frozen or a is zero there is nothing to test. (The transform rounds: compare with 1e-6, not with 0.)
    known = weight > 1e-6 * max(1.0, float(weight.max()))
    return np.where(known, products, 0.0) / np.sqrt(np.where(known, weight, 1.0))


def _any_outlier(z: Floats) -> bool:
    return bool((2 * norm.sf(np.abs(z)) < ALPHA / z.size).any())


def _cross_correlation(a: Floats, b: Floats) -> Floats:
    """Σ_steps Σ_i a[i] b[i + shift], for every circular shift."""
    spectrum = (np.fft.rfft(a, axis=1).conj() * np.fft.rfft(b, axis=1)).sum(0)
    return np.fft.irfft(spectrum, n=a.shape[1])
