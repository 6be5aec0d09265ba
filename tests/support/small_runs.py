"""Small private runs that can be trained up to a step, saved and restored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import TensorDataset

import hoarfrost

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.95), amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
}
STEPS = 12


def new_run(kind: str = "momentum", seed: int = 5, **options: Any) -> Any:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    torch.manual_seed(6)
    data = TensorDataset(torch.randn(20, 4), torch.randint(3, (20,)))
    settings: dict[str, Any] = {
        "sample_rate": 1.0,
        "noise_multiplier": 8.0,
        "delta": 1e-5,
        "steps": STEPS,
        "accountant": "rdp",
    }
    if options.get("epsilon") is not None:
        del settings["noise_multiplier"]
    return hoarfrost.make_private(model, OPTIMIZERS[kind](model.parameters()), data, **(settings | options))


def train_until(private: Any, until: int, scheduler: LRScheduler | None = None) -> None:
    while private.steps_taken < until:
        for x, y in private.loader:
            private.optimizer.zero_grad()
            nn.functional.cross_entropy(private.model(x), y).backward()
            private.optimizer.step()
            if scheduler is not None:
                scheduler.step()
            if private.steps_taken == until:
                break


def weights(private: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for p in private.model.parameters()]


def equal_weights(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
