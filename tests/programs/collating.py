"""Collate functions, right and wrong ones, and a loop whose loss `make_private` is told of."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate

from tests.programs.running import MakePrivate


def loss(output: Tensor, batch: Any) -> Tensor:
    return F.cross_entropy(output, batch[1])


def told_of_the_loss(model: nn.Module, rows: Any, collate: Any, make_private: MakePrivate, **options: Any) -> None:
    """The plainest loop, with a collate function of one's own."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = DataLoader(rows, batch_size=4, collate_fn=collate)
    model, optimizer, loader = make_private(model, optimizer, data, loss=loss, **options)
    for x, y in loader:
        optimizer.zero_grad()
        loss(model(x), (x, y)).backward()
        optimizer.step()


class Words(nn.Module):
    """The mean of a text's words; with ``masked=False``, of its padding, too."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.words, self.head, self.masked = nn.Embedding(11, 6), nn.Linear(6, 3), masked

    def forward(self, words: Tensor) -> Tensor:
        there = (words != 0).float().unsqueeze(2) if self.masked else torch.ones(*words.shape, 1)
        return self.head((self.words(words) * there).sum(1) / there.sum(1))


def unreadable(row: Any) -> bool:
    """Whether an example is broken, as some files of every collection are."""
    return not bool(row[0].isfinite().all()) or float(row[0].abs().max()) > 2.0


def readable(rows: list[Any]) -> Any:
    """Those that can be read, as many a collate function has it."""
    return default_collate([row for row in rows if not unreadable(row)])
