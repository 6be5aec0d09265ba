"""From an attack's error rates to a lower bound on μ and epsilon.

An attack sees a release and decides whether an example took part. FPR is its false positive rate, FNR its false
negative rate. A mechanism is μ-GDP (Gaussian differentially private) if distinguishing two neighbouring data sets is no
easier than distinguishing N(0, 1) from N(μ, 1): Gaussian noise with multiplier σ is 1/σ-GDP.
"""

import math

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtri
from scipy.stats import beta

from hoarfrost import validate
from hoarfrost.errors import InvalidValue


def rate_upper(hits: int, trials: int, alpha: float) -> float:
    """The Clopper-Pearson upper bound: the true rate is above it with probability at most ``alpha``.

    With 0 hits it is 1 - alpha^(1/trials).

    >>> round(rate_upper(0, 1000, alpha=0.05), 5)
    0.00299
    """
    validate.whole(trials=trials)
    validate.probability(alpha=alpha)
    if not 0 <= hits <= trials:
        raise InvalidValue(f"hits must lie between 0 and the {trials} trials, got {hits}")
    return 1.0 if hits == trials else float(beta.isf(alpha, hits + 1, trials - hits))


def mu_lower(fpr: float, fnr: float) -> float:
    """The smallest μ that allows these rates (or upper bounds on them): Φ⁻¹(1 − FPR) − Φ⁻¹(FNR).

    Guarantees:
        No attack on a mechanism with a smaller μ has such rates. Never negative.

    >>> round(mu_lower(fpr=0.308538, fnr=0.308538), 4)
    1.0
    >>> mu_lower(fpr=0.6, fnr=0.6)
    0.0
    """
    if max(fpr, fnr) >= 1:
        return 0.0
    return max(0.0, float(-ndtri(fpr) - ndtri(fnr)))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The exact δ at which a μ-GDP mechanism is (epsilon, δ)-private: Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ).

    >>> round(gaussian_delta(1.0, epsilon=1.0), 5)
    0.12694
    """
    validate.positive(mu=mu)
    first, second = float(log_ndtr(mu / 2 - epsilon / mu)), epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    # The two terms are close where δ is small: subtract before taking the exponential.
    return math.exp(first) * -math.expm1(min(0.0, second - first))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The exact epsilon of a μ-GDP mechanism at ``delta``: 0 for μ = 0.

    >>> round(gaussian_epsilon(1.0, delta=1e-5), 3)
    4.377
    """
    validate.not_negative(mu=mu)
    validate.probability(delta=delta)
    if mu == 0 or gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    # δ(ε) ≤ Φ(μ/2 − ε/μ), so the root lies below the one of that.
    most = mu * (mu / 2 - float(ndtri(delta)))
    return float(brentq(lambda epsilon: gaussian_delta(mu, epsilon) - delta, 0.0, most, xtol=1e-12))
