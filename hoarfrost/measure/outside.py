"""A run's gradients outside of its steps: plain autograd on a copy of the model. Not private."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from hoarfrost import validate
from hoarfrost.errors import InvalidValue
from hoarfrost.kept import random_states_held
from hoarfrost.nested import map_tensors

Losses = Callable[[nn.Module, Any], Tensor]
"""From the model and a batch to one loss for each example, [examples]."""


class Outside:
    """Gradients that no step sees: the true gradient over all data, and those of single examples.

    They are computed by plain autograd on a copy of the model, in pieces, so that nothing of them can enter a step.
    The copy follows the model's weights whenever it is used. Random numbers of the run stay the same.

    Args:
        model: that is trained.
        data: a map-style data set: all of what is trained on, as it is without augmentation.
        losses: from the model and a batch to one loss for each example.
        batch: how many examples are computed at once.
        collate: from a list of examples to a batch; by default torch's.

    >>> data = torch.utils.data.TensorDataset(torch.tensor([[1.0], [3.0]]))
    >>> model = nn.Linear(1, 1, bias=False)
    >>> outside = Outside(model, data, lambda model, batch: model(batch[0]).squeeze(1))
    >>> outside.gradient(["weight"])["weight"].item()
    2.0
    """

    def __init__(
        self,
        model: nn.Module,
        data: Dataset[Any],
        losses: Losses,
        *,
        batch: int = 256,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        validate.whole(batch=batch)
        self.model, self.data, self.losses, self.batch, self.collate = model, data, losses, batch, collate
        self._copy: nn.Module | None = None

    def __len__(self) -> int:
        return len(self.data)  # type: ignore[arg-type]

    def gradient(self, parameters: Collection[str]) -> dict[str, Tensor]:
        """The true gradient ∇f: the mean of the examples' gradients over all data, by parameter name.

        It costs a forward and backward pass over all data. A parameter that the loss does not reach has zeros.
        """
        if not len(self):
            raise InvalidValue("there is no true gradient over a data set without examples")
        with self._differentiable(parameters) as (model, live):
            totals = {name: torch.zeros_like(p, dtype=_wide(p)) for name, p in live.items()}
            for batch in self._batches(self.data, self.batch):
                for name, found in self._gradients(model, live, batch).items():
                    totals[name] += found
        return {name: total / len(self) for name, total in totals.items()}

    def each(self, parameters: Collection[str], examples: Sequence[int]) -> Iterator[dict[str, Tensor]]:
        """The gradient of each of the ``examples`` (by their numbers), over all coordinates, frozen or not."""
        with self._differentiable(parameters) as (model, live):
            for batch in self._batches(Subset(self.data, examples), 1):
                yield self._gradients(model, live, batch)

    def some(self, number: int) -> list[int]:
        """Numbers of so many examples, spread evenly over the data set; all if there are no more."""
        size, number = len(self), min(number, len(self))
        return [i * size // number for i in range(number)]

    def _batches(self, data: Dataset[Any], size: int) -> Iterator[Any]:
        device = next(self.model.parameters()).device
        for batch in DataLoader(data, batch_size=size, collate_fn=self.collate):
            yield map_tensors(lambda t: t.to(device), batch)

    def _gradients(self, model: nn.Module, live: dict[str, nn.Parameter], batch: Any) -> dict[str, Tensor]:
        losses = self.losses(model, batch)
        if losses.dim() != 1:
            raise InvalidValue("losses(model, batch) must give one loss for each example, a tensor [examples]")
        found = torch.autograd.grad(losses.sum(), list(live.values()), allow_unused=True)
        return {name: t for name, t in zip(live, found, strict=True) if t is not None}

    @contextmanager
    def _differentiable(self, parameters: Collection[str]) -> Iterator[tuple[nn.Module, dict[str, nn.Parameter]]]:
        """The copy with the model's weights, of which these parameters can be differentiated."""
        device = next(self.model.parameters()).device
        with random_states_held([device] if device.type == "cuda" else []), torch.enable_grad():
            if self._copy is None:
                self._copy = copy.deepcopy(self.model)  # a copy computes plain gradients
                for p in self._copy.parameters():
                    p.grad = None
            model = self._copy.train(self.model.training)
            with torch.no_grad():
                for mine, other in zip(_tensors(model), _tensors(self.model), strict=True):
                    mine.copy_(other)
            known = dict(model.named_parameters())
            for name, p in known.items():
                p.requires_grad_(name in parameters)
            yield model, {name: known[name] for name in parameters}


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _wide(p: Tensor) -> torch.dtype:
    return torch.promote_types(p.dtype, torch.float32)
