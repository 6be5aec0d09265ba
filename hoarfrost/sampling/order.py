"""Whether a collate function keeps examples in the order in which it is given them.

Rows of one example (its views) or of one person are known by their place: neighbours are averaged before they are
clipped. A collate function that sorts would put rows of different ones there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hoarfrost.errors import NotPrivate
from hoarfrost.nested import map_tensors

EXAMPLES = 16  # looked at


def refuse_reordering(collate: Callable[[list[Any]], Any], dataset: Any, size: int, batch_first: bool = True) -> None:
    """Collates some examples in order and in reverse, and refuses a collate function whose rows are not reversed too.

    Tensors that are random (a collate function that augments) or have other sizes (padding, dropped rows) are passed
    over: what cannot be compared is not refused.

    >>> from torch.utils.data import default_collate
    >>> refuse_reordering(default_collate, [torch.tensor(3.0), torch.tensor(1.0)], 2)
    >>> refuse_reordering(lambda examples: default_collate(sorted(examples)), [torch.tensor(3.0), torch.tensor(1.0)], 2)
    Traceback (most recent call last):
        ...
    hoarfrost.errors.NotPrivate: the collate function changes the order of examples...
    """
    chosen = sorted({round(k * (size - 1) / (EXAMPLES - 1)) for k in range(EXAMPLES)})
    examples = [dataset[index] for index in chosen]
    in_order, again = _collated(collate, examples, 0), _collated(collate, examples, 1)
    for straight, repeated, reverse in zip(in_order, again, _collated(collate, examples[::-1], 0), strict=False):
        dim = 0 if batch_first or straight.dim() < 2 else 1
        alike = straight.shape == repeated.shape == reverse.shape
        if not alike or straight.dim() <= dim or straight.shape[dim] != len(examples):
            continue
        if torch.equal(straight, repeated) and not torch.equal(straight.flip(dim), reverse):
            raise NotPrivate(
                "the collate function changes the order of examples, as sorting does: with views= or person=, rows "
                "that lie side by side are averaged as one example's views or one person's rows, and those of "
                "different ones would be put together. Keep the order (pack_padded_sequence sorts by itself with "
                "enforce_sorted=False)."
            )


def _collated(collate: Callable[[list[Any]], Any], examples: list[Any], seed: int) -> list[Tensor]:
    """All tensors of the batch. Copies, because some collate functions take their input apart."""
    found: list[Tensor] = []
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        map_tensors(lambda t: found.append(t), collate(copy.deepcopy(examples)))
    return found
