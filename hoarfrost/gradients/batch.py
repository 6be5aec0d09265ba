"""Which examples may contribute to the step that is under way, and what they add up to so far."""

from __future__ import annotations

import os
from dataclasses import dataclass

from torch import Tensor, nn

from hoarfrost.errors import NotPrivate
from hoarfrost.sampling import Chunk


@dataclass
class ClippedSum:
    """What one logical batch adds up to, and how far one example can have moved it."""

    sums: dict[nn.Parameter, Tensor]
    sensitivity: tuple[float, ...]


class Batch:
    """One logical batch: announced in chunks, covered by backward passes, released once.

    Guarantees:
        An announced example is covered by at most one backward pass, and sums of different batches never meet: one
        example moves the released sum by at most what clipping allows for one gradient.
    """

    def __init__(self) -> None:
        self.sums: dict[nn.Parameter, Tensor] = {}
        self.chunk: Chunk | None = None
        self.owner = os.getpid()  # the process that the chunk was handed to
        self.covered = 0  # examples of the chunk that backward passes have reached
        self.unreleased = False  # a whole batch was summed, and the next one began before anyone stepped

    def receive(self, chunk: Chunk) -> None:
        """Announces the examples that the next backward passes may cover."""
        if chunk.first:
            self.unreleased = self.chunk is not None and self.chunk.last and bool(self.sums)
            if not self.unreleased:
                self.sums = {}  # a batch broken off half-way is forgotten: nothing of it was released
        self.chunk, self.covered, self.owner = chunk, 0, os.getpid()

    def cover(self, examples: int, chunk: Chunk | None) -> Chunk:
        """Accounts for a backward pass over ``examples`` examples that were run when ``chunk`` was the newest.

        Refuses one that would count an example twice, or in a step that it was not drawn for.
        """
        if self.chunk is None or chunk is not self.chunk:
            raise NotPrivate(
                "backward() on examples that the private loader did not draw (or whose step was already taken). Take "
                "every training batch from the loader that make_private returned; use torch.no_grad() to evaluate."
            )
        if self.unreleased:
            raise NotPrivate(
                "two Poisson batches before one optimizer.step(): an example may be in both, and would count twice. "
                "Step once for each batch; to accumulate over smaller pieces of one, use max_physical_batch=."
            )
        if self.chunk.examples and self.covered + examples > self.chunk.examples:
            raise NotPrivate(
                "backward() over more examples than are left of those drawn: an example's gradient may enter a step "
                "only once. Add losses up before one backward()."
            )
        self.covered += examples
        return self.chunk

    def discard(self) -> None:
        """What `zero_grad` means: drops sums that no step will use. Chunks of a batch still under way are kept."""
        if self.unreleased or (self.chunk is not None and self.chunk.last and self.covered):
            self.sums, self.unreleased = {}, False

    def release(self, sensitivity: tuple[float, ...]) -> ClippedSum | None:
        """The clipped sum of the whole batch, once; None while chunks of it are still to come."""
        if self.chunk is None:
            raise NotPrivate(
                "optimizer.step() without a batch: every step needs a Poisson batch of its own, drawn since the last "
                "step from the loader that make_private returned."
            )
        if self.owner != os.getpid():
            raise NotPrivate(
                "optimizer.step() in another process than the one that drew the batch: a fork would release the same "
                "step twice. Let the process that trains draw its own batches."
            )
        if not self.chunk.last:
            return None
        result = ClippedSum(self.sums, sensitivity)
        self.sums, self.chunk = {}, None
        return result
