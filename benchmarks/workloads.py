"""The networks and batches that every contender trains."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hoarfrost import models

LEARNING_RATE = 0.1
SEED = 0

WANTED_MEMORY = 1.6
"""The memory that a private step may add, in units of what a plain step adds."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A network and the one batch it is trained on, both the same for every contender."""

    title: str
    model: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor]
    """From a batch size to that many inputs."""
    classes: int
    batch_size: int
    wanted: float
    """The time that a private step may take, in units of a plain step."""
    per_example: Callable[[Tensor], tuple[Tensor, ...]] = lambda inputs: (inputs,)
    """The arguments of the model when each must have a row for every example, as Opacus demands."""
    steps: int = 1
    """How many a contender takes in a round. Above 1 where a step is short: what it costs is then the library's calls,
    not arithmetic, and contenders are also timed each in a process of its own."""
    threads: int | None = None
    """That it is timed with; None for one on each core. Where a step is short, threads wait for each other."""

    def build(self) -> nn.Module:
        torch.manual_seed(SEED)
        return self.model()

    def parameters(self) -> int:
        with torch.device("meta"):
            return sum(p.numel() for p in self.model().parameters())

    def batch(self) -> tuple[Tensor, Tensor]:
        torch.manual_seed(SEED + 1)
        return self.inputs(self.batch_size), torch.randint(self.classes, (self.batch_size,))


def _images(*shape: int) -> Callable[[int], Tensor]:
    return lambda examples: torch.randn(examples, *shape)


def _tokens(examples: int) -> Tensor:
    return torch.randint(30522, (examples, 64))


def _tokens_and_positions(tokens: Tensor) -> tuple[Tensor, Tensor]:
    return tokens, torch.arange(tokens.shape[1]).repeat(len(tokens), 1)


WORKLOADS = {
    "tanh": Workload(
        title="tanh CNN, 256 images of 3x32x32",
        model=models.tanh_cnn,
        inputs=_images(3, 32, 32),
        classes=10,
        batch_size=256,
        wanted=1.25,
    ),
    "mnist": Workload(
        title="MNIST CNN, 1024 images of 1x28x28",
        model=models.mnist_cnn,
        inputs=_images(1, 28, 28),
        classes=10,
        batch_size=1024,
        wanted=1.40,
    ),
    "resnet": Workload(
        title="ResNet-18 with GroupNorm, 64 images of 3x32x32",
        model=models.resnet18_groupnorm,
        inputs=_images(3, 32, 32),
        classes=10,
        batch_size=64,
        wanted=1.25,
    ),
    "encoder": Workload(
        title="22.7M encoder, 32 texts of 64 tokens",
        model=models.encoder,
        inputs=_tokens,
        classes=2,
        batch_size=32,
        wanted=1.35,
        per_example=_tokens_and_positions,
    ),
    "mlp": Workload(
        title="MLP 784-1024-1024-10, 1024 examples",
        model=lambda: models.mlp(784, 1024, 1024, 10),
        inputs=_images(784),
        classes=10,
        batch_size=1024,
        wanted=1.20,
    ),
    "tiny": Workload(
        title="MLP 30-32-2, 64 examples",
        model=lambda: models.mlp(30, 32, 2),
        inputs=_images(30),
        classes=2,
        batch_size=64,
        wanted=2.0,
        steps=100,
        threads=1,
    ),
}
