"""make_private(loss=): the first batch of a run shows whether the loss, and the collate function, mix examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.utils.data import default_collate

from hoarfrost.errors import HoarfrostError, InvalidValue, NotPrivate
from hoarfrost.gradients.independence import LossFunction, NotFinite, Unrepeatable, examine
from hoarfrost.gradients.members import Collated, Picked, spread
from hoarfrost.gradients.probe import random_states_held

EXAMPLES, TESTED = 6, 4  # 19 runs of a few examples


def examine_first(
    model: nn.Module,
    batch: Any,
    loss: LossFunction,
    *,
    rows: int,
    views: int,
    anew: tuple[Any, Sequence[int], Callable[[list[Any]], Any]],
    **options: Any,
) -> bool:
    """`examine` on a few examples of the first batch of a run, as its loader hands it over, and collated anew.

    Args:
        rows: how many the batch has: those of its examples, ``views`` of each.
        anew: the data set, the examples' numbers in it, and what collates them.
        options: `examine`'s.

    Returns:
        Whether the batch could show anything: one with an example whose gradient is not finite cannot.
    """
    try:
        members = Picked(batch, options["batch_first"], rows, views, most=EXAMPLES)
        examine(model, members, loss, tested=TESTED, **options)
    except NotFinite:
        return False
    except HoarfrostError:
        raise
    except Exception as error:
        raise InvalidValue(
            "make_private(loss=...) runs the model and the loss on a batch as the loader gives it, and that fails: "
            f"{type(error).__name__}: {error}. If your loop changes the batch before the model gets it, leave out "
            "loss= and call hoarfrost.check_independence with what the model gets"
        ) from error
    if anew[2] is not default_collate:
        with random_states_held():
            _examine_anew(model, loss, *anew, views, **options)
    return True


def _examine_anew(
    model: nn.Module,
    loss: LossFunction,
    dataset: Any,
    indices: Sequence[int],
    collate: Callable[[list[Any]], Any],
    views: int,
    **options: Any,
) -> None:
    """Refuses a collate function by which examples mix that do not where they are collated already.

    What cannot be collated anew, or not twice in the same way (random numbers of others than torch), is passed over.
    """
    chosen = [indices[k] for k in spread(len(indices), EXAMPLES)]
    try:
        members = Collated(dataset, chosen, collate, views)
        members.leave_out_dropped(options["batch_first"])
        examine(model, members, loss, tested=EXAMPLES, **options)  # each: the longest is one of them
    except Unrepeatable:
        return
    except NotPrivate as error:
        raise NotPrivate(
            "the collate function mixes examples: where one of them is left out or changed before they are collated, "
            "the others contribute something else to the gradient. Padding to the longest of a batch does that if the "
            "model or the loss does not mask it (mask it, or pad to a fixed length); so do CutMix and statistics of "
            "the batch. hoarfrost.check_independence(..., dataset=, collate=) says the same"
        ) from error
    except Exception:
        return
