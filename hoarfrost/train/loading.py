"""The trained model of a run folder, to be used or examined elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from hoarfrost.budget.events import from_dict
from hoarfrost.data import Splits
from hoarfrost.errors import InvalidValue
from hoarfrost.recipes import losses, networks, schema, sources
from hoarfrost.recipes.loading import read_recipe
from hoarfrost.recipes.losses import Loss
from hoarfrost.train.folder import RunFolder, read_json
from hoarfrost.untrusted import line, shown_path


def load_model(run: str | Path) -> nn.Module:
    """The model of a run folder with the weights that the run ended with, in evaluation mode, on the CPU.

    It is an ordinary module: nothing in it is private any more than the weights are. A model for texts is built without
    a look at the data; of any other, the data set that the recipe names must still be there. A pretrained model is read
    from its own folder once more.

    >>> import tempfile
    >>> from hoarfrost.train import read_recipe, run
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = run(read_recipe("digits", ["privacy.steps=2"]), out=f"{folder}/run")
    ...     model = load_model(f"{folder}/run")
    >>> model.training, all(p.equal(q) for p, q in zip(model.parameters(), result.model.parameters()))
    (False, True)
    """
    folder, recipe = _recipe_of(run)
    loss = losses.build(recipe.loss)
    if recipe.data.text is not None:
        splits = sources.without_rows(recipe.data, schema.load_tokenizer(recipe.model))
    else:
        splits = sources.load(recipe.data, real_targets=loss.real_targets)
    return _model(folder, recipe, splits, loss)


@dataclass(frozen=True)
class Trained:
    """What a run was made of, and the model that it ended with."""

    folder: Path
    recipe: schema.Recipe
    splits: Splits
    loss: Loss
    model: nn.Module

    @classmethod
    def load(cls, run: str | Path) -> Trained:
        """The model of a run folder as `load_model` gives it, with the recipe's data, which must still be there."""
        folder, recipe = _recipe_of(run)
        loss = losses.build(recipe.loss)
        splits = sources.load(
            recipe.data, real_targets=loss.real_targets, tokenizer=lambda: schema.load_tokenizer(recipe.model)
        )
        return cls(folder, recipe, splits, loss.in_units(splits.unit), _model(folder, recipe, splits, loss))


def as_calibrated(folder: Path) -> dict[str, Any]:
    """What `Parts.solve` is told so that it plans with the noise that the run folder states, and calibrates nothing."""
    facts = read_json(folder, "run.json")
    multiplier = facts.get("noise_multiplier")
    if isinstance(multiplier, bool) or not isinstance(multiplier, int | float):
        raise InvalidValue(f"{folder / 'run.json'} does not state the noise multiplier")
    releases = [from_dict(each) for each in facts.get("releases", [])]
    return {"epsilon": None, "noise_multiplier": multiplier, "solved": releases}


def _recipe_of(run: str | Path) -> tuple[Path, schema.Recipe]:
    folder = RunFolder.existing(Path(run).expanduser()).path
    return folder, read_recipe(folder / "recipe.toml", root="/")


def _model(folder: Path, recipe: schema.Recipe, splits: Splits, loss: Loss) -> nn.Module:
    model = networks.build(recipe.model, splits, losses.outputs(recipe.loss, loss, splits.classes), recipe.peft)
    weights = folder / "model.safetensors"
    if not weights.exists():
        raise InvalidValue(f"there is no model.safetensors in {shown_path(folder)}: has the run ended?")
    try:
        model.load_state_dict(load_file(weights))
    except (SafetensorError, OSError, RuntimeError) as error:
        raise InvalidValue(line(f"{shown_path(weights)} does not fit the recipe: {error}")) from error
    return model.eval()
