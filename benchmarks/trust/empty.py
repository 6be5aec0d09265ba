"""Poisson batches that are empty: is noise released for each of them, and is each of them counted?"""

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import hoarfrost
from hoarfrost.budget import Ledger

COUNT = 1000
RATE = 1e-9  # of one record: not one batch in a million runs of a thousand steps has an example


def measure(count: int = COUNT) -> dict[str, Any]:
    model = nn.Linear(8, 4)
    data = TensorDataset(torch.ones(1, 8), torch.zeros(1, dtype=torch.long))
    # The noisy sum is divided by the expected batch, 1e-9: this learning rate undoes it.
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    empty = noised = 0
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(Path(folder) / "ledger.jsonl", epsilon=None, delta=1e-5)
        private = hoarfrost.make_private(
            model, optimizer, data, sample_rate=RATE, steps=count, noise_multiplier=1.0, delta=1e-5, ledger=ledger
        )
        for x, y in private.loader:
            before = [p.detach().clone() for p in model.parameters()]
            private.optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            private.optimizer.step()
            empty += len(x) == 0
            noised += all(bool((a != b).any()) for a, b in zip(before, model.parameters(), strict=True))
        (entry,) = Ledger(ledger.path).entries
    return {"steps": count, "empty": empty, "noised": noised, "reserved": entry.reserved, "committed": entry.committed}


def summary(figures: dict[str, Any]) -> str:
    return (
        f"{figures['empty']} empty batches of {figures['steps']}: {figures['noised']} noised, {figures['reserved']} "
        "counted in the ledger"
    )
