"""A recipe's model, built to fit the data set."""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from hoarfrost.data import Splits, Texts
from hoarfrost.errors import InvalidValue
from hoarfrost.models import Standardize, outputs_of
from hoarfrost.recipes import adapters, schema
from hoarfrost.untrusted import free_memory, line

MOST_PARAMETERS = 1_000_000_000


def build(
    wanted: schema.ComponentTable,
    splits: Splits,
    outputs: int | None = None,
    peft: schema.ComponentTable | None = None,
) -> nn.Module:
    """The network, tried on one example: what does not fit is refused here, not in the first step.

    Args:
        peft: the adapters that are put into it.
        outputs: how many it has, as the loss needs them; by default one for each class, or one for a real number.

    >>> from hoarfrost.data import digits
    >>> sum(p.numel() for p in build(schema.table("model", "mlp")(hidden=(32,)), digits()).parameters())
    2410
    """
    outputs = splits.outputs if outputs is None else outputs
    name, takes = wanted._component.kind, wanted._component.takes
    if takes is not None and splits.shape != takes:
        raise InvalidValue(f"the model {name} takes examples of shape {takes}, this data set has {splits.shape}")
    with torch.device("meta"):  # which takes no memory
        outline = _network(wanted, splits, outputs, None)
    _check_ids(outline, splits)
    parameters = sum(p.numel() for p in outline.parameters())
    if parameters > MOST_PARAMETERS:
        raise InvalidValue(f"the model {name} would have more than {MOST_PARAMETERS:,} parameters; make it smaller")
    if 4 * parameters > free_memory():
        raise InvalidValue(f"the model {name} with {parameters:,} parameters takes more memory than is free")
    network = _network(wanted, splits, outputs, peft)
    if splits.standardize:
        network = nn.Sequential(OrderedDict(scaling=Standardize(splits.standardize, *splits.shape), network=network))
    # Of zeros, so that an error has no data to tell of.
    example = splits.blank()
    try:
        with torch.no_grad():
            given = outputs_of(network, example)
    except (RuntimeError, IndexError, ValueError) as error:
        raise InvalidValue(
            line(f"the model {name} cannot run on examples of shape {splits.shape} and type {_type(example)}: {error}")
        ) from error
    if given.shape != (1, outputs):
        raise InvalidValue(
            f"the model {name} gives {tuple(given.shape[1:])} outputs for an example of shape {splits.shape}, "
            f"but {outputs} are needed" + (f": there are {outputs} classes" if outputs == splits.classes else "")
        )
    return network


def _network(
    wanted: schema.ComponentTable, splits: Splits, outputs: int, peft: schema.ComponentTable | None
) -> nn.Module:
    network: nn.Module = schema.build(
        wanted, "model", shape=splits.shape, classes=outputs, adapters=adapters.build(peft)
    )
    return network


def _type(example: Tensor | dict[str, Tensor]) -> str:
    return str(example.dtype) if isinstance(example, Tensor) else "token ids"


def _check_ids(network: nn.Module, splits: Splits) -> None:
    """Every token id is one that the model has an embedding for, if it says how many there are."""
    vocabulary = getattr(network, "vocabulary", None)
    if not isinstance(vocabulary, int) or isinstance(splits.train, Texts) or isinstance(splits.test, Texts):
        return
    last = vocabulary - 1
    for name, ids in (("x_train", splits.train.tensors[0]), ("x_test", splits.test.tensors[0])):
        if not ids.is_floating_point() and (int(ids.min()) < 0 or int(ids.max()) > last):
            raise InvalidValue(f"{name} holds a token id outside of the model's vocabulary, which is 0 to {last}")
