"""The one way to private data for a freezer: noisy sums that are charged for before anything is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hoarfrost import validate
from hoarfrost.budget import Gaussian
from hoarfrost.calls import call, own_loss
from hoarfrost.errors import BudgetSpent, InvalidValue, NotPrivate
from hoarfrost.kept import Kept
from hoarfrost.nested import map_tensors
from hoarfrost.noise import Noise
from hoarfrost.sampling import Poisson, PoissonLoader

Compute = Callable[[nn.Module, Any], Tensor]
"""From the model and a batch of one example to that example's numbers, [k]."""
ComputeBlocks = Callable[[nn.Module, Any], Sequence[Tensor]]
"""The same for numbers in several blocks: a tensor of any shape for each."""

TINY, HUGE = 1e-100, 1e100  # an example whose norm in float64 is not between these counts as zeros
MARGIN = 1e-9  # by which less than the bound is aimed at, for what float64 rounds


class Query:
    """Noisy sums over Poisson batches, as many as the release allows. A freezer's `prepare` is handed one.

    Args:
        event: the release, which was charged for already: how noisy, at which sampling rate, how many sums.
        model: what ``compute`` is handed.
        loader: of the run: its data set and its collate function.
        noise: of the run.
        paused: while it is entered, the model runs without gradient rules.
        loss: ``loss(output, batch)``, if `make_private` was told.
        loss_of_one: of the model and a batch of one example, if a trainer computes it otherwise.

    Guarantees:
        What `sum` or `norms` returns is one of ``event.steps`` Gaussian releases with the event's noise multiplier and
        sampling rate, and nothing else leaves: every example's numbers are computed from that example alone, clipped to
        the bound, summed (in float64) and noised. Where the unit is a person, people are drawn, and the mean over a
        person's rows (at most as many as in a step) is clipped. The model's weights, buffers and gradients are as
        before.
    """

    def __init__(
        self,
        event: Gaussian,
        model: nn.Module,
        loader: PoissonLoader,
        noise: Noise,
        paused: Callable[[], Any],
        loss: Callable[[Any, Any], Tensor] | None = None,
        loss_of_one: Callable[[nn.Module, Any], Tensor] | None = None,
    ) -> None:
        self.event = event
        self._model, self._loader, self._noise, self._paused, self._loss = model, loader, noise, paused, loss
        self._loss_of_one = loss_of_one
        self._poisson = Poisson(sample_rate=event.sample_rate, size=loader.poisson.size)
        self._left = event.steps

    @property
    def expected_batch(self) -> float:
        """How many examples, or people, a sum is expected to be over: a public constant."""
        return self._poisson.expected_batch

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss of an example, for a freezer that was told none: the trainer's, `make_private`'s or the model's."""
        if self._loss_of_one is not None:
            return self._loss_of_one(model, batch)
        device = next(model.parameters()).device
        batch = map_tensors(lambda t: t.to(device), batch)
        output = call(model, batch)
        found = own_loss(output) if self._loss is None else self._loss(output, batch)
        if found is None:
            raise InvalidValue(
                f"the model ({type(model).__name__}) returns no loss of its own: say what is differentiated, with "
                "make_private(loss=...), or tell the freezer, such as Frost(loss=lambda model, batch: ...)"
            )
        return found.sum()

    def sum(
        self, compute: Compute, *, size: int, bound: float, order: Literal[1, 2] = 2, lengthen: bool = False
    ) -> Tensor:
        """The noisy sum of every example's numbers over one Poisson batch, [size], float32.

        Args:
            compute: from the model and a batch of one example (as the collate function makes it) to ``size`` numbers.
                It may differentiate the model with `torch.autograd.grad`, with respect to any parameter.
            size: how many numbers; the same for all examples, and not chosen by looking at them.
            bound: an example's numbers are shortened to this norm if they are longer. Numbers that are not finite count
                as zeros.
            order: of that norm. A 1-norm is never below the 2-norm, to which the noise is fitted.
            lengthen: numbers that are shorter than the bound are lengthened to it: every example has the same say.
        """
        validate.whole(size=size)
        (total,) = self._sums(lambda model, row: (compute(model, row),), [size], bound, order, lengthen)
        return self._noised(total, bound)

    def norms(
        self,
        compute: ComputeBlocks,
        *,
        sizes: Sequence[int],
        bound: float,
        order: Literal[1, 2] = 2,
        lengthen: bool = False,
        weights: Sequence[float] | None = None,
    ) -> Tensor:
        """The noisy norm of each block of a sum over one Poisson batch, [blocks], float32.

        Args:
            compute: as for `sum`, to one tensor for each block.
            sizes: how many numbers a block has.
            bound, order, lengthen: as for `sum`, of all blocks together; the norms of blocks are of that order, too.
            weights: each block's norm is multiplied by its weight before noise is added; by default by 1.

        Guarantees:
            One example, of norm at most ``bound``, moves a block's norm by at most the norm of what it adds to that
            block, and the vector of norms by at most ``bound`` times the largest weight in 2-norm. Noise is fitted to
            that.
        """
        validate.whole(**{f"sizes[{n}]": size for n, size in enumerate(sizes)})
        scales = [1.0] * len(sizes) if weights is None else list(weights)
        if not sizes or len(scales) != len(sizes):
            raise InvalidValue(f"give a weight for each of the blocks: got {len(sizes)} blocks, {len(scales)} weights")
        validate.positive(**{f"weights[{n}]": each for n, each in enumerate(scales)})
        totals = self._sums(compute, sizes, bound, order, lengthen)
        norms = torch.stack([torch.linalg.vector_norm(total, order) for total in totals])
        return self._noised(norms * torch.tensor(scales, dtype=norms.dtype, device=norms.device), bound * max(scales))

    def _sums(
        self, compute: ComputeBlocks, sizes: Sequence[int], bound: float, order: Literal[1, 2], lengthen: bool
    ) -> list[Tensor]:
        """The clipped sums over one Poisson batch, before noise."""
        validate.positive(bound=bound)
        validate.finite(bound=bound)
        validate.flag(lengthen=lengthen)
        if order not in (1, 2):
            raise InvalidValue(f"order is 1 or 2, got {order!r}")
        if self._left == 0:
            raise BudgetSpent(f"this release allows {self.event.steps} noisy sum(s), and all of them are made")
        self._left -= 1
        device = next(self._model.parameters()).device
        totals = [torch.zeros(size, dtype=torch.float64, device=device) for size in sizes]
        with self._unchanged() as put_back, self._paused():
            for rows in self._loader.one_by_one(self._poisson):
                found: list[Tensor] = []
                for row in rows:  # one, or a person's
                    numbers = _checked(compute(self._model, row), sizes)
                    found = [a + b for a, b in zip(found, numbers, strict=True)] if found else numbers
                    put_back()  # or one example would have a say in what is computed from the next
                # The norm of a person's mean, and what is added of it, are those of the sum over as many rows.
                factor = _factor(found, bound, order, lengthen, rows=len(rows))
                for total, part in zip(totals, found, strict=True):
                    if factor > 0:  # 0 × inf is not 0: an example without a norm is left out, not multiplied away
                        total.add_(part.to(device), alpha=factor)
        return totals

    def _noised(self, exact: Tensor, sensitivity: float) -> Tensor:
        self._noise.add_([exact], [self.event.noise_multiplier * sensitivity])
        return exact.float()  # and not before: what rounds with others is no matter of one example

    @contextmanager
    def _unchanged(self) -> Iterator[Callable[[], None]]:
        """Whatever is computed, the model is afterwards as it was: nothing of an example stays in it.

        Hands over what puts back all that the model holds already before. Meanwhile every parameter can be
        differentiated, also one that was frozen in the steps before.
        """
        before = [(p, p.grad, p.requires_grad) for p in self._model.parameters()]
        for p, _, _ in before:
            p.grad = None
            p.requires_grad_(p.is_floating_point() or p.is_complex())
        kept = Kept(self._model)

        def put_back() -> None:
            kept.put_back(values=False)  # comparing all numbers of a large model would take longer than running it
            for p, _, _ in before:
                p.grad = None

        try:
            with torch.enable_grad():
                yield put_back
            unseen = [entry.name for entry, what in kept.differences() if what == "changes"]
            if unseen:
                raise NotPrivate(
                    f"{unseen[0]} was written to in a way that torch does not count (through .data, or from outside "
                    "of torch) while a freezer looked at single examples: what one example left there, others may "
                    "have read. Write to it in place (under torch.no_grad()), or not at all"
                )
        finally:
            kept.put_back()
            for p, gradient, requires_grad in before:
                p.grad = gradient
                p.requires_grad_(requires_grad)


