"""Logical batches cut into chunks that fit in memory."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from hoarfrost.noise import Keystream
from hoarfrost.sampling.poisson import Poisson
from hoarfrost.tickets import Chunk


@dataclass(kw_only=True)
class Draws:
    """One iteration's batches, in order: drawn when asked for, remembered until they are handed over.

    A DataLoader with workers asks ahead of what it hands over, so the two ends are apart: `__iter__` is the
    end that is asked, `waiting` the end that hands over. Chunks without examples are in `waiting` only.
    """

    poisson: Poisson
    stream: Keystream
    steps: int
    chunk_examples: int | None
    views: int
    waiting: deque[Chunk] = field(default_factory=deque)
    handed_over: int = 0  # whole batches
    between_batches: bool = True

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self.steps):
            examples = self.poisson.draw(self.stream).tolist()
            most = self.chunk_examples or max(1, len(examples))
            for start in range(0, max(1, len(examples)), most):
                part = examples[start : start + most]
                self.waiting.append(Chunk(examples=len(part), first=start == 0, last=start + most >= len(examples)))
                if part:
                    yield [index for index in part for _ in range(self.views)]
