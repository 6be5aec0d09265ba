"""Poisson batches one after the other, each as its chunks: for trainers that count batches, where a loader counts
chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hoarfrost.sampling.loader import PoissonLoader
from hoarfrost.tickets import Chunk

_END = object()


class LogicalBatches:
    """The batches of a run, epoch after epoch; which chunk completes a batch is known when it is handed over.

    Args:
        loader: whose batches these are. It has one reader at a time: this one.

    Guarantees:
        Nothing is drawn before it is asked for. A batch that was broken off is given up when the next one is asked
        for: it was charged, and none of its chunks is handed over as part of another batch.

    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.arange(100))
    >>> batches = LogicalBatches(PoissonLoader(data, batch_size=20, max_physical_batch=8, seed=1))
    >>> [[len(rows) for (rows,) in batches.next()] for _ in range(3)]
    [[8, 7], [8, 8, 7], [8, 5]]
    """

    def __init__(self, loader: PoissonLoader) -> None:
        self.loader = loader
        self.loader.on_chunk = self._see
        self._epoch: Iterator[Any] | None = None
        self._whole = True  # the last chunk that was handed over completed its batch

    def next(self) -> Iterator[Any]:
        """The chunks of the batch that comes next, drawn when the first of them is asked for.

        Raises `BudgetSpent` there, if the run has no step left.
        """
        if not self._whole:  # a new iteration of the loader forgets what is left of it
            self._epoch, self._whole = None, True
        yield self._first()
        while not self._whole:
            yield next(self._epoch)  # type: ignore[arg-type] # which _first has begun

    @property
    def exhausted(self) -> bool:
        """Whether all the steps that the run may have are drawn."""
        return self.loader.steps is not None and self.loader.steps_drawn >= self.loader.steps

    def _first(self) -> Any:
        while True:
            if self._epoch is None:
                self._epoch = iter(self.loader)
            chunk = next(self._epoch, _END)
            if chunk is not _END:
                return chunk
            self._epoch = None

    def _see(self, chunk: Chunk) -> None:
        self._whole = chunk.last
