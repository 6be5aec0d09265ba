"""A small network, a few examples, and a step: what the tests of freezing train."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hoarfrost
from hoarfrost import budget
from hoarfrost.freezing import Channels, Freezer, Live, RunInfo
from hoarfrost.masks import Mask
from hoarfrost.query import Query

N = 12
PLAN = {"sample_rate": 0.5, "steps": 4, "noise_multiplier": 3.0}


class Scripted(Freezer):
    """Says what it was told, step by step."""

    def __init__(self, script: Callable[[int], Live]) -> None:
        self.script = script

    def live(self, step: int, info: RunInfo) -> Live:
        return self.script(step)


def net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 6), nn.Tanh(), nn.Linear(6, 3))


def data() -> TensorDataset:
    torch.manual_seed(4)
    return TensorDataset(torch.randn(N, 1, 6, 6), torch.randint(3, (N,)))


def make(model: nn.Module, optimizer: Any = None, **options: Any) -> Any:
    given = {"sample_rate": 1.0, "noise_multiplier": 0.0, "delta": 1e-5, "clip": hoarfrost.clip.Local(0.5)} | options
    if "batch_size" in given:
        del given["sample_rate"]
    return hoarfrost.make_private(model, optimizer or torch.optim.SGD(model.parameters(), lr=0.5), data(), **given)


def step(private: Any) -> None:
    """One optimizer step, however many chunks it takes."""
    before = private.steps_taken
    while private.steps_taken == before:
        for x, y in private.loader:
            private.optimizer.zero_grad()
            F.cross_entropy(private.model(x), y).backward()
            private.optimizer.step()
            if private.steps_taken > before:
                break


def random_masks(model: nn.Module, seed: int) -> dict[str, Mask]:
    """Everything, nothing, channels or elements of each parameter, by chance."""
    generator = torch.Generator().manual_seed(seed)
    masks: dict[str, Mask] = {}
    for name, p in model.named_parameters():
        kind = int(torch.randint(4, (), generator=generator))
        if kind < 2:
            masks[name] = bool(kind)
        elif kind == 2:
            count = int(torch.randint(1, len(p) + 1, (), generator=generator))
            masks[name] = Channels(torch.randperm(len(p), generator=generator)[:count].sort().values)
        else:
            masks[name] = torch.rand(p.shape, generator=generator) < 0.5
    masks["5.bias"] = True  # something moves
    return masks


def ledger(folder: Path, epsilon: float | None = None) -> budget.Ledger:
    return budget.Ledger.create(folder / "ledger.jsonl", epsilon=epsilon, delta=1e-5)


class Selecting(Freezer):
    """Looks at the data once, with noise, and freezes the first parameter whatever it found."""

    def __init__(self, event: budget.Gaussian | None = None, step: int = 0) -> None:
        self.event, self.step = event or budget.Gaussian(noise_multiplier=2.0), step
        self.found: Tensor | None = None

    def __repr__(self) -> str:
        return "Selecting()"

    def fresh(self) -> Freezer:
        return copy.copy(self)

    def releases(self, info: RunInfo) -> tuple[budget.PlannedRelease, ...]:
        return (budget.PlannedRelease(event=self.event, what="a selection", step=self.step),)

    def prepare(self, number: int, query: Query, info: RunInfo) -> None:
        self.found = query.sum(lambda model, batch: batch[0].flatten()[:3], size=3, bound=0.5)

    def live(self, step: int, info: RunInfo) -> Live:
        assert (self.found is not None) == (step >= self.step), "it was not asked to look in time"
        return {name: name != next(iter(info.shapes)) for name in info.shapes}

    def state(self) -> dict[str, Tensor]:
        return {} if self.found is None else {"found": self.found}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.found = state.get("found")
