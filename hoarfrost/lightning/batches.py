"""The loader that a Lightning Trainer's loop iterates over, and where the loop is in what it has fetched."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from hoarfrost.run import Private


class Batches:
    """The loader that the Trainer's loop iterates over: chunk by chunk, and an epoch at a time."""

    def __init__(self, run: Private, trainer: Any) -> None:
        self._loader, self._trainer = run.loader, trainer
        self.dataset = run.loader.dataset
        self._fetched: deque[bool] = deque()  # whether each of the chunks that the loop has fetched ends its batch
        self.whole = True  # whether the one that it works on does
        self._loader.on_chunk = lambda chunk: self._fetched.append(chunk.last)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        if self._loader.steps is not None and self._loader.steps_drawn >= self._loader.steps:
            self._trainer.should_stop = True  # as after a crash, if the steps that were lost leave fewer
            return
        self._fetched.clear()
        yield from self._loader

    def come_to_next(self) -> None:
        """The loop works on the next of what it has fetched."""
        self.whole = self._fetched.popleft()


def count_steps(loop: dict[str, Any]) -> None:
    """In what a checkpoint says of the fit loop, counts of chunks become counts of steps: how many chunks there were
    tells the size of the batches, which is private."""
    progress = loop["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]
    for counted in (loop["epoch_loop.batch_progress"], progress["zero_grad"]):
        for span in ("total", "current"):
            chunks, steps = counted[span], progress["step"][span]["ready"]
            more = chunks["ready"] - steps if steps else 0
            counted[span] = {name: count - more for name, count in chunks.items()}
