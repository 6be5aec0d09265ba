"""What the programs in this folder train, and on what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hoarfrost

N = 60


def small() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def data(n: int = N) -> TensorDataset:
    torch.manual_seed(6)
    return TensorDataset(torch.randn(n, 4), torch.randint(3, (n,)))


def private(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None, dataset: Any = None, **options: Any
) -> hoarfrost.Private:
    """A run with every example in every batch, without noise, unless ``options`` say otherwise."""
    settings: dict[str, Any] = {"noise_multiplier": 0.0, "delta": 1e-5, "clip": 1.0}
    if not isinstance(dataset, DataLoader) and "batch_size" not in options:
        settings["sample_rate"] = 1.0
    return hoarfrost.make_private(
        model, optimizer or torch.optim.SGD(model.parameters(), lr=0.1), data() if dataset is None else dataset,
        **(settings | options),
    )  # fmt: skip


def train(run: hoarfrost.Private, loss: Callable[..., Tensor] = F.cross_entropy) -> None:
    """One epoch."""
    model, optimizer, loader = run
    for x, y in loader:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def trained(model: nn.Module, **options: Any) -> list[Tensor]:
    """The weights after one private epoch."""
    train(private(model, **options))
    return weights(model)


def assert_same(got: list[Tensor], want: list[Tensor]) -> None:
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
