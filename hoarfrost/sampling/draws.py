"""Logical batches cut into chunks that fit in memory."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from hoarfrost.groups import Groups
from hoarfrost.noise import Keystream
from hoarfrost.sampling.lengths import Lengths
from hoarfrost.sampling.people import People
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
    people: People | None = None
    lengths: Lengths | None = None
    waiting: deque[tuple[Chunk, list[int]]] = field(default_factory=deque)  # with the numbers of its rows
    handed_over: int = 0  # whole batches
    between_batches: bool = True

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self.steps):
            drawn = brought(self.poisson, self.people, self.stream)
            if self.lengths is not None:
                drawn = self.lengths.in_order(drawn)
            most = self.chunk_examples or max(1, len(drawn))
            for start in range(0, max(1, len(drawn)), most):
                part = drawn[start : start + most]
                first, last = start == 0, start + most >= len(drawn)
                drawn_rows = [row for rows in part for row in rows for _ in range(self.views)]
                chunk = Chunk(examples=len(part), first=first, last=last, groups=self._groups(part))
                self.waiting.append((chunk, drawn_rows))
                if part:
                    yield drawn_rows

    def _groups(self, part: list[list[int]]) -> Groups | None:
        """Whose the rows of a chunk are, where that does not follow from the number of views."""
        if self.people is None or self.people.per_person == 1:
            return None
        return Groups(self.people.per_person * self.views, [len(rows) * self.views for rows in part])


def brought(poisson: Poisson, people: People | None, stream: Keystream) -> list[list[int]]:
    """The rows of one step's batch, for each example (one row) or each person that was drawn."""
    drawn = poisson.draw(stream).tolist()
    return [[row] for row in drawn] if people is None else people.bring(drawn, stream)
