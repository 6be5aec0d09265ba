"""The loss of a model at other weights than its own: what every picture of a loss landscape is made of."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hoarfrost.errors import InvalidValue
from hoarfrost.models import outputs_of
from hoarfrost.nested import map_tensors

Weights = Mapping[str, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
Batches = Iterable[tuple[Any, Tensor]]


class LossAt:
    """The mean loss over some examples, as a function of the parameters; the model itself is not touched.

    Args:
        model: says the architecture, and which buffers there are: they stay the model's own. It is copied.
        batches: pairs of inputs and targets, which can be gone through again and again: a list, or a DataLoader.
        loss: of outputs and targets, a mean over examples. An error rate is one too.

    >>> model, batch = nn.Linear(2, 2), (torch.ones(3, 2), torch.tensor([0, 1, 1]))
    >>> at = LossAt(model, [batch])
    >>> round(at({name: torch.zeros_like(p) for name, p in at.weights.items()}), 4)
    0.6931

    Guarantees:
        None: the loss of private examples is computed without noise. The model that is handed over does not change.
    """

    def __init__(self, model: nn.Module, batches: Batches, loss: Loss = F.cross_entropy) -> None:
        if isinstance(batches, Iterator):
            raise InvalidValue("batches can be gone through only once: give a list of them, or a DataLoader")
        self._model, self._batches, self._loss = copy.deepcopy(model).eval(), batches, loss
        self.weights: dict[str, Tensor] = {name: p.detach().clone() for name, p in self._model.named_parameters()}
        if not self.weights:
            raise InvalidValue("the model has no parameters that could be moved")
        self.device = next(iter(self.weights.values())).device

    @torch.no_grad()
    def __call__(self, weights: Weights) -> float:
        """The mean loss with these values of the parameters, by name; NaN or infinite where the model overflows."""
        for name, p in self._model.named_parameters():
            p.copy_(weights[name])
        total, count = torch.zeros((), dtype=torch.float64, device=self.device), 0
        for x, y in self._batches:
            if len(y) == 0:
                continue  # which has no mean
            inputs, targets = map_tensors(lambda t: t.to(self.device), (x, y))
            total += self._loss(outputs_of(self._model, inputs), targets).double() * len(y)
            count += len(y)
        if count == 0:
            raise InvalidValue("there are no examples to compute a loss of: every batch is empty")
        return total.item() / count


def alike(first: Weights, second: nn.Module | Weights) -> dict[str, Tensor]:
    """The parameters of ``second``, a model or its state dict, that are called as those of ``first`` and shaped alike.

    >>> alike({"weight": torch.zeros(2, 3)}, nn.Linear(2, 3))
    Traceback (most recent call last):
        ...
    hoarfrost.errors.InvalidValue: the models have different shapes: weight is [2, 3] in the first and [3, 2] in ...
    """
    state = second.state_dict() if isinstance(second, nn.Module) else second
    for name, weight in first.items():
        if name not in state:
            raise InvalidValue(f"the models have different shapes: the second has no parameter {name}")
        if state[name].shape != weight.shape:
            raise InvalidValue(
                f"the models have different shapes: {name} is {list(weight.shape)} in the first and "
                f"{list(state[name].shape)} in the second. Compare models of one architecture"
            )
    if isinstance(second, nn.Module):
        more = [name for name, _ in second.named_parameters() if name not in first]
        if more:
            raise InvalidValue(f"the models have different shapes: the first has no parameter {more[0]}")
    return {name: state[name].detach().to(weight) for name, weight in first.items()}


def distance(first: Weights, second: Weights) -> float:
    """The Euclidean distance between two points in the space of parameters.

    >>> distance({"a": torch.zeros(2)}, {"a": torch.tensor([3.0, 4.0])})
    5.0
    """
    return math.hypot(*(torch.linalg.vector_norm((second[n] - first[n]).double()).item() for n in first))
