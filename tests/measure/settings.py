"""Logits and labels for which the library must equal the slow versions: a new case is a new row."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Case = tuple[Tensor, Tensor]


def drawn(examples: int, classes: int, scale: float = 2.0, dtype: torch.dtype = torch.float32, seed: int = 0) -> Case:
    """Random logits, and labels that they make likely."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(examples, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(dim=1), 1, generator=generator).squeeze(1)
    return logits.to(dtype), labels


def sure(examples: int, classes: int, right: bool) -> Case:
    """Logits so far apart that the confidence is exactly 1; all right, or all wrong."""
    labels = torch.arange(examples) % classes
    said = labels if right else (labels + 1) % classes
    return 1000.0 * torch.nn.functional.one_hot(said, classes).double(), labels


def mixed_ties() -> Case:
    """Confidences of exactly 1, 1/2, 1/3 and 1/4, many times each."""
    rows = [[900.0, 0, 0, 0], [5.0, 5, -800, -800], [-800.0, 1, 1, 1], [3.0, 3, 3, 3]]
    return torch.tensor(rows * 9), torch.arange(36) % 4


CASES: dict[str, Callable[[], Case]] = {
    "two classes": lambda: drawn(101, 2),
    "three classes": lambda: drawn(997, 3),
    "five classes": lambda: drawn(64, 5, scale=0.3),
    "seven classes": lambda: drawn(333, 7, scale=5.0),
    "one example": lambda: drawn(1, 3),
    "one example, wrong": lambda: (torch.tensor([[3.0, 0.0, -1.0]]), torch.tensor([2])),
    "two examples": lambda: drawn(2, 4),
    "fewer than bins": lambda: drawn(11, 3),
    "all equal": lambda: (torch.zeros(10, 5), torch.arange(10) % 5),
    "ties at edges": mixed_ties,
    "perfect": lambda: sure(23, 4, right=True),
    "all wrong": lambda: sure(23, 4, right=False),
    "wrong, less sure": lambda: (drawn(50, 3)[0], (drawn(50, 3)[0].argmax(dim=1) + 1) % 3),
    "float16": lambda: drawn(200, 4, dtype=torch.float16),
    "bfloat16": lambda: drawn(200, 4, dtype=torch.bfloat16),
    "float64": lambda: drawn(200, 6, dtype=torch.float64),
    "huge logits": lambda: drawn(40, 3, scale=1e4, dtype=torch.float64),
    "tiny logits": lambda: drawn(40, 3, scale=1e-9, dtype=torch.float64),
    "int32 labels": lambda: (drawn(40, 3)[0], drawn(40, 3)[1].int()),
    "with a gradient": lambda: (drawn(40, 3)[0].requires_grad_(), drawn(40, 3)[1]),
    "not contiguous": lambda: (drawn(5, 40)[0].T, torch.arange(40) % 5),
}
