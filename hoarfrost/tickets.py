"""Which of the batches that the loader has handed over the training loop is working on.

The loader gives every chunk that it hands over a ticket. A loop may work on a chunk at once, or look ahead: a wrapper
around the loader (as in accelerate or Lightning) takes further batches before the first of them is used. Where the
tensors that reach the model are those that were handed over, they say which chunk it is. Otherwise (copies on another
device) the chunk follows from its position: how far the loop looks ahead is seen at the first use in an iteration, and
stays the same until the loader is exhausted; from then on what is left is used in order.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from hoarfrost.errors import NotPrivate
from hoarfrost.groups import Groups
from hoarfrost.nested import map_tensors

MISSED = (
    "the loop went on to the next batch without optimizer.step() for the one before. That batch was drawn, so its step "
    "is charged all the same; and if its examples decided that it was left out (`if len(y) == 0: continue`, `if "
    "loss.isnan(): continue`), weights that did not move tell about them, which epsilon does not cover. Call "
    "backward() and step() for every batch: an empty one is a step of noise, and an example whose gradient is not "
    "finite contributes nothing by itself. To sit a broken batch out without telling, call optimizer.step() without "
    "backward(): that is a step of noise, too"
)
FAR = 64  # no loop looks so many batches ahead
HELD = 16  # chunks whose tensors are kept alive until it is known how far the loop looks ahead


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A part of a logical batch, as it is handed to the training loop.

    Args:
        examples: how many examples, or people, it holds. Private: nothing may be divided by it.
        first: it opens its logical batch.
        last: it completes it: the optimizer's next step is a real one.
        groups: whose its rows are; None where each example has `views` rows.
    """

    examples: int
    first: bool
    last: bool
    groups: Groups | None = None

    def rows(self, views: int) -> int:
        """How many rows it has."""
        return self.examples * views if self.groups is None else self.groups.rows_of(self.examples)


@dataclass(eq=False)
class LogicalBatch:
    """One Poisson batch, in one chunk or more. ``total`` is what the engine sums for it, once it has begun."""

    number: int
    total: Any = None


