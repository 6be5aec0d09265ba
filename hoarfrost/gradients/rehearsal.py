"""Whether a model in which examples share a lookup returns by its rules what it returns by itself.

An index that all examples share (a task's, positions) is looked up once for each of them, since a sum over examples
would be all that comes back of one lookup. Where the model does something with the shape of what was looked up, that
may be another program than the one that was written. Then the table is followed through the model instead, to where
what was looked up meets examples (`rules/direct.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hoarfrost.errors import NotPrivate
from hoarfrost.gradients import probe
from hoarfrost.gradients.few import Few

if TYPE_CHECKING:
    from hoarfrost.gradients.prober import Prober

TOLERANCE = 1e-2  # of the largest number: other kernels round otherwise; a wrong broadcast is off by far more


def rehearse(prober: Prober, few: Few) -> None:
    """Runs such a model on a few examples by itself and by its rules, and refuses it if something else comes out."""
    engine = prober.engine
    dims = engine.dims or {}
    shared = [m for m in engine.ruled if isinstance(m, nn.Embedding) and dims.get(m) == (None,)]
    # An index [1] is the position in sequences of length 1, or stands where others have examples.
    for leading, followed in (((), ()), (shared, ()), ((), shared)) if shared else ():
        engine.leading, engine.followed = frozenset(leading), frozenset(followed)
        if _is_the_same(prober, few):
            return
    if shared:
        engine.followed = frozenset()
        raise NotPrivate(
            f"{', '.join(map(engine.name_of, shared))} (Embedding) looks up the same indices for all examples, and the "
            "model uses the shape of the result: each example must have its own, or its gradient cannot be told from "
            "the others'. Write index.expand(len(x), ...), with a row for each example, before the lookup"
        )


def _is_the_same(prober: Prober, few: Few) -> bool:
    with prober.held_still() as kept, torch.enable_grad():
        prober.seed(kept, 0)
        untouched = prober.random_states(kept)
        seen = prober.run(kept, few, values=False)
        wanted, drawn = [t.detach() for t in seen.outputs], seen.drawn != untouched
    with prober.held_still() as kept, torch.enable_grad():
        try:
            found = _by_rules(prober, few)
        except Exception:  # a shape that does not fit, or in which examples are not found again
            return False
    if [t.shape for t in found] != [t.shape for t in wanted]:
        return False
    return drawn or all(map(_alike, found, wanted))  # layers may draw in another order


def _by_rules(prober: Prober, few: Few) -> list[Tensor]:
    engine = prober.engine
    engine.seen, engine.rehearsing = None, True
    try:
        return [t.detach() for t in probe.leaves(prober.call(few)) if isinstance(t, Tensor)]
    finally:
        engine.rehearsing = False


def _alike(a: Tensor, b: Tensor) -> bool:
    if not a.is_floating_point() or not b.numel():
        return True
    largest = float(b.abs().nan_to_num(posinf=0.0).max())
    return torch.allclose(a.double(), b.double(), rtol=0, atol=TOLERANCE * largest, equal_nan=True)
