"""Poisson sampling: what it draws and what it costs, from one object."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hoarfrost import validate
from hoarfrost.noise import Keystream

_CHUNK = 1 << 16  # records decided at a time; a chunk of the keystream holds 8 bytes for each


@dataclass(frozen=True, kw_only=True)
class Poisson:
    """Every record is in a step's batch with probability q, independently of other records and other steps.

    Args:
        sample_rate: q, in (0, 1].
        size: N, the number of records.

    Guarantees:
        A record's inclusion is the comparison of 64 fresh bits of a cryptographic keystream with q·2^64: its
        probability is q itself, or less than q by under 2^-64 where q has finer bits than that. Nothing is
        rounded to a batch size. A run accounts for this very q (`hoarfrost.private.assemble` refuses another).

    >>> sampling = Poisson(sample_rate=0.1, size=99)
    >>> round(sampling.expected_batch, 10)
    9.9
    >>> sampling.draw(Keystream("example", seed=0)).dtype
    dtype('int64')
    """

    sample_rate: float
    size: int

    def __post_init__(self) -> None:
        validate.rate(sample_rate=self.sample_rate)
        validate.whole(size=self.size)

    @property
    def expected_batch(self) -> float:
        """q·N: a real number and a public constant, which a clipped sum is divided by."""
        return self.sample_rate * self.size

    def draw(self, stream: Keystream) -> npt.NDArray[np.int64]:
        """One step's records: indices in ascending order, possibly none. Takes the stream's next draw."""
        draw = stream.next_draw()
        if self.sample_rate == 1:
            return np.arange(self.size, dtype=np.int64)
        threshold = np.uint64(int(math.ldexp(self.sample_rate, 64)))
        found = []
        for chunk, start in enumerate(range(0, self.size, _CHUNK)):
            records = min(_CHUNK, self.size - start)
            words = np.frombuffer(stream.read(8 * records, draw, chunk), dtype="<u8")
            found.append(np.flatnonzero(words < threshold) + start)
        return np.concatenate(found).astype(np.int64, copy=False)
