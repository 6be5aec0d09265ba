"""The one way to private data for a freezer: noisy sums that are charged for before anything is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hoarfrost import validate
from hoarfrost.budget import Gaussian
from hoarfrost.clipping import Clipping, Local
from hoarfrost.clipping.base import GONE
from hoarfrost.errors import BudgetSpent, InvalidValue
from hoarfrost.noise import Noise
from hoarfrost.sampling import Poisson, PoissonLoader

Compute = Callable[[nn.Module, Any], Tensor]
"""From the model and a batch of one example to that example's numbers, [k]."""


class Query:
    """Noisy sums over Poisson batches, as many as the release allows. A freezer's `prepare` is handed one.

    Args:
        event: the release, which was charged for already: how noisy, at which sampling rate, how many sums.
        model: what ``compute`` is handed.
        loader: of the run: its data set and its collate function.
        noise: of the run.
        paused: while it is entered, the model runs without gradient rules.

    Guarantees:
        What `sum` returns is one of ``event.steps`` Gaussian releases with the event's noise multiplier and sampling
        rate, and nothing else leaves: every example's numbers are computed from that example alone, clipped to the
        bound, summed and noised. Where the unit is a person, people are drawn, and the mean over a person's rows (at
        most as many as in a step) is clipped. The model's weights, buffers and gradients are as before.
    """

    def __init__(
        self,
        event: Gaussian,
        model: nn.Module,
        loader: PoissonLoader,
        noise: Noise,
        paused: Callable[[], Any],
    ) -> None:
        self.event = event
        self._model, self._loader, self._noise, self._paused = model, loader, noise, paused
        self._poisson = Poisson(sample_rate=event.sample_rate, size=loader.poisson.size)
        self._left = event.steps

    @property
    def expected_batch(self) -> float:
        """How many examples, or people, a sum is expected to be over: a public constant."""
        return self._poisson.expected_batch

    def sum(self, compute: Compute, *, size: int, bound: float) -> Tensor:
        """The noisy sum of every example's numbers over one Poisson batch, [size], float32.

        Args:
            compute: from the model and a batch of one example (as the collate function makes it) to ``size`` numbers.
                It may differentiate the model with `torch.autograd.grad`, with respect to any parameter.
            size: how many numbers; the same for all examples, and not chosen by looking at them.
            bound: an example's numbers are shortened to this Euclidean norm if they are longer. Numbers that are not
                finite count as zeros.
        """
        validate.whole(size=size)
        validate.positive(bound=bound)
        validate.finite(bound=bound)
        if self._left == 0:
            raise BudgetSpent(f"this release allows {self.event.steps} noisy sum(s), and all of them are made")
        self._left -= 1
        clipping = Clipping.flat(["numbers"], bound, Local(bound).factors)
        device = next(self._model.parameters()).device
        total = torch.zeros(size, dtype=torch.float64, device=device)
        with self._unchanged() as put_back, self._paused():
            for rows in self._loader.one_by_one(self._poisson):
                found = torch.zeros_like(total)
                for row in rows:  # one, or a person's
                    found += _checked(compute(self._model, row), size).to(total) / len(rows)
                    put_back()  # or one example would have a say in what is computed from the next
                total += _clipped(found, clipping)
        total = total.float()
        self._noise.add_([total], clipping.stds(self.event.noise_multiplier)[0])
        return total

    @contextmanager
    def _unchanged(self) -> Iterator[Callable[[], None]]:
        """Whatever is computed, the model is afterwards as it was: nothing of an example stays in it.

        Hands over what puts weights and buffers back already before. Meanwhile every parameter can be differentiated,
        also one that was frozen in the steps before.
        """
        saved = {name: t.detach().clone() for name, t in self._tensors()}
        before = [(p, p.grad, p.requires_grad) for p in self._model.parameters()]
        modes = [(module, module.training) for module in self._model.modules()]

        @torch.no_grad()
        def put_back() -> None:
            for name, t in self._tensors():
                if not torch.equal(t, saved[name]):  # what did not change may be in a graph that is under way
                    t.copy_(saved[name])
            for p, _, _ in before:
                p.grad = None
            for module, training in modes:
                module.training = training

        for p, _, _ in before:
            p.grad = None
            p.requires_grad_(p.is_floating_point() or p.is_complex())
        try:
            with torch.enable_grad():
                yield put_back
        finally:
            put_back()
            for p, gradient, requires_grad in before:
                p.grad = gradient
                p.requires_grad_(requires_grad)

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._model.named_parameters()
        yield from self._model.named_buffers()


def _checked(numbers: object, size: int) -> Tensor:
    if not isinstance(numbers, Tensor) or numbers.shape != (size,):
        got = tuple(numbers.shape) if isinstance(numbers, Tensor) else type(numbers).__name__
        raise InvalidValue(f"a query's compute returns {size} numbers for every example, got {got}")
    return numbers.detach()


def _clipped(exact: Tensor, clipping: Clipping) -> Tensor:
    norm = exact.norm()
    # 0 × inf is not 0: an example without a norm is left out, not multiplied away.
    return exact * clipping.factors(norm.view(1, 1)).squeeze() if norm < GONE else torch.zeros_like(exact)
