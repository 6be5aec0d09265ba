"""Second opinions that share nothing with the accountants: a closed formula, and an integral that has no grid."""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """The Gaussian mechanism's exact epsilon: δ(ε) = Φ(1/(2σ) - εσ) - e^ε Φ(-1/(2σ) - εσ)."""

    def delta_at(epsilon: float) -> float:
        a, b = 1 / (2 * sigma), epsilon * sigma
        return norm.cdf(a - b) - math.exp(epsilon + norm.logcdf(-a - b))

    high = 1.0
    while delta_at(high) > delta:
        high *= 2
    return brentq(lambda epsilon: delta_at(epsilon) - delta, 0, high, xtol=1e-12) if delta_at(0) > delta else 0.0


def sampled_epsilon(sigma: float, rate: float, steps: int, delta: float) -> float:
    """Many steps of the sampled Gaussian mechanism, removing an example: the harder direction.

    δ(ε) = P(L > ε) - e^ε Q(L > ε) for the sum L of all steps' losses. Both tails come from characteristic functions:
    P(L > ε) = 1/2 + 1/π ∫ Im(e^{-itε} φ(t)) / t dt, with φ the one-step function to the power of the steps.
    """
    x = np.linspace(-12 * sigma, 1 + 12 * sigma, 2501)
    without, taken = norm.pdf(x, 0, sigma) * (x[1] - x[0]), norm.pdf(x, 1, sigma) * (x[1] - x[0])
    loss = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * sigma**2))
    present = (1 - rate) * without + rate * taken

    def power(t: np.ndarray, weight: np.ndarray) -> np.ndarray:
        angle = np.outer(t, loss)
        return np.exp(steps * np.log1p((np.cos(angle) - 1 + 1j * np.sin(angle)) @ weight))

    end = 8 / math.sqrt(steps * present @ loss**2)
    while max(abs(power(np.array([end]), weight)[0]) for weight in (present, without)) > 1e-13:
        end *= 1.3
    t = (np.arange(1500) + 0.5) * end / 1500
    p, q = (power(t, weight) / t for weight in (present, without))

    def delta_at(epsilon: float) -> float:
        tails = [0.5 + (np.exp(-1j * t * epsilon) * f).imag.sum() * end / 1500 / math.pi for f in (p, q)]
        return tails[0] - math.exp(epsilon) * tails[1]

    high = 1e-3
    while delta_at(high) > delta:
        high *= 1.5
    return brentq(lambda epsilon: delta_at(epsilon) - delta, 0, high, xtol=1e-10)
