"""What else is trained while batches of a private loader go by."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch.optim import Optimizer

if TYPE_CHECKING:
    from hoarfrost.optim.private import PrivateOptimizer

UNSEEN = 2  # chunks: a student that learns on public data before the private model runs on a batch has seen one go by


def tell_of_other_training(stepping: Optimizer, private: PrivateOptimizer, every: Iterable[PrivateOptimizer]) -> None:
    """Says once that a plain optimizer steps while the private model is not what runs on the loader's batches.

    A copy of the model (for averages, as a teacher, for evaluation) has no optimizer, and what learns from public data
    does so between the private model's steps, or outside of the loop.

    Args:
        every: all private optimizers, whose own steps are not meant.
    """
    if private.engine.sums.tickets.unseen < UNSEEN or private.others_told:
        return
    if any(stepping is each or stepping is each.inner for each in every):
        return
    if all(p.grad is None for group in stepping.param_groups for p in group["params"]):
        return
    private.others_told = True
    warnings.warn(
        "a plain optimizer steps while batches of the private loader go by on which the private model does not run. If "
        "it trains something on them (a copy of the model, a layer on top of it, another model), that is trained "
        "without privacy, and no epsilon covers it: it must not be released. Make it private with make_private, and "
        "train on public data outside of the loop over private batches",
        stacklevel=4,
    )
