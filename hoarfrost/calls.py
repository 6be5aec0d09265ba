"""How a model is called with a batch where nobody says how, and the loss that some models return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def call(model: nn.Module, batch: Any) -> Any:
    """The model's output: a mapping are keyword arguments; of a tuple or a list the first entry is handed over.

    >>> import torch
    >>> call(nn.Flatten(), [torch.zeros(2, 3, 4), torch.zeros(2)]).shape
    torch.Size([2, 12])
    """
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(batch[0] if isinstance(batch, tuple | list) else batch)


def own_loss(output: Any) -> Tensor | None:
    """The loss that a model returns: alone, as `.loss`, under "loss", or before everything else.

    >>> import torch
    >>> own_loss({"loss": torch.tensor(0.5), "logits": torch.zeros(2, 3)})
    tensor(0.5000)
    """
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if found is None:
        found = output[0] if isinstance(output, tuple | list) and output else output
    return found if isinstance(found, Tensor) and found.dim() == 0 else None
