"""The clipped sums of logical batches: which one a run of the model may add to, and when it is released."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from hoarfrost.clipping import Clipping
from hoarfrost.errors import NotPrivate
from hoarfrost.gradients.clipped_sum import ClippedSum
from hoarfrost.groups import Groups
from hoarfrost.tickets import LogicalBatch, Ticket, Tickets

THROUGH_THE_MODEL = (
    "backward() through the private model into what made its input (a GAN's generator): it would also train the "
    "private model, on examples that the loader did not draw. Write "
    "loss.backward(inputs=list(generator.parameters())), or take model.requires_grad_(False) around the generator's "
    "step."
)
OF_ANOTHER_RUN = (
    "backward() through a private model on examples of another private run: each model is trained on the batches of "
    "the loader that make_private returned with it. Two models that are trained on the same batches, or one on top of "
    "the other, belong into one module, whose forward runs both: make that private, once, with one optimizer for both. "
    "To use the other model as it is, call it under torch.no_grad()."
)


@dataclass(frozen=True, eq=False)
class Part:
    """Rows ``start`` to ``stop`` of a tensor that holds all rows of a chunk."""

    whole: weakref.ref[Tensor]
    start: int
    stop: int

    def apart_from(self, other: Part | None) -> bool:
        """Whether no row is in both, as far as that can be known."""
        if other is None or self.whole() is None or self.whole() is not other.whole():
            return False
        return self.stop <= other.start or other.stop <= self.start


@dataclass(frozen=True, eq=False)
class Run:
    """One run of the whole model: what is asked of it when its backward pass comes.

    Args:
        groups: whose its rows are.
        part: which of the chunk's rows it was on, where it was not on all of them and that can be known.
        onward: gradients flow on through its inputs, into whatever made them.
        foreign: it was on what the loader of another run has handed over.
    """

    groups: Groups
    part: Part | None = None
    onward: bool = False
    foreign: bool = False


class BatchSums:
    """Keeps the sums of different logical batches apart.

    Args:
        tickets: the loader's: which chunk the training loop works on.
        views: rows of an example.
        begin: how the coming logical batch is clipped; asked once for each.

    Guarantees:
        A chunk that was handed over is covered by one backward pass, in the batch that it was drawn for, or by several
        whose rows are seen to be different ones; or by a later one, once `zero_grad` has dropped what they brought.
        (That a run has each row once is for the loop to keep: rows that it chose by their numbers cannot be told
        apart.) Sums of different batches never meet. A batch is released once, by the process that drew it.
    """

    def __init__(self, tickets: Tickets, views: int, begin: Callable[[], Clipping]) -> None:
        self.tickets, self.views = tickets, views
        self.apart = Groups(views)  # each row stands for itself, or for an example with its other views
        self.ticket: Ticket | None = None  # of the chunk that the model runs on
        self._begin = begin
        self._noise_alone_told = False
        self._summing: LogicalBatch | None = None  # that a backward pass added to last

    @property
    def total(self) -> ClippedSum | None:
        """What is summed so far of the batch that a backward pass added to last."""
        return None if self._summing is None else self._summing.total

    def open(self, inputs: Sequence[Tensor]) -> int | None:
        """The model is about to run on these tensors: finds the chunk that they are, and says how many rows it has."""
        self.ticket = self.tickets.open(inputs)
        return None if self.ticket is None else self.ticket.chunk.rows(self.views)

    def begin(
        self, rows: int, tensors: Sequence[Tensor] = (), dim: Callable[[Tensor], int | None] | None = None
    ) -> Run:
        """The model is about to run on so many rows; the first chunk of a batch fixes its clipping.

        Args:
            tensors: what it runs on.
            dim: the dimension of each of them that counts rows.
        """
        ticket = self.ticket
        run = Run(
            groups=self._groups(rows),
            part=None if dim is None or ticket is None else _part(tensors, rows, ticket.chunk.rows(self.views), dim),
            onward=any(t.grad_fn is not None for t in tensors),
            foreign=self.tickets.foreign,
        )
        if ticket is None or self.tickets.is_void(ticket):
            return run  # no training step: a backward pass is refused
        if self.tickets.ahead and rows != ticket.chunk.rows(self.views):
            raise NotPrivate(
                f"the loader has handed over several batches, and the model runs on {rows} rows, where the next batch "
                "in turn has another number. With batches fetched ahead, run the model once on each batch, whole (not "
                "put together by torch.cat), and in the order in which the loader gives them"
            )
        if rows % self.views:
            raise NotPrivate(
                f"the model runs on a number of rows that views={self.views} does not divide: the loop has left some "
                "out, or they are not from the loader. Run it on all rows of a batch; use torch.no_grad() to evaluate."
            )
        self._total_of(ticket)
        return run

    def _groups(self, rows: int) -> Groups:
        """Whose the rows of a run are, if it has so many; where that is not known (or nobody's), each for itself."""
        known = None if self.ticket is None else self.ticket.chunk.groups
        return known if known is not None and rows and known.rows == rows else self.apart

    def cover(self, ticket: Ticket | None, examples: int, run: Run | None) -> ClippedSum:
        """The sum that a backward pass over ``examples`` examples may add to; ``run`` is what it differentiates.

        Refuses one that would count an example twice, or in a step that it was not drawn for.
        """
        onward = run is not None and run.onward
        if run is not None and run.foreign:
            raise NotPrivate(OF_ANOTHER_RUN)
        if ticket is None or self.tickets.is_void(ticket) or ticket.batch.total is None:
            raise NotPrivate(
                OF_ANOTHER_RUN if onward and self.tickets.beside else THROUGH_THE_MODEL if onward else
                "backward() on examples that the private loader did not draw (or whose step was already taken). Take "
                "every training batch from the loader that make_private returned (a wrapper around it that copies "
                "tensors must fetch the same number of batches ahead throughout); use torch.no_grad() to evaluate."
            )  # fmt: skip
        if ticket.chunk.examples:
            if ticket.chunk.groups not in (None, None if run is None else run.groups):
                raise NotPrivate(
                    "backward() over a part of a batch, or of the model, or over more rows than were drawn: whose its "
                    "rows are cannot be known, and a person's are averaged before they are clipped. Run the whole "
                    "model once on each batch that the loader gives, whole and in its order; for smaller ones, use "
                    "max_physical_batch=."
                )
            self._refuse_other_rows(ticket, examples, run)
            if any(before is run for before in ticket.runs):
                raise NotPrivate(
                    "a second backward() through one run of the model: an example's gradient may enter a step only "
                    "once. Add losses up before one backward()."
                )
            parts = run is not None and run.part is not None and all(run.part.apart_from(b.part) for b in ticket.runs)
            if ticket.runs and not parts:
                raise NotPrivate(
                    THROUGH_THE_MODEL if onward else
                    "a backward() for each of two runs of the model on one batch: an example's gradient may enter a "
                    "step only once. Add losses up before one backward(); where a loss needs two runs (a GAN's real "
                    "and generated examples, two augmentations), put both into the forward of one module and make that "
                    "private. To work on a batch in parts, take slices of its tensors, or max_physical_batch=. For "
                    "adversarial examples, take the slope of the inputs by torch.autograd.grad(loss, x), which brings "
                    "the parameters nothing, or call optimizer.zero_grad() after the first pass, where a batch comes "
                    "whole (with max_physical_batch=, what other chunks brought is kept, and this one's with it)."
                )  # fmt: skip
        other = None if self._summing is ticket.batch else self.total
        if other is not None and other.last is not None and other.sums:
            raise NotPrivate(
                "two Poisson batches before one optimizer.step(): an example may be in both, and would count twice. "
                "Step once for each batch; to accumulate over smaller pieces of one, use max_physical_batch=."
            )
        if other is not None:
            other.drop()  # a batch that was broken off: nothing of it is released
        ticket.runs.append(run or Run(self.apart))
        ticket.covered += examples
        ticket.used = ticket.covered >= ticket.chunk.examples
        total = self._total_of(ticket)
        total.last = ticket if ticket.chunk.last else None
        self._summing = ticket.batch
        return total

    def _refuse_other_rows(self, ticket: Ticket, examples: int, run: Run | None) -> None:
        """Refuses rows that are not those of the chunk, as far as their number shows it."""
        drawn, part = ticket.chunk.examples, None if run is None else run.part
        if examples > drawn:
            raise NotPrivate(
                "backward() over more examples than were drawn in this batch, as torch.cat([a, b]) of two batches or "
                "of two copies makes them: an example could count twice. Run the model on what the loader gives; for "
                "larger steps, give make_private a larger batch_size= (and max_physical_batch=), for several "
                "augmentations of an example, views=. A wrapper around the loader that copies tensors must fetch the "
                "same number of batches ahead throughout."
            )
        if self.views > 1 and examples != drawn and (part is None or part.start % self.views):
            raise NotPrivate(
                f"the model ran on other rows than the examples' {self.views} views each, which views= averages: a "
                "loop that picks some would put different examples together. Run it on all rows of a batch."
            )

    def discard(self) -> None:
        """What `zero_grad` means: drops sums that no step will use. Chunks of a batch still under way are kept.

        Of a batch that came whole nothing is left then, and another backward pass may take its place, as adversarial
        training needs it: the first one for the slope of the inputs alone.
        """
        if self.total is not None and self.total.last is not None:
            ticket: Ticket = self.total.last
            self.total.drop()
            if ticket.whole:
                ticket.give_back()

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
        if 0 < ticket.covered < ticket.chunk.examples and all(run.part is not None for run in ticket.runs):
            raise NotPrivate(
                "the step has slices of its batch alone, and the other rows were left out for their place: one example "
                "more moves others in or out of a slice. Run the model on all rows; where they are too many at a time, "
                "use max_physical_batch=."
            )
        ran = ticket.batch.total is not None
        total = self._total_of(ticket)
        if ticket.chunk.examples and not total.sums:
            self._warn_of_noise_alone(ticket, ran)
        self.tickets.release(ticket.batch)
        self.ticket, self._summing = None, None
        return total

    def _warn_of_noise_alone(self, ticket: Ticket, ran: bool) -> None:
        """Says once that a step has no gradients although its batch has examples, and what may be the reason."""
        if self._noise_alone_told:
            return
        self._noise_alone_told = True
        if ticket.runs or ticket.given_back:
            reason = "zero_grad() came between backward() and step()"
        elif ran:
            reason = "no backward() reached the model: it was not called, or with inputs= (leave that out), or detached"
        else:
            reason = "the model never ran on it (a copy of the model, or of its modules, is not private)"
        warnings.warn(
            f"a step that is noise alone: none of its batch's gradients are in it, since {reason}. If that is meant, "
            "to sit out a broken batch, all is well",
            stacklevel=6,
        )

    def _total_of(self, ticket: Ticket) -> ClippedSum:
        if ticket.batch.total is None:
            ticket.batch.total = ClippedSum(self._begin())
        total: ClippedSum = ticket.batch.total
        return total


def _part(tensors: Sequence[Tensor], rows: int, of: int, dim_of: Callable[[Tensor], int | None]) -> Part | None:
    """Which of the ``of`` rows of a chunk these are, if they are slices of tensors that hold all of them."""
    for t in tensors if rows < of else ():
        whole, dim = t._base, dim_of(t)
        if whole is None or dim is None or whole.dim() <= dim or whole.shape[dim] != of:
            continue
        step = t.stride(dim)
        if not step or step != whole.stride(dim):
            continue
        start, rest = divmod(int(t.storage_offset() - whole.storage_offset()), step)
        if not rest and 0 <= start <= of - rows:
            return Part(weakref.ref(whole), start, start + rows)
    return None
