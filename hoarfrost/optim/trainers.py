"""Settings of a trainer around the loop that would do nothing here, or something else than they say."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hoarfrost.errors import InvalidValue, NotPrivate


def refuse_settings(closure: Callable[[], Any]) -> None:
    """Refuses what a Lightning Trainer was told about gradients that are not there when it gets to them.

    Lightning hands the step a closure that runs the model, the backward pass and then its own gradient clipping, with
    the LightningModule as its first argument. Known by that, so that Lightning need not be imported.
    """
    owner = closure.args[0] if isinstance(closure, partial) and closure.args else None
    trainer = getattr(owner, "_trainer", None)
    norm = getattr(trainer, "gradient_clip_val", None)
    if norm:
        raise InvalidValue(
            f"Trainer(gradient_clip_val={norm}) clips gradients between the backward pass and the step, where a "
            "private run has none yet: it would do nothing. Leave it out; clip= of make_private clips the gradient of "
            "each example"
        )
    batches = getattr(trainer, "accumulate_grad_batches", 1)
    if batches != 1:
        raise NotPrivate(
            f"Trainer(accumulate_grad_batches={batches}) puts several batches into one step, in which an example may "
            "be twice, and divides their losses. Leave it out; batches larger than memory come in chunks with "
            "max_physical_batch= of make_private"
        )
