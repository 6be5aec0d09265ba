"""How a model is called, with one tensor or with several that have names, and what its outputs are."""

from typing import Any

from torch import Tensor, nn

from hoarfrost.calls import call


def outputs_of(model: nn.Module, inputs: Any) -> Tensor:
    """The outputs of a model for a batch: what it returns, or the logits among it.

    >>> import torch
    >>> outputs_of(nn.Linear(2, 3), torch.ones(5, 2)).shape
    torch.Size([5, 3])
    """
    found = call(model, inputs)
    outputs: Tensor = found if isinstance(found, Tensor) else found.logits
    return outputs
