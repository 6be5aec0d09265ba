"""Networks that are built to fit the data: a recipe says how wide they are inside."""

import math
from itertools import pairwise

from torch import nn

from hoarfrost.errors import InvalidValue
from hoarfrost.models.mlp import mlp
from hoarfrost.registry import Channels, Widths, component


@component("model", "mlp")
def fitted_mlp(shape: tuple[int, ...], classes: int, hidden: Widths = (64,)) -> nn.Module:
    """A multilayer perceptron with ReLU; the data set decides its first and last width.

    Args:
        hidden: the widths of the hidden layers.

    >>> fitted_mlp((1, 8, 8), 10, hidden=(32,))[1]
    Linear(in_features=64, out_features=32, bias=True)
    """
    return nn.Sequential(nn.Flatten(), *mlp(math.prod(shape), *hidden, classes))


@component("model", "cnn")
def fitted_cnn(shape: tuple[int, ...], classes: int, channels: Channels = (16,)) -> nn.Module:
    """A 3x3 convolution, tanh and 2x2 pooling for each number of channels, then one linear layer.

    Args:
        channels: the number of output channels of each convolution.

    >>> fitted_cnn((1, 8, 8), 10)[-1]
    Linear(in_features=256, out_features=10, bias=True)
    """
    if len(shape) != 3:
        raise InvalidValue(f"the model cnn takes images [channels, height, width]; examples have shape {shape}")
    inputs, height, width = shape
    halvings = len(channels)
    height, width = height >> halvings, width >> halvings
    if min(height, width) == 0:
        raise InvalidValue(f"the model cnn halves images {halvings} times: too often for {shape[1]}x{shape[2]} pixels")
    layers: list[nn.Module] = []
    for before, after in pairwise((inputs, *channels)):
        layers += [nn.Conv2d(before, after, kernel_size=3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels[-1] * height * width, classes))
