"""Every optimizer that torch has, ready for a small model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "heavy ball": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
    "Nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
}
# All the others that torch has, those of later versions too. Muon is for matrices alone.
REFUSED_OPTIMIZERS = {"LBFGS", "SparseAdam"}
OPTIMIZERS |= {
    name: kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and name not in {*OPTIMIZERS, *REFUSED_OPTIMIZERS, "Optimizer", "Muon"}
}
