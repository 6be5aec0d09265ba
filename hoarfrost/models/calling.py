"""How a model is called, with one tensor or with several that have names, and what its outputs are."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def outputs_of(model: nn.Module, inputs: Any) -> Tensor:
    """The outputs of a model for a batch: what it returns, or the logits among it.

    >>> import torch
    >>> outputs_of(nn.Linear(2, 3), torch.ones(5, 2)).shape
    torch.Size([5, 3])
    """
    found = model(**inputs) if isinstance(inputs, Mapping) else model(inputs)
    outputs: Tensor = found if isinstance(found, Tensor) else found.logits
    return outputs
