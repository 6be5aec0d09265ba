"""PSEL: from noisy magnitudes, round after round, to the partitions that are trained. It sees nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hoarfrost.errors import InvalidValue
from hoarfrost.freezing.estimate import estimate
from hoarfrost.freezing.partitions import Layout, Partition


@dataclass(frozen=True)
class Ranking:
    """What is known after some rounds.

    Args:
        chosen: the partitions that will be trained.
        left: those that may still be chosen, and take part in the next round.
        magnitudes: of each partition that was measured, by name: the mean over examples, as estimated.
        errors: their standard errors. What sampling adds is not in them, only the noise.
    """

    chosen: tuple[Partition, ...]
    left: tuple[Partition, ...]
    magnitudes: dict[str, float]
    errors: dict[str, float]


@dataclass(frozen=True)
class Selecting:
    """Algorithm PSEL of the paper. Everything in it is post-processing of noisy magnitudes.

    In each round but the last those partitions are chosen whose magnitude is above that of all which will have to be
    frozen by so many standard errors, within a share of the room that grows with the rounds. In the last round the
    largest ones are chosen. A partition that does not fit is skipped, and takes no part in further rounds. If all that
    are left fit, they are chosen.

    Args:
        layout: the partitions and the room.
        rounds: how many there will be (T).
        gap: so many standard errors (ν).
        sensitivity: how far one example moves the magnitudes of these partitions.
        noise_multiplier: of every round.
        expected_batch: how many examples a round is expected to look at.
    """

    layout: Layout
    rounds: int
    gap: float
    sensitivity: Callable[[Sequence[Partition]], float]
    noise_multiplier: float
    expected_batch: float

    def after(self, released: Sequence[Sequence[float]]) -> Ranking:
        """What follows from the rounds so far: for each the noisy magnitudes of the partitions that were left.

        >>> parts = tuple(Partition(name, (name,), 10) for name in "abcd")
        >>> selecting = Selecting(Layout((), parts, (), 20, 40), 2, 5.0, lambda left: 1.0, 0.1, 10.0)
        >>> [each.name for each in selecting.after([[9.0, 1.0, 5.0, 2.0]]).chosen]
        ['a']
        >>> [each.name for each in selecting.after([[9.0, 1.0, 5.0, 2.0], [2.0, 9.0, 4.0]]).chosen]
        ['a', 'c']
        """
        place = {each.name: n for n, each in enumerate(self.layout.candidates)}
        left: tuple[Partition, ...] = self.layout.candidates
        chosen: tuple[Partition, ...] = ()
        observed: list[np.ndarray] = []
        sensitivities: list[float] = []
        ranking = Ranking((), left, {}, {})
        for number, values in enumerate(released, 1):
            if len(values) != len(left):
                raise InvalidValue(
                    f"round {number} is said to have released {len(values)} magnitudes of {len(left)} partitions: the "
                    "state is of another model"
                )
            if left:
                row = np.full(len(place), np.nan)
                row[[place[each.name] for each in left]] = values
                observed.append(row)
                sensitivities.append(self.sensitivity(left))
            found = estimate(observed, sensitivities, self.expected_batch)
            magnitudes = {name: float(found.magnitudes[n]) for name, n in place.items()}
            errors = {name: float(found.per_noise[n]) * self.noise_multiplier for name, n in place.items()}
            chosen, left = self._narrowed(number, chosen, left, magnitudes, errors)
            ranking = Ranking(chosen, left, magnitudes, errors)
        return ranking

    def _narrowed(
        self,
        number: int,
        chosen: tuple[Partition, ...],
        left: tuple[Partition, ...],
        magnitudes: dict[str, float],
        errors: dict[str, float],
    ) -> tuple[tuple[Partition, ...], tuple[Partition, ...]]:
        """The partitions chosen after one more round, and those that are left for the next."""
        room, held = self.layout.room, sum(each.size for each in chosen)
        upwards = sorted(left, key=lambda each: magnitudes[each.name])
        edge = self._edge(upwards, sum(each.size for each in left) - (room - held), magnitudes)
        last = number == self.rounds
        for each in reversed(upwards):
            clear = last or magnitudes[each.name] > edge + self.gap * errors[each.name]
            if clear and (held + each.size) * self.rounds <= number * room:
                chosen, held = (*chosen, each), held + each.size
        left = tuple(each for each in left if each not in chosen and each.size <= room - held)
        if sum(each.size for each in left) <= room - held:  # nothing is left to find out
            return (*chosen, *left), ()
        return chosen, left

    def _edge(self, upwards: Sequence[Partition], frozen: int, magnitudes: dict[str, float]) -> float:
        """The largest magnitude of those that must be frozen, beginning with the smallest."""
        edge = -np.inf
        for each in upwards:
            if frozen <= 0:
                break
            edge, frozen = magnitudes[each.name], frozen - each.size
        return float(edge)
