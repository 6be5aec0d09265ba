"""ResNet-18 for small images, with GroupNorm where the original has BatchNorm."""

from torch import Tensor, nn
from torch.nn import functional as F

from hoarfrost.registry import component

GROUPS = 32


def _conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)


class _Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut: [B, inputs, H, W] -> [B, outputs, H/stride, W/stride]."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(inputs, outputs, stride)
        self.norm1 = nn.GroupNorm(groups, outputs)
        self.conv2 = _conv3x3(outputs, outputs)
        self.norm2 = nn.GroupNorm(groups, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False),
                nn.GroupNorm(groups, outputs),
            )

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(hidden)) + self.shortcut(x))


class ResNet(nn.Module):
    """Four stages of two blocks, 64 to 512 channels: images [B, 3, 32, 32] -> logits [B, classes].

    Args:
        width: the channels of the first stage, a multiple of 4; a narrower network has as many channels in a group.

    >>> sum(p.numel() for p in ResNet(10, width=16).parameters())
    701466
    """

    def __init__(self, classes: int, width: int = 64) -> None:
        super().__init__()
        # The stem for 32x32 images: stride 1 and no pooling, or little would be left of them.
        groups = max(1, GROUPS * width // 64)
        self.conv = _conv3x3(3, width)
        self.norm = nn.GroupNorm(groups, width)
        stages = [(width, width, 1), *((width * n, width * 2 * n, 2) for n in (1, 2, 4))]
        self.blocks = nn.Sequential(
            *(
                block
                for inputs, outputs, stride in stages
                for block in (_Block(inputs, outputs, stride, groups), _Block(outputs, outputs, 1, groups))
            )
        )
        self.head = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.blocks(F.relu(self.norm(self.conv(x))))
        logits: Tensor = self.head(features.mean(dim=(2, 3)))
        return logits


@component("model", "resnet18_groupnorm", takes=(3, 32, 32))
def resnet18_groupnorm(classes: int = 10) -> ResNet:
    """ResNet-18 (He et al., 2016) for 32x32 images, GroupNorm(32). 11,173,962 parameters with 10 classes."""
    return ResNet(classes)
