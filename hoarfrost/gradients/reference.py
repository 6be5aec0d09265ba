"""What a tensor of a model was, to be compared with what it is: by its numbers, or by fingerprints of large ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from hoarfrost.kept import SMALL, Entry, bits, plain, same, version

SLICE = 1 << 16  # elements of a slice of a tensor that is too large to be copied, and compared by fingerprints


@dataclass
class Reference:
    """What an entry was: the object, where its numbers lie, and the numbers, or fingerprints of slices of them.

    A slice whose fingerprint is None was not looked at yet: what it holds then is what shall stay.
    """

    entry: Entry
    version: int
    pointer: int
    copy: Tensor | None
    fingerprints: list[int | None]

    @classmethod
    def of(cls, entry: Entry, *, later: bool = False) -> Reference:
        """Of what it is now; ``later``: numbers of large tensors are read when it is their turn."""
        t = entry.tensor
        if t is None or not plain(t):
            return cls(entry, version(t), 0, None, [])
        if t.numel() <= SMALL:
            return cls(entry, version(t), t.data_ptr(), t.detach().clone(), [])
        slices = range(-(-t.numel() // SLICE))
        return cls(entry, version(t), t.data_ptr(), None, [None if later else _fingerprint(t, k) for k in slices])

    def follow(self, now: Tensor | None) -> Reference:
        """Of the same numbers, in what is there now."""
        before = self.entry.tensor
        entry = self.entry if now is before else self.entry._replace(tensor=now)
        if now is None or before is None or now.dtype != before.dtype or now.shape != before.shape or not plain(now):
            return Reference.of(entry)
        return Reference(entry, version(now), now.data_ptr(), self.copy, self.fingerprints)

    def touched(self, now: Tensor | None) -> bool:
        """Whether it may have been written to: another object, other memory, or another version."""
        t = self.entry.tensor
        if now is not t:
            return True
        return t is not None and (version(t) != self.version or (plain(t) and t.data_ptr() != self.pointer))

    def holds(self, now: Tensor | None, slices: Iterable[int] | None = None) -> bool:
        """Whether it holds the same numbers, in these slices or everywhere; a cast to another type is no change."""
        t = self.entry.tensor
        if now is None or t is None or not plain(now):
            return now is t
        if self.copy is not None:
            return same(now, self.copy if now.dtype == self.copy.dtype else self.copy.to(now.dtype))
        if not self.fingerprints or now.shape != t.shape:
            return False
        if now.dtype != t.dtype:
            return True
        for number in range(len(self.fingerprints)) if slices is None else slices:
            found, before = _fingerprint(now, number), self.fingerprints[number]
            if before not in (None, found):
                return False
            self.fingerprints[number] = found
        return True

    @property
    def pieces(self) -> int:
        """In how many comparisons it is compared."""
        return max(1, len(self.fingerprints))


def _fingerprint(t: Tensor, number: int) -> int:
    """Of the slice of this number: a sum of its bits with odd weights, which depends on every one of them."""
    numbers = bits(t.detach().reshape(-1)[number * SLICE : (number + 1) * SLICE]).long()
    weights = torch.arange(1, len(numbers) + 1, device=t.device) * -7046029254386353131 | 1
    return int((numbers * weights).sum())
