"""LeNet, with which pruning before private training was tried on small images."""

from torch import nn

from hoarfrost.registry import component


@component("model", "lenet", takes=(1, 28, 28))
def lenet(classes: int = 10) -> nn.Sequential:
    """Two 5x5 convolutions and three linear layers with ReLU: images [B, 1, 28, 28] -> logits [B, classes].

    44,426 parameters with 10 classes. After LeCun et al. (1998), with max pooling and without padding.
    """
    return nn.Sequential(
        nn.Conv2d(1, 6, kernel_size=5),  # 24x24
        nn.ReLU(),
        nn.MaxPool2d(2),  # 12x12
        nn.Conv2d(6, 16, kernel_size=5),  # 8x8
        nn.ReLU(),
        nn.MaxPool2d(2),  # 4x4
        nn.Flatten(),
        nn.Linear(256, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )
