"""A recipe's freezer."""

from torch import nn

from hoarfrost.freezing import Freezer
from hoarfrost.recipes import schema, sources


def build(wanted: schema.ComponentTable | None, model: nn.Module, own: schema.Data) -> Freezer | None:
    """The freezer; the recipe's keys are its arguments. ``own`` is the recipe's data set.

    >>> own = schema.Data(name="digits")
    >>> build(schema.table("freeze", "random")(rate=0.9, cooling=40), nn.Linear(2, 2), own).cooling
    40
    """
    return None if wanted is None else _build(wanted, "freeze", model, own)


def _build(wanted: schema.ComponentTable, at: str, model: nn.Module, own: schema.Data) -> Freezer:
    freezer: Freezer = schema.build(
        wanted, at, network=model, own_data=own.name, load_data=lambda name: sources.public(name, own).train
    )
    also = wanted.also  # type: ignore[attr-defined]
    return freezer if also is None else freezer & _build(also, f"{at}.also", model, own)
