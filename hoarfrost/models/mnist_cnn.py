"""The small convolutional network with which private training on MNIST and Fashion-MNIST is compared."""

from collections.abc import Callable
from typing import Literal

from torch import nn

from hoarfrost.models.tempered import TemperedSigmoid
from hoarfrost.registry import component


def mnist_cnn(classes: int = 10, activation: Callable[[], nn.Module] = nn.Tanh) -> nn.Sequential:
    """Two convolutions and two linear layers: images [B, 1, 28, 28] -> logits [B, classes].

    26,010 parameters with 10 classes. The network of the MNIST tutorials of libraries for private training, which have
    ReLU, and of Papernot et al., "Tempered Sigmoid Activations for Deep Learning with Differential Privacy" (2020), who
    have tanh or `TemperedSigmoid`; padding 3 is "same" for an 8x8 kernel with stride 2 on 28 pixels.
    """
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=8, stride=2, padding=3),  # 14x14
        activation(),
        nn.MaxPool2d(2, stride=1),  # 13x13
        nn.Conv2d(16, 32, kernel_size=4, stride=2),  # 5x5
        activation(),
        nn.MaxPool2d(2, stride=1),  # 4x4
        nn.Flatten(),
        nn.Linear(512, 32),
        activation(),
        nn.Linear(32, classes),
    )


@component("model", "mnist_cnn", takes=(1, 28, 28))
def named_mnist_cnn(classes: int, activation: Literal["tanh", "tempered_sigmoid", "relu"] = "tanh") -> nn.Module:
    """The network for MNIST of Papernot et al. (2020).

    Args:
        activation: the activation function. The tempered sigmoid is that of the same paper; ReLU is that of the usual
            tutorials.

    >>> named_mnist_cnn(10, "tempered_sigmoid")[1]
    TemperedSigmoid(1.58, 3.0, 0.71)
    """
    return mnist_cnn(classes, {"tanh": nn.Tanh, "tempered_sigmoid": TemperedSigmoid, "relu": nn.ReLU}[activation])
