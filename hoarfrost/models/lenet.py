"""LeNet, for grey images of 28x28 pixels and for colour images of 32x32."""

from torch import nn

from hoarfrost.registry import component


@component("model", "lenet", takes=(1, 28, 28))
def lenet(classes: int = 10) -> nn.Sequential:
    """Two 5x5 convolutions and three linear layers with ReLU: images [B, 1, 28, 28] -> logits [B, classes].

    44,426 parameters with 10 classes. After LeCun et al. (1998), with max pooling and without padding.
    """
    return _lenet(channels=1, features=256, classes=classes)


@component("model", "lenet_rgb", takes=(3, 32, 32))
def lenet_rgb(classes: int = 10) -> nn.Sequential:
    """LeNet for colour images [B, 3, 32, 32] -> logits [B, classes]: the network of PyTorch's CIFAR-10 tutorial.

    62,006 parameters with 10 classes.

    >>> sum(p.numel() for p in lenet_rgb().parameters())
    62006
    """
    return _lenet(channels=3, features=400, classes=classes)


def _lenet(channels: int, features: int, classes: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, 6, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(features, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )
