"""Which of the batches that the loader has handed over the training loop is working on.

The loader gives every chunk that it hands over a ticket. A loop may work on a chunk at once, or look ahead: a wrapper
around the loader (as in accelerate or Lightning) takes further batches before the first of them is used. How far it
looks ahead is seen at the first use in an iteration, and stays the same until the loader is exhausted; from then on
what is left is used in order. Where the loop's tensors are those that were handed over, or hold the same numbers, they
say which chunk they are.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hoarfrost.errors import NotPrivate
from hoarfrost.nested import map_tensors


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A part of a logical batch, as it is handed to the training loop.

    Args:
        examples: how many examples it holds (each of them `views` rows). Private: nothing may be divided by it.
        first: it opens its logical batch.
        last: it completes it: the optimizer's next step is a real one.
    """

    examples: int
    first: bool
    last: bool


@dataclass(eq=False)
class Ticket:
    """One chunk that was handed over: how many of its examples a backward pass has reached, and whether it is used up.

    Args:
        batch: the number of the logical batch that the chunk belongs to.
        process: the one that it was handed to.
    """

    chunk: Chunk
    batch: int
    process: int = field(default_factory=os.getpid)
    covered: int = 0
    used: bool = False  # by a backward pass over all of it, or by the step that released its batch
    released: bool = False
    passed: bool = False  # the loop works on a later one
    tensors: tuple[weakref.ref[Tensor], ...] = ()
    held: tuple[Tensor, ...] = ()  # the same, kept alive until it is known how far the loop looks ahead


class Tickets:
    """The tickets that are out, oldest first.

    Guarantees:
        `open` and `current` are the chunk that the loop works on, as long as the loop uses chunks in the order in which
        they were handed over, each at most once. It may skip some, and may look ahead by any number of chunks. Where
        the very tensors that were handed over reach the model, their chunk is known for certain.

    >>> tickets = Tickets()
    >>> for examples in (3, 0, 5):  # a loop that looks ahead by two
    ...     tickets.hand_over(Chunk(examples=examples, first=True, last=True))
    >>> tickets.open().chunk.examples
    3
    >>> tickets.hand_over(Chunk(examples=9, first=True, last=True))
    >>> tickets.open().chunk.examples
    0
    """

    def __init__(self) -> None:
        self._out: deque[Ticket] = deque()
        self._lag: int | None = None  # how many chunks the loop is behind what was handed over last; seen at first use
        self._exhausted = False  # the loader has nothing more to hand over
        self._worked_on: Ticket | None = None  # what the model ran on last
        self._batches = 0

    # What the loader says.

    def hand_over(self, chunk: Chunk, batch: Any = None) -> None:
        """A chunk leaves the loader; ``batch`` is what the loop gets."""
        self._batches += chunk.first
        tensors = tuple(_tensors(batch))
        held = tensors if self._lag is None else ()
        self._out.append(Ticket(chunk, self._batches, tensors=tuple(map(weakref.ref, tensors)), held=held))
        self._drop_passed()

    def begin(self) -> None:
        """An iteration of the loader begins. Tickets of one that was broken off are void."""
        if not (self._exhausted and any(not ticket.used for ticket in self._out)):
            self.clear()
        self._exhausted = False

    def end(self) -> None:
        """The iteration has nothing more to hand over."""
        self._exhausted = True

    def clear(self) -> None:
        """Nothing that was handed over counts any more."""
        self._out.clear()
        self._lag, self._exhausted, self._worked_on = None, False, None

    # What the engine asks.

    def open(self, inputs: Iterable[Tensor] = ()) -> Ticket | None:
        """The chunk that the model is about to run on; ``inputs`` are the tensors that reach it."""
        known = self._recognised(list(inputs)) if len(self._out) > 1 else None
        ticket = known or self._next()
        for each in self._out:
            each.held = ()
        if self._exhausted and known is None and ticket is not None and ticket is self._worked_on and self.ahead:
            raise NotPrivate(
                "with batches fetched ahead, the model ran a second time before the first run was used: whether on the "
                "same batch or on the next one cannot be known. Run the model once on each batch, and call backward()"
            )
        self._worked_on = ticket
        return ticket

    def current(self) -> Ticket | None:
        """The chunk that the loop works on: what the model ran on last, or one that it never ran on."""
        if self._exhausted and self._worked_on is not None and not self._worked_on.released:
            return self._worked_on
        return self._next()

    def _next(self) -> Ticket | None:
        if self._exhausted:
            return next((ticket for ticket in self._out if not ticket.used and not ticket.passed), None)
        if not self._out:
            return None
        if self._lag is None:
            self._lag = len(self._out) - 1
        return self._out[-1 - self._lag] if self._lag < len(self._out) else self._out[0]

    @property
    def ahead(self) -> bool:
        """Whether more than one chunk is out: which one a run belongs to is then known from its number of rows too."""
        return sum(not ticket.used for ticket in self._out) > 1

    def release(self, last: Ticket) -> None:
        """The batch that ends with this chunk was released: nothing of it, or of what came before, can be used."""
        for ticket in self._out:
            if ticket.batch <= last.batch:
                ticket.used = ticket.released = True
        last.used = last.released = True

    def _recognised(self, inputs: list[Tensor]) -> Ticket | None:
        """The one chunk whose own tensors these are. Where several are (the very same tensor twice), nobody knows."""
        places = {_place(t) for t in inputs} - {None}
        found = []
        for number, ticket in enumerate(self._out):
            alive = (t for t in (ref() for ref in ticket.tensors) if t is not None)
            if any(_place(t) in places for t in alive):
                found.append(number)
        if not found:
            found = [n for n, ticket in enumerate(self._out) if any(_equal(a, b) for a in ticket.held for b in inputs)]
        if len(found) != 1:
            return None
        if not self._exhausted:
            self._lag = len(self._out) - 1 - found[0]
        for ticket in list(self._out)[: found[0]]:
            ticket.passed = True
        ticket = self._out[found[0]]
        self._drop_passed()
        return ticket

    def _drop_passed(self) -> None:
        """The loop takes chunks in order: what lies before the one it works on is behind it."""
        while self._lag is not None and not self._exhausted and len(self._out) > self._lag + 1:
            self._out.popleft()


def _tensors(batch: Any) -> list[Tensor]:
    found: list[Tensor] = []

    def note(t: Tensor) -> Tensor:
        found.append(t)
        return t

    map_tensors(note, batch)
    return found


def _equal(handed_over: Tensor, reached: Tensor) -> bool:
    """Whether they hold the same numbers. Asked once in an iteration, and only if the loop may look ahead."""
    if handed_over.shape != reached.shape or handed_over.dtype != reached.dtype or not handed_over.numel():
        return False
    return torch.equal(handed_over.to(reached.device), reached)


def _place(t: Tensor) -> tuple[Any, int] | None:
    """Where its numbers lie in memory, if it has any."""
    try:
        return (t.device, t.data_ptr()) if t.numel() else None
    except RuntimeError:  # tensors without memory of their own, as tracing makes them
        return None
