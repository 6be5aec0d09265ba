"""A recipe's freezer."""

from torch import nn

from hoarfrost.freezing import Freezer
from hoarfrost.recipes import schema, sources


def build(
    wanted: schema.ComponentTable | None, model: nn.Module, own: schema.Data, at: str = "freeze"
) -> Freezer | None:
    """The freezer; the recipe's keys are its arguments.

    Args:
        own: the recipe's data set.
        at: the table's place in the recipe, for messages.

    >>> own = schema.Data(name="digits")
    >>> build(schema.table("freeze", "random")(rate=0.9, cooling=40), nn.Linear(2, 2), own).cooling
    40
    """
    if wanted is None:
        return None
    freezer: Freezer = schema.build(
        wanted, at, network=model, own_data=own.name, load_data=lambda name: sources.public(name, own).train
    )
    also = build(wanted.also, model, own, f"{at}.also")  # type: ignore[attr-defined] # every table of a freezer has it
    return freezer if also is None else freezer & also
