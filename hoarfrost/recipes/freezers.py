"""A recipe's freezer."""

from torch import nn

from hoarfrost.freezing import Freezer, PrivateScaling
from hoarfrost.recipes import schema, sources
from hoarfrost.recipes.losses import CROSS_ENTROPY, Loss


def build(
    wanted: schema.ComponentTable | None,
    model: nn.Module,
    own: schema.Data,
    loss: Loss = CROSS_ENTROPY,
    at: str = "freeze",
) -> Freezer | None:
    """The freezer; the recipe's keys are its arguments.

    Args:
        own: the recipe's data set.
        loss: the recipe's loss.
        at: the table's place in the recipe, for messages.

    >>> own = schema.Data(name="digits")
    >>> build(schema.table("freeze", "random")(rate=0.9, cooling=40), nn.Linear(2, 2), own).cooling
    40
    """
    if wanted is None:
        return None
    freezer: Freezer = schema.build(
        wanted, at, network=model, loss=loss, own_data=own.name, load_data=lambda name: sources.public(name, own).train
    )
    also = build(wanted.also, model, own, loss, f"{at}.also")  # type: ignore[attr-defined] # every table of a freezer has it
    return freezer if also is None else freezer & also


def with_scaling(freezer: Freezer | None, model: nn.Module, own: schema.Data) -> Freezer | None:
    """The freezer, and with it the private scaling of a table's columns, if the recipe asks for it.

    >>> with_scaling(None, nn.Linear(2, 2), schema.Data(name="digits"))
    """
    if own.scaling is None:
        return freezer
    assert own.scaling_noise is not None  # a recipe says both or none
    scaling = PrivateScaling(model.get_submodule("scaling"), own.scaling_noise, beside=freezer)
    return scaling if freezer is None else freezer & scaling
