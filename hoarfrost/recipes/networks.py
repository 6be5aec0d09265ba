"""A recipe's model, built to fit the data set."""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from hoarfrost import models
from hoarfrost.data import Splits
from hoarfrost.errors import InvalidValue
from hoarfrost.recipes import schema
from hoarfrost.untrusted import free_memory, line

MOST_PARAMETERS = 1_000_000_000


def build(wanted: schema.Model, splits: Splits) -> nn.Module:
    """The network, tried on one example: what does not fit is refused here, not in the first step.

    >>> from hoarfrost.data import digits
    >>> sum(p.numel() for p in build(schema.Mlp(name="mlp", hidden=(32,)), digits()).parameters())
    2410
    """
    make, of = BUILDERS[type(wanted)], (wanted, splits.shape, splits.classes)
    with torch.device("meta"):  # which takes no memory
        outline = make(*of)
    _check_ids(outline, splits)
    parameters = sum(p.numel() for p in outline.parameters())
    if parameters > MOST_PARAMETERS:
        raise InvalidValue(
            f"the model {wanted.name} would have more than {MOST_PARAMETERS:,} parameters; make it smaller"
        )
    if 4 * parameters > free_memory():
        raise InvalidValue(f"the model {wanted.name} with {parameters:,} parameters takes more memory than is free")
    network = make(*of)
    # Of zeros, so that an error has no data to tell of.
    example = torch.zeros_like(splits.test.tensors[0][:1])
    try:
        with torch.no_grad():
            logits: Tensor = network(example)
    except (RuntimeError, IndexError, ValueError) as error:
        raise InvalidValue(
            line(
                f"the model {wanted.name} cannot run on examples of shape {splits.shape} and type {example.dtype}: "
                f"{error}"
            )
        ) from error
    if logits.shape != (1, splits.classes):
        raise InvalidValue(
            f"the model {wanted.name} gives {tuple(logits.shape[1:])} outputs for an example of shape {splits.shape}, "
            f"but there are {splits.classes} classes"
        )
    return network


def _check_ids(network: nn.Module, splits: Splits) -> None:
    """Every token id is one that the model has an embedding for."""
    if not isinstance(network, models.Encoder):
        return
    last = network.token_embedding.num_embeddings - 1
    for name, ids in (("x_train", splits.train.tensors[0]), ("x_test", splits.test.tensors[0])):
        if not ids.is_floating_point() and (int(ids.min()) < 0 or int(ids.max()) > last):
            raise InvalidValue(f"{name} holds a token id outside of the model's vocabulary, which is 0 to {last}")


def _mlp(wanted: schema.Mlp, shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *models.mlp(math.prod(shape), *wanted.hidden, classes))


def _cnn(wanted: schema.Cnn, shape: tuple[int, ...], classes: int) -> nn.Module:
    if len(shape) != 3:
        raise InvalidValue(f"the model cnn takes images [channels, height, width]; examples have shape {shape}")
    inputs, height, width = shape
    halvings = len(wanted.channels)
    height, width = height >> halvings, width >> halvings
    if min(height, width) == 0:
        raise InvalidValue(f"the model cnn halves images {halvings} times: too often for {shape[1]}x{shape[2]} pixels")
    layers: list[nn.Module] = []
    for before, after in pairwise((inputs, *wanted.channels)):
        layers += [nn.Conv2d(before, after, kernel_size=3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(wanted.channels[-1] * height * width, classes))


def _fixed(build: Callable[[int], nn.Module], *takes: int) -> Callable[..., nn.Module]:
    """A network whose paper fixes everything but the number of classes."""

    def checked(wanted: schema.Model, shape: tuple[int, ...], classes: int) -> nn.Module:
        if takes and shape != takes:
            raise InvalidValue(f"the model {wanted.name} takes examples of shape {takes}, this data set has {shape}")
        return build(classes)

    return checked


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"tanh": nn.Tanh, "tempered_sigmoid": models.TemperedSigmoid}


def _mnist_cnn(wanted: schema.MnistCnn, shape: tuple[int, ...], classes: int) -> nn.Module:
    build = partial(models.mnist_cnn, activation=ACTIVATIONS[wanted.activation])
    return _fixed(build, 1, 28, 28)(wanted, shape, classes)


BUILDERS: dict[type[schema.Table], Callable[[Any, tuple[int, ...], int], nn.Module]] = {
    schema.Mlp: _mlp,
    schema.Cnn: _cnn,
    schema.TanhCnn: _fixed(models.tanh_cnn, 3, 32, 32),
    schema.MnistCnn: _mnist_cnn,
    schema.LeNet: _fixed(models.lenet, 1, 28, 28),
    schema.ResNet18: _fixed(models.resnet18_groupnorm, 3, 32, 32),
    schema.Encoder: _fixed(models.encoder),
}
