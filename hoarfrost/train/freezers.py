"""A recipe's freezer."""

from torch import nn

from hoarfrost import freezing
from hoarfrost.errors import InvalidValue
from hoarfrost.train import recipe, sources
from hoarfrost.untrusted import line

KINDS: dict[type[recipe.Table], type[freezing.Freezer]] = {
    recipe.FreezeLayers: freezing.Layers,
    recipe.FreezeRandom: freezing.Random,
    recipe.FreezeRanked: freezing.Ranked,
    recipe.FreezeLargest: freezing.Largest,
    recipe.FreezeRandomTensors: freezing.RandomTensors,
}


def build(wanted: recipe.Freeze | None, model: nn.Module, own: recipe.Data) -> freezing.Freezer | None:
    """The freezer; the recipe's keys are its arguments. ``own`` is the recipe's data set.

    >>> own = recipe.Data(name="digits")
    >>> build(recipe.FreezeRandom(kind="random", rate=0.9, cooling=40), nn.Linear(2, 2), own).cooling
    40
    """
    if wanted is None:
        return None
    if isinstance(wanted, recipe.FreezePruned):
        return _pruned(wanted, model, own)
    arguments = wanted.model_dump(exclude={"kind"}, exclude_none=True)
    if isinstance(arguments.get("first"), float) and arguments["first"] >= 1:
        arguments["first"] = int(arguments["first"])  # a number of layers; below 1 it is a share of them
    return KINDS[type(wanted)](**arguments)


def _pruned(wanted: recipe.FreezePruned, model: nn.Module, own: recipe.Data) -> freezing.Freezer:
    if wanted.public == own.name and wanted.private:
        raise InvalidValue(
            f"freeze.public is the private data set {own.name} itself: what is pruned would tell about it. Name public "
            "data, or say freeze.private = false, and the run is not private"
        )
    public = sources.public(wanted.public, own).train
    try:
        return freezing.prune_from(
            model, public, keep=wanted.keep, epochs=wanted.epochs, lr=wanted.lr, per=wanted.per, rewind=wanted.rewind,
            private=wanted.private,
        )  # fmt: skip
    except (RuntimeError, IndexError) as error:
        reason = line(f"the model cannot be trained on freeze.public = {wanted.public}: {error}")
        raise InvalidValue(reason) from error
