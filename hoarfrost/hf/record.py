"""The training loss, for those who may see the data: it goes where nothing is private, and nowhere else."""

from __future__ import annotations

import json
import math
from pathlib import Path

from torch import Tensor

from hoarfrost.train.folder import NOT_PRIVATE


class TrainingRecord:
    """Lines of JSON in ``not-private/training.jsonl``: the mean loss of the examples since the line before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "not-private"
        self._sum, self._examples = 0.0, 0

    def add(self, losses: Tensor) -> None:
        """Counts the losses of some examples."""
        self._sum += float(losses.detach().sum())
        self._examples += len(losses)

    def write(self, step: int) -> None:
        """Adds a line."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "README.txt").write_text(NOT_PRIVATE, "utf-8")
        mean = self._sum / self._examples if self._examples else math.nan
        line = {"step": step, "loss": mean if math.isfinite(mean) else None, "examples": self._examples}
        with open(self.folder / "training.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._sum, self._examples = 0.0, 0
