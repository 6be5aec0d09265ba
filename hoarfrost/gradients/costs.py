"""The one place that decides how a per-example norm is computed: an estimate of each method's time.

A method's time is its arithmetic and its memory traffic, and a price for what it keeps until the factors are known,
each at a rate measured once (`python -m benchmarks.costs` measures them again on another machine, and prints how far
these estimates lie from the clock). Only ratios matter: the rates are relative to one multiply-add of a large matrix
product.
"""

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Rates:
    """Time of one unit of work, in multiply-adds of a large matrix product."""

    small_product: float  # a multiply-add in a batch of small matrix products
    touch: float  # one number read or written, in order
    patch: float  # one number copied into a patch matrix
    hold: float = 40.0  # one number kept until the factors are known: memory's price, not a time
    # For live elements alone; where these are not known, whole matrices are computed and masked.
    call: float = inf  # what one example costs, however small
    gather: float = inf  # one number added up from a row of a table
    dot: float = inf  # beginning an inner product
    dotted: float = inf  # a multiply-add in it


RATES = {
    "cpu": Rates(small_product=0.92, touch=12.0, patch=29.0, call=4e6, gather=2.8, dot=300.0, dotted=3.5),
    # A guess, not yet measured: a GPU has far more arithmetic for each number it can move.
    "cuda": Rates(small_product=2.0, touch=60.0, patch=90.0),
}


PIECES = 8  # reads and writes of each number of a gradient that is written out, masked, squared and forgotten


def _rates(device: str) -> Rates:
    return RATES.get(device, RATES["cuda"])


def outer(examples: int, positions: int, p: int, d: int, device: str) -> dict[str, float]:
    """Time of each way to the norms of a matrix's gradients *and* to their weighted sum.

    >>> min(costs := outer(32, 1, 784, 1024, "cpu"), key=costs.get)
    'product'
    """
    r = _rates(device)
    if positions == 1:
        return {"product": examples * ((p + d) * r.touch + p * d)}
    sum_by_product = positions * p * d + positions * min(p, d) * 2 * r.touch
    gram = positions**2 * ((p + d) * r.small_product + 3 * r.touch) + positions * d * r.hold
    # Written, and read for the norm and for the sum.
    written = positions * p * d * r.small_product + p * d * (3 * r.touch + r.hold)
    times = {"gram": gram + sum_by_product, "written": written}
    return {method: examples * time for method, time in times.items()}


def masked_outer(examples: int, positions: int, p: int, d: int, share: float, device: str) -> dict[str, float]:
    """The same where only a ``share`` of the matrix is live.

    >>> min(costs := masked_outer(1024, 1, 784, 1024, 0.1, "cpu"), key=costs.get)
    'gathered'
    """
    r = _rates(device)
    elements = share * p * d
    if positions == 1:
        # A dot product runs over the examples here, which share its beginning.
        gathered = 4 * (p + d) * r.touch + elements * (r.gather + r.dotted + r.dot / max(1, examples))
        times = {"product": (p + d) * r.touch + 2 * p * d, "gathered": gathered}
    else:
        sides = 2 * positions * (p + d) * r.touch
        times = {
            "pieces": positions * p * d * (r.small_product + 1) + PIECES * p * d * r.touch,
            "picked": r.call + sides + elements * (r.dot + positions * r.dotted + r.hold),
        }
    return {method: examples * time for method, time in times.items()}


def convolution(
    examples: int, positions: int, pixels: int, p: int, d: int, window: int, device: str
) -> dict[str, float]:
    """The same for a convolution's weight: ``window`` offsets of ``p`` input channels to ``d`` output channels.

    ``pixels`` counts the padded input's, ``positions`` the output's. Groups multiply every method alike.

    >>> min(costs := convolution(32, 16, 36, 512, 512, 9, "cpu"), key=costs.get)
    'pixels'
    """
    r = _rates(device)
    gradient = positions * p * d * window
    pixel_gram = pixels**2 * p * r.small_product + positions**2 * d * r.small_product
    shifted = 2 * window**0.5 * pixels * positions * r.touch + 2 * positions**2 * r.touch
    written = gradient * r.small_product + positions * p * window * r.patch + p * d * window * (3 * r.touch + r.hold)
    times = {"pixels": pixel_gram + shifted + gradient + positions * d * (2 * r.touch + r.hold), "written": written}
    return {method: examples * time for method, time in times.items()}


def masked_convolution(
    examples: int, positions: int, pixels: int, p: int, d: int, window: int, share: float, device: str
) -> dict[str, float]:
    """The same where only a ``share`` of the weight is live.

    >>> min(costs := masked_convolution(32, 16, 36, 512, 512, 9, 0.1, "cpu"), key=costs.get)
    'picked'
    """
    r = _rates(device)
    written = convolution(examples, positions, pixels, p, d, window, device)["written"]
    elements, patches = p * d * window, positions * p * window * r.patch
    picked = r.call + patches + share * elements * (r.dot + positions * r.dotted + r.hold)
    pieces = patches + elements * (positions * (r.small_product + 1) + PIECES * r.touch)
    return {"written": written, "picked": examples * picked, "pieces": examples * pieces}


def cheapest(times: dict[str, float]) -> str:
    """The method with the smallest estimate."""
    return min(times, key=lambda method: times[method])