def _checked(numbers: object, sizes: Sequence[int]) -> list[Tensor]:
    """An example's numbers, laid out flat."""
    found = list(numbers) if isinstance(numbers, tuple | list) else [numbers]
    blocks = [block for block in found if isinstance(block, Tensor)]
    if len(found) != len(blocks) or len(blocks) != len(sizes):
        kinds = ", ".join(type(block).__name__ for block in found) or "nothing"
        raise InvalidValue(f"a query's compute returns {len(sizes)} tensor(s) for every example, got {kinds}")
    for block, size in zip(blocks, sizes, strict=True):
        if block.numel() != size or (len(sizes) == 1 and block.dim() != 1):
            raise InvalidValue(f"a query's compute returns {size} numbers for every example, got {tuple(block.shape)}")
    return [block.detach().reshape(-1) for block in blocks]


def _factor(parts: Sequence[Tensor], bound: float, order: Literal[1, 2], lengthen: bool, *, rows: int) -> float:
    """By what the sum over so many rows is multiplied: 1 / rows, and what brings the mean to the bound."""
    norms = torch.stack([torch.linalg.vector_norm(part, order, dtype=torch.float64) for part in parts])
    norm = float(torch.linalg.vector_norm(norms, order)) / rows
    if not TINY < norm < HUGE:  # too small for its squares, too large, or no number
        return 0.0
    scale = (1 - MARGIN) * bound / norm
    return (scale if lengthen else min(1.0, scale)) / rows
