"""The convolutional network with which private training on CIFAR-10 is compared."""

from itertools import pairwise

from torch import nn

from hoarfrost.registry import component


@component("model", "tanh_cnn", takes=(3, 32, 32))
def tanh_cnn(classes: int = 10) -> nn.Sequential:
    """Three blocks of two 3x3 convolutions, tanh throughout: images [B, 3, 32, 32] -> logits [B, classes].

    550,570 parameters with 10 classes. From Papernot et al., "Tempered Sigmoid Activations for Deep Learning
    with Differential Privacy" (2020).
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise((3, 32, 64, 128)):
        layers += [
            nn.Conv2d(inputs, outputs, kernel_size=3, padding=1),
            nn.Tanh(),
            nn.Conv2d(outputs, outputs, kernel_size=3, padding=1),
            nn.Tanh(),
            nn.MaxPool2d(2),
        ]
    layers += [nn.Flatten(), nn.Linear(128 * 4 * 4, 128), nn.Tanh(), nn.Linear(128, classes)]
    return nn.Sequential(*layers)
