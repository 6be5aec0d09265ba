"""A multilayer perceptron."""

from itertools import pairwise

from torch import nn


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them, ``widths`` from input to output: [B, first] -> [B, last].

    ``mlp(784, 1024, 1024, 10)`` has 1,863,690 parameters.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])  # logits are not rectified