@dataclass(eq=False)
class Ticket:
    """One chunk that was handed over.

    Args:
        process: the one that it was handed to.
        covered: how many of its examples backward passes have reached.
        runs: of the model, whose backward passes those were.
        used: by backward passes over all of it, or by the step that released its batch.
        given_back: what backward passes had brought was dropped, and others may follow.
        passed: the loop works on a later one.
        tensors: what was handed over, as long as anybody has it.
        held: the same, kept alive until it is known how far the loop looks ahead.
    """

    chunk: Chunk
    batch: LogicalBatch
    process: int = field(default_factory=os.getpid)
    covered: int = 0
    runs: list[Any] = field(default_factory=list)
    used: bool = False
    given_back: bool = False
    passed: bool = False
    tensors: tuple[weakref.ref[Tensor], ...] = ()
    held: tuple[Tensor, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether it is a batch of its own."""
        return self.chunk.first and self.chunk.last

    def give_back(self) -> None:
        """Nothing that backward passes over it have brought is left: it is as if there had been none."""
        self.covered, self.used, self.given_back = 0, False, True
        self.runs.clear()


class Tickets:
    """The tickets that are out, oldest first.

    Guarantees:
        Where the very tensors that were handed over reach the model, their chunk is known for certain. Otherwise `open`
        is right as long as the loop uses chunks in the order in which they were handed over, each at most once, and
        looks ahead by the same number of chunks throughout an iteration; it may skip batches. What does not fit this is
        refused where chunks of two batches could be taken for one batch's. Hand-overs may come from another thread.

    >>> tickets = Tickets()
    >>> for examples in (3, 0, 5):  # a loop that looks ahead by two
    ...     tickets.hand_over(Chunk(examples=examples, first=True, last=True))
    >>> tickets.open().chunk.examples
    3
    >>> tickets.hand_over(Chunk(examples=9, first=True, last=True))
    >>> tickets.open().chunk.examples
    0
    """

    _last: ClassVar[weakref.ref[Tickets] | None] = None  # whose model ran last, of all runs in this process

    def __init__(self) -> None:
        self._out: deque[Ticket] = deque()
        self._lag: int | None = None  # how many chunks the loop is behind what was handed over last; seen at first use
        self._exhausted = False  # the loader has nothing more to hand over
        self._since_use = 0  # chunks handed over since the model ran last
        self._of_earlier_iterations = 0
        self._worked_on: Ticket | None = None  # what the model ran on last
        self._batch = LogicalBatch(0)  # that is being handed over
        self._void = 0  # the number of the last batch that was released, or given up
        self._complete: list[int] = []  # numbers of batches that were handed over whole, and not released or given up
        self._told = False  # that a batch had no step
        self.foreign = False  # the model runs on what the loader of another run has handed over
        self._before: weakref.ref[Tickets] | None = None  # those of the model, of whatever run, that ran before
        self._lock = threading.RLock()
        self._ref = weakref.ref(self)
        _every.add(self)

    # What the loader says.

    def hand_over(self, chunk: Chunk, batch: Any = None) -> None:
        """A chunk leaves the loader; ``batch`` is what the loop gets."""
        with self._lock:
            if chunk.first:
                self._batch = LogicalBatch(self._batch.number + 1)
            tensors = tuple(_tensors(batch))
            held = tensors if self._lag is None and len(self._out) < HELD else ()
            self._out.append(Ticket(chunk, self._batch, tensors=tuple(map(weakref.ref, tensors)), held=held))
            self._since_use += 1
            if chunk.last:
                self._complete.append(self._batch.number)
            if len(self._complete) > FAR and self._worked_on is not None:
                self._tell_of_missed_steps()
            self._pass_by()

    def begin(self) -> None:
        """An iteration of the loader begins. Tickets of one that was broken off are void."""
        with self._lock:
            if not (self._exhausted and any(not ticket.used for ticket in self._out)):
                self.clear()
            elif self._lag is None:  # nobody uses them: those before the last iteration are given up
                for _ in range(self._of_earlier_iterations):
                    self._out.popleft()
            self._of_earlier_iterations, self._exhausted = len(self._out), False

    def end(self) -> None:
        """The iteration has nothing more to hand over."""
        self._exhausted = True

    def clear(self) -> None:
        """Nothing that was handed over counts any more."""
        with self._lock:
            self._out.clear()
            self._complete.clear()
            self._lag, self._exhausted, self._worked_on = None, False, None
            self._since_use = self._of_earlier_iterations = 0

    # What the engine asks.

    def open(self, inputs: Iterable[Tensor] = ()) -> Ticket | None:
        """The chunk that the model is about to run on; ``inputs`` are the tensors that reach it."""
        with self._lock:
            inputs = list(inputs)
            places: set[object] = set()
            for t in inputs:
                places.update(_places(t))
            found = self._holding(places)
            self.foreign = not found and any(other._holding(places) for other in self._others())
            self._before, Tickets._last = Tickets._last, self._ref
            known = self._recognised(found, inputs)
            if known is None:
                self._refuse_unclear()
            self._worked_on = known or self._next()
            self._since_use = 0
            for ticket in self._out:
                ticket.held = ()
            return self._worked_on

    def current(self) -> Ticket | None:
        """The chunk that the loop works on: what the model ran on last, or one that it never ran on."""
        with self._lock:
            if self._exhausted and self._worked_on is not None and not self.is_void(self._worked_on):
                return self._worked_on
            return self._next()

    @property
    def unseen(self) -> int:
        """How many chunks of an iteration that goes on were handed over since the model ran last."""
        return 0 if self._exhausted else self._since_use

    @property
    def beside(self) -> bool:
        """Whether the model that ran before this one is another run's, at work on a batch of its own."""
        other = None if self._before is None else self._before()
        return other not in (None, self) and other._worked_on is not None and not other._worked_on.used

    @property
    def ahead(self) -> bool:
        """Whether more than one chunk is out: which one a run belongs to must show in its number of rows, too."""
        with self._lock:
            return len(self._out) > 1 and sum(not ticket.used and not ticket.passed for ticket in self._out) > 1

    def release(self, batch: LogicalBatch) -> None:
        """The batch was released: nothing of it, or of what came before, can be used.

        Batches are worked on in order: one before it that was not released has had no step, which is said once. What
        was fetched ahead comes after it.
        """
        with self._lock:
            if self._complete and min(self._complete) < batch.number:
                self._tell_of_missed_steps()
            self._complete = [number for number in self._complete if number > batch.number]
            self._void = max(self._void, batch.number)
            for ticket in self._out:
                ticket.used |= self.is_void(ticket)

    def reset(self) -> None:
        """Nothing that was handed over, or that a graph holds, can be used any more."""
        with self._lock:
            self._void = self._batch.number
            self.clear()

    def is_void(self, ticket: Ticket) -> bool:
        """Whether its batch was released or given up, or a later one was."""
        return ticket.batch.number <= self._void

    # The inside.

    def _next(self) -> Ticket | None:
        """By position."""
        if self._exhausted:
            return next((ticket for ticket in self._out if not ticket.used and not ticket.passed), None)
        out = [ticket for ticket in self._out if not ticket.passed]
        if not out:
            return None
        if self._lag is None:
            self._lag = len(out) - 1
        return out[max(0, len(out) - 1 - self._lag)]

    def _refuse_unclear(self) -> None:
        """Refuses a run where its position leaves open which chunk it is on, and chunks of two batches could mix."""
        if self._lag is None or all(ticket.whole for ticket in self._out):
            return
        expected = {0} if self._exhausted else {1} if self._lag else {0, 1}
        again = self._exhausted and self._worked_on is not None and not self._worked_on.used
        if again or self._since_use not in expected:
            raise NotPrivate(
                "which chunk of a batch the model runs on cannot be known: the loop skips chunks, runs the model twice "
                "on one, or fetches now more and now fewer of them ahead, and its tensors are not those of the loader. "
                "Run the model once on each chunk, in the order in which the loader gives them"
            )

    def _others(self) -> list[Tickets]:
        """Of other runs in this process."""
        return [each for each in list(_every) if each is not self] if len(_every) > 1 else []

    def _holding(self, places: set[object]) -> list[Ticket]:
        """The chunks with a tensor at one of these places."""
        found = []
        for ticket in list(self._out):
            for ref in ticket.tensors:
                if (t := ref()) is not None and not places.isdisjoint(_places(t)):
                    found.append(ticket)
                    break
        return found

    def _recognised(self, found: list[Ticket], inputs: list[Tensor]) -> Ticket | None:
        """The one chunk whose own tensors these are. Where several are (the very same tensor twice), nobody knows."""
        if not found and len(self._out) > 1:
            found = [ticket for ticket in self._out if any(_equal(a, b) for a in ticket.held for b in inputs)]
        if len(found) != 1:
            return None
        (ticket,) = found
        if not ticket.used:
            here = self._out.index(ticket)
            for number, other in enumerate(self._out):
                other.passed = number < here
            if not self._exhausted:
                self._lag = len(self._out) - 1 - here
        return ticket

    def _pass_by(self) -> None:
        """The loop takes chunks in order: what lies before the one it works on is behind it.

        A ticket goes when its tensors are gone: until then they must be recognised, if they are used again.
        """
        if self._lag is not None and not self._exhausted:
            for ticket in list(self._out)[: max(0, len(self._out) - 1 - self._lag)]:
                ticket.passed = True
        while self._out and self._out[0].passed and not any(True for _ in _alive(self._out[0])):
            self._out.popleft()

    def _tell_of_missed_steps(self) -> None:
        if not self._told:
            self._told = True
            warnings.warn(MISSED, stacklevel=7)  # in the training loop, if it is optimizer.step() that found out


_every: weakref.WeakSet[Tickets] = weakref.WeakSet()


def _alive(ticket: Ticket) -> Iterable[Tensor]:
    return (t for t in (ref() for ref in ticket.tensors) if t is not None)


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


def _places(t: Tensor) -> list[object]:
    """By which it is recognised: itself, and where its numbers lie in memory, which views of it share."""
    try:
        return [id(t), (t.device, t.data_ptr())] if t.numel() else [id(t)]
    except RuntimeError:  # tensors without memory of their own, as tracing makes them
        return [id(t)]
