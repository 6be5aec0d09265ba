"""A recipe's freezer."""

from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from hoarfrost import freezing
from hoarfrost.errors import InvalidValue
from hoarfrost.recipes import schema, sources
from hoarfrost.untrusted import line, shown_path, size_of

KINDS: dict[type[schema.Table], type[freezing.Freezer]] = {
    schema.FreezeLayers: freezing.Layers,
    schema.FreezeRandom: freezing.Random,
    schema.FreezeRanked: freezing.Ranked,
    schema.FreezeLargest: freezing.Largest,
    schema.FreezeRandomTensors: freezing.RandomTensors,
}


def build(wanted: schema.Freeze | None, model: nn.Module, own: schema.Data) -> freezing.Freezer | None:
    """The freezer; the recipe's keys are its arguments. ``own`` is the recipe's data set.

    >>> own = schema.Data(name="digits")
    >>> build(schema.FreezeRandom(kind="random", rate=0.9, cooling=40), nn.Linear(2, 2), own).cooling
    40
    """
    if wanted is None:
        return None
    if isinstance(wanted, schema.FreezePruned):
        freezer = _pruned(wanted, model, own)
    else:
        freezer = KINDS[type(wanted)](**wanted.model_dump(exclude={"kind", "also"}, exclude_none=True))
    return freezer if wanted.also is None else freezer & cast(freezing.Freezer, build(wanted.also, model, own))


def _pruned(wanted: schema.FreezePruned, model: nn.Module, own: schema.Data) -> freezing.Freezer:
    if wanted.public == own.name and wanted.private:
        raise InvalidValue(
            f"freeze.public is the private data set {own.name} itself: what is pruned would tell about it. Name public "
            "data, or say freeze.private = false, and the run is not private"
        )
    if wanted.public is None:
        assert wanted.reference is not None  # the recipe has one or the other
        return freezing.Pruned(
            wanted.keep,
            _weights(Path(wanted.reference), model),
            per=wanted.per,
            rewind=wanted.rewind,
            biases=wanted.biases,
            private=wanted.private,
        )
    public = sources.public(wanted.public, own).train
    try:
        return freezing.prune_from(
            model, public, keep=wanted.keep, epochs=wanted.epochs, lr=wanted.lr, per=wanted.per, rewind=wanted.rewind,
            biases=wanted.biases, private=wanted.private,
        )  # fmt: skip
    except InvalidValue as error:
        raise InvalidValue(line(f"freeze.public = {wanted.public}: {error}")) from error


def _weights(path: Path, model: nn.Module) -> dict[str, Tensor]:
    """What a file holds of the model's parameters, in their shapes; of anything else in it, nothing is read."""
    size_of(path, "file with a reference for pruning")
    try:
        with safe_open(path, "pt") as file:
            names, state = set(file.keys()), model.state_dict()
            fitting = [name for name in state if name in names and _shape(file, name) == state[name].shape]
            return {name: file.get_tensor(name) for name in fitting}
    except (OSError, SafetensorError) as error:
        raise InvalidValue(line(f"cannot read freeze.reference {shown_path(path)}: {error}")) from error


def _shape(file: Any, name: str) -> tuple[int, ...]:
    return tuple(file.get_slice(name).get_shape())
