"""Which examples are clipped, how long their gradients are, and how much they agree."""

from __future__ import annotations

import math
from collections import Counter

import torch
from torch import Tensor

from hoarfrost.measure.bounds import alignment_bound, gradient_ratio
from hoarfrost.measure.gram import Gram
from hoarfrost.measure.measurement import Adding, Measurement, live_only
from hoarfrost.observers import Released, Sums
from hoarfrost.registry import Whole, component

BINS = 10  # of a histogram of lengths, in each power of ten


@component("measure", "clipping")
class Clipped(Measurement):
    """Of the step's batch: the share of the examples that are clipped, a histogram of their gradients' lengths, their
    spread R, and how far the clipped mean goes along the true one beside a lower bound on that.

    Lengths are over live coordinates. An example is clipped if a factor of it is below 1. R = Tr Cov / ‖mean‖² is over
    the examples of the batch that have a finite gradient; the bound C·(1 - R/2) on c·ḡ/‖ḡ‖ is for one clipping norm,
    and assumes that every example is clipped.

    Args:
        every: it looks at every so many steps, beginning with the first.

    >>> Clipped(every=3).looks(4)
    False
    """

    kind = "clipping"

    def __init__(self, every: Whole = 10) -> None:
        super().__init__(every)
        self._unclipped = Adding()
        self._norms: list[Tensor] = []
        self._factors: list[Tensor] = []

    def on_sums(self, sums: Sums) -> None:
        self._unclipped.add(sums.unclipped())
        self._norms.append(sums.norms.detach().double())
        self._factors.append(sums.factors.detach().double())

    def on_release(self, released: Released) -> None:
        clipping, unclipped = released.clipping, self._unclipped.take()
        blocks = [block.name for block in clipping.blocks]
        norms = torch.cat(self._norms) if self._norms else torch.zeros(0, len(blocks))
        factors = torch.cat(self._factors) if self._factors else torch.zeros(0, len(blocks))
        self._norms, self._factors = [], []
        lengths = norms.square().sum(1).sqrt()
        good = lengths[lengths.isfinite()]
        count = len(good)
        gram = Gram.of({"U": live_only(unclipped, released), "B": live_only(released.clipped, released)})
        ratio = alignment = bound = None
        if count:
            mean = gram.norm("U") / count
            ratio = gradient_ratio(float(good.square().mean()), mean)
            alignment = gram.inner("B", "U") / count**2 / mean if mean else None
            if ratio is not None and len(blocks) == 1:
                bound = alignment_bound(clipping.bounds[0], ratio)
        shares = (factors < 1).double()
        self.found(
            released.step,
            examples=len(norms),
            bounds=dict(zip(blocks, clipping.bounds, strict=True)),
            share_clipped=float(shares.amax(1).mean()) if len(norms) else None,
            shares_by_block=dict(zip(blocks, shares.mean(0).tolist(), strict=True)) if len(norms) else None,
            histogram=histogram(lengths),
            R=ratio,
            alignment=alignment,
            alignment_bound=bound,
        )


def histogram(lengths: Tensor) -> dict[str, int]:
    """How many lengths are in which bin: bin k holds those from 10^(k/10) to 10^((k+1)/10).

    >>> histogram(torch.tensor([1.0, 1.1, 10.0, 0.0, float("inf")]))
    {'0': 2, '10': 1, 'zero': 1, 'not finite': 1}
    """
    bins: Counter[str] = Counter()
    for length in sorted(lengths.tolist(), key=lambda each: (not 0 < each < math.inf, each)):
        fits = 0 < length < math.inf
        bins[str(math.floor(math.log10(length) * BINS)) if fits else "zero" if length == 0 else "not finite"] += 1
    return dict(bins)
