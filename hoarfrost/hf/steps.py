"""What the loop of a `transformers.Trainer` iterates over instead of batches: the steps of a private run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from hoarfrost.sampling import PoissonLoader
from hoarfrost.sampling.logical import LogicalBatches


class Part(dict[str, Any]):
    """One of the batches that a Trainer accumulates for a step, as far as its loop can see: of a Poisson batch the next
    chunk, and the last part has all that are left.

    It is an empty dictionary for who looks into it to count tokens, labels or operations: such numbers are private.
    """

    def __init__(self, chunks: Iterator[Any], last: bool) -> None:
        super().__init__()
        self._chunks, self._last = chunks, last

    def chunks(self) -> Iterator[Any]:
        """Draws them, for the first and only time."""
        for chunk in self._chunks:
            yield chunk
            if not self._last:
                return


class Steps(IterableDataset[Part]):
    """One epoch as a Trainer counts it: so many steps, of so many parts each.

    Nothing is drawn when the loop fetches a part, but when it trains on it. A loop may therefore fetch ahead, or skip
    what it takes for the batches of an earlier process (`resume_from_checkpoint`).

    Args:
        loader: the private one.
        steps: in an epoch.
        parts: the Trainer's `gradient_accumulation_steps`.
    """

    def __init__(self, loader: PoissonLoader, steps: int, parts: int) -> None:
        self.batches = LogicalBatches(loader)
        self.steps, self.parts = steps, parts

    def __len__(self) -> int:
        return self.steps * self.parts

    def __iter__(self) -> Iterator[Part]:
        for _ in range(self.steps):
            if self.batches.exhausted:  # as after a crash, if the steps that were lost leave fewer
                return
            chunks = self.batches.next()
            for number in range(1, self.parts + 1):
                yield Part(chunks, last=number == self.parts)

    def loader(self) -> DataLoader[Part]:
        """What hands the parts to the Trainer as they are."""
        return DataLoader(self, batch_size=None, collate_fn=_as_it_is)


def _as_it_is(part: Any) -> Any:
    return part
