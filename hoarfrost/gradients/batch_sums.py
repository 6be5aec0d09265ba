"""The clipped sums of logical batches: which one a run of the model may add to, and when it is released."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from torch import Tensor

from hoarfrost.clipping import Clipping
from hoarfrost.errors import NotPrivate
from hoarfrost.gradients.clipped_sum import ClippedSum
from hoarfrost.groups import Groups
from hoarfrost.tickets import LogicalBatch, Ticket, Tickets


class BatchSums:
    """Keeps the sums of different logical batches apart.

    Args:
        tickets: the loader's: which chunk the training loop works on.
        views: rows of an example.
        begin: how the coming logical batch is clipped; asked once for each.

    Guarantees:
        An example that was handed over is covered by at most one backward pass (counted by rows: a loop that runs the
        same rows twice in place of others is not noticed), in the batch that it was drawn for. Sums of different
        batches never meet. A batch is released once, by the process that drew it.
    """

    def __init__(self, tickets: Tickets, views: int, begin: Callable[[], Clipping]) -> None:
        self.tickets, self.views = tickets, views
        self.ticket: Ticket | None = None  # of the chunk that the model runs on
        self._begin = begin
        self._summing: LogicalBatch | None = None  # that a backward pass added to last

    @property
    def total(self) -> ClippedSum | None:
        """What is summed so far of the batch that a backward pass added to last."""
        return None if self._summing is None else self._summing.total

    def open(self, inputs: Sequence[Tensor]) -> int | None:
        """The model is about to run on these tensors: finds the chunk that they are, and says how many rows it has."""
        self.ticket = self.tickets.open(inputs)
        return None if self.ticket is None else self.ticket.chunk.rows(self.views)

    def begin(self, rows: int) -> None:
        """The run has so many rows, which must be those of the chunk; the first chunk of a batch fixes its clipping."""
        ticket = self.ticket
        if ticket is None or self.tickets.is_void(ticket):
            return  # no training step: a backward pass is refused
        if self.tickets.ahead and rows != ticket.chunk.rows(self.views):
            raise NotPrivate(
                f"the loader has handed over several batches, and the model runs on {rows} rows, where the next batch "
                "in turn has another number. With batches fetched ahead, run the model once on each batch, whole, and "
                "in the order in which the loader gives them"
            )
        self._total_of(ticket)

    def groups(self, rows: int) -> Groups:
        """Whose the rows of a run are, if it has so many."""
        known = None if self.ticket is None else self.ticket.chunk.groups
        return Groups(self.views) if known is None or known.rows != rows else known

    def cover(self, ticket: Ticket | None, examples: int, groups: Groups) -> ClippedSum:
        """The sum that a backward pass over ``examples`` examples may add to; ``groups`` says whose its rows were.

        Refuses one that would count an example twice, or in a step that it was not drawn for.
        """
        if ticket is None or self.tickets.is_void(ticket) or ticket.batch.total is None:
            raise NotPrivate(
                "backward() on examples that the private loader did not draw (or whose step was already taken). Take "
                "every training batch from the loader that make_private returned; use torch.no_grad() to evaluate."
            )
        if ticket.chunk.examples and ticket.chunk.groups not in (None, groups):
            raise NotPrivate(
                "backward() over a part of a batch, or of the model: whose its rows are cannot be known, and a person's"
                " are averaged before they are clipped. Run the whole model once on each batch that the loader gives, "
                "whole and in its order; for smaller ones, use max_physical_batch=."
            )
        if ticket.chunk.examples and ticket.covered + examples > ticket.chunk.examples:
            raise NotPrivate(
                "backward() over more examples than are left of those drawn: an example's gradient may enter a step "
                "only once. Add losses up before one backward()."
            )
        other = None if self._summing is ticket.batch else self.total
        if other is not None and other.last is not None and other.sums:
            raise NotPrivate(
                "two Poisson batches before one optimizer.step(): an example may be in both, and would count twice. "
                "Step once for each batch; to accumulate over smaller pieces of one, use max_physical_batch=."
            )
        if other is not None:
            other.drop()  # a batch that was broken off: nothing of it is released
        ticket.covered += examples
        ticket.used = ticket.covered >= ticket.chunk.examples
        total = self._total_of(ticket)
        total.last = ticket if ticket.chunk.last else None
        self._summing = ticket.batch
        return total

    def discard(self) -> None:
        """What `zero_grad` means: drops sums that no step will use. Chunks of a batch still under way are kept."""
        if self.total is not None and self.total.last is not None:
            self.total.drop()

    def reset(self) -> None:
        """Forgets everything that was handed over or summed: what follows needs a new batch."""
        self.tickets.reset()
        self.ticket, self._summing = None, None

    def release(self) -> ClippedSum | None:
        """The clipped sum of the logical batch, once; None while chunks of it are still to come."""
        summed = None if self.total is None else self.total.last
        ticket = summed or self.tickets.current()
        if ticket is None or self.tickets.is_void(ticket):
            raise NotPrivate(
                "optimizer.step() without a batch: every step needs a Poisson batch of its own, drawn since the last "
                "step from the loader that make_private returned."
            )
        if ticket.process != os.getpid():
            raise NotPrivate(
                "optimizer.step() in another process than the one that drew the batch: a fork would release the same "
                "step twice. Let the process that trains draw its own batches."
            )
        if not ticket.chunk.last:
            return None
        total = self._total_of(ticket)
        self.tickets.release(ticket.batch)
        self.ticket, self._summing = None, None
        return total

    def _total_of(self, ticket: Ticket) -> ClippedSum:
        if ticket.batch.total is None:
            ticket.batch.total = ClippedSum(self._begin())
        total: ClippedSum = ticket.batch.total
        return total
