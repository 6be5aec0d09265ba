"""The plainest loop, and collate functions that many programs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from tests.programs.running import MakePrivate


def fit(
    model: nn.Module,
    data: Any,
    make_private: MakePrivate,
    loss: Callable[..., Tensor] = F.cross_entropy,
    **options: Any,
) -> Any:
    """One epoch as in PyTorch's own tutorial; what `make_private` returned."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    private = make_private(model, optimizer, data, batch_size=4, **options)
    model, optimizer, loader = private
    for x, y in loader:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    return private


def padded(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Texts of any length, padded with 0 to the longest of the batch."""
    return pad_sequence([words for words, _ in rows], batch_first=True), torch.stack([y for _, y in rows])


def two_layers(inputs: int = 6, outputs: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))


EPOCHS = 3


def epochs(model: nn.Module, private: Any, after_step: Any = None, after_epoch: Any = None) -> None:
    """Some epochs, with something done after every step or epoch."""
    model, optimizer, loader = private
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if after_step is not None:
                after_step()
        if after_epoch is not None:
            after_epoch()
