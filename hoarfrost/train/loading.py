"""The trained model of a run folder, to be used or evaluated elsewhere."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from hoarfrost.errors import InvalidValue
from hoarfrost.recipes import losses, networks, schema, sources
from hoarfrost.recipes.loading import read_recipe
from hoarfrost.train.folder import RunFolder
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
    folder = RunFolder.existing(Path(run).expanduser()).path
    recipe = read_recipe(folder / "recipe.toml", root="/")
    loss = losses.build(recipe.loss)
    if recipe.data.text is not None:
        splits = sources.without_rows(recipe.data, schema.load_tokenizer(recipe.model))
    else:
        splits = sources.load(recipe.data, real_targets=loss.real_targets)
    model = networks.build(recipe.model, splits, losses.outputs(recipe.loss, loss, splits.classes), recipe.peft)
    weights = folder / "model.safetensors"
    if not weights.exists():
        raise InvalidValue(f"there is no model.safetensors in {shown_path(folder)}: has the run ended?")
    try:
        model.load_state_dict(load_file(weights))
    except (SafetensorError, OSError, RuntimeError) as error:
        raise InvalidValue(line(f"{shown_path(weights)} does not fit the recipe: {error}")) from error
    return model.eval()
