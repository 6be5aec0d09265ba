"""The contract of a freezer: from the number of a step to the coordinates that are live in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hoarfrost.errors import InvalidValue
from hoarfrost.info import RunInfo
from hoarfrost.masks import Live, intersect, resolve_mask

if TYPE_CHECKING:
    from hoarfrost.budget import Snapshot, Wanted
    from hoarfrost.query import Query


class Freezer(ABC):
    """Decides which coordinates are live in each step. One of your own needs `live` alone.

    >>> class EverySecondStep(Freezer):
    ...     '''The first parameter is frozen in every second step.'''
    ...     def live(self, step, info):
    ...         first = next(iter(info.shapes))
    ...         return {name: name != first or step % 2 == 0 for name in info.shapes}

    Guarantees:
        A freezer sees step numbers, names and shapes, the weights before training, noisy gradients that have been paid
        for if it asks for them (`observes`), and what its own releases return (`releases`, `prepare`). What it decides
        from these costs no further privacy.
    """

    velocity_flows = False  # momentum may go on moving frozen coordinates
    clips_everything = False  # the norm is taken over all coordinates, and the mask comes after clipping
    observes = False  # wants every released gradient, with noise on all coordinates

    def __repr__(self) -> str:
        """In words; a checkpoint goes on with a freezer of the same ones."""
        return f"{type(self).__name__}()"

    @abstractmethod
    def live(self, step: int, info: RunInfo) -> Live:
        """The live coordinates of step ``step`` (from 0). A name that is left out is frozen."""

    def key(self, step: int, info: RunInfo) -> Hashable:
        """Changes whenever `live` does: as long as it stays the same, `live` is not asked again.

        By default it never is the same: `live` is asked before every forward pass, and before the update.
        """
        return object()

    def check(self, info: RunInfo) -> None:  # noqa: B027 - most need not
        """Refuses what cannot be: when the run is made, and again when the order of the layers is known."""

    def start(self, weights: Mapping[str, Tensor]) -> None:  # noqa: B027 - most need not
        """Sees the weights before the first step, by name, and may change them in place.

        What it keeps of an earlier run it forgets. They are the model's own: what shall last must be copied.
        """

    def observe(self, step: int, gradients: Mapping[str, Tensor], info: RunInfo) -> None:  # noqa: B027 - most need not
        """Sees what a step released, if `observes`."""

    def state(self) -> dict[str, Tensor]:
        """What must be kept in a checkpoint; most freezers compute everything anew."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:  # noqa: B027 - most need not
        """Takes back what `state` gave."""

    def fresh(self) -> Freezer:
        """For a run of its own: itself, or a copy if it keeps something from `start` on."""
        return self

    def releases(self, info: RunInfo) -> tuple[Wanted, ...]:
        """What it will release of its own, and before which step; said before anything is read.

        The noise of the steps is calibrated for what these leave of the budget, and a ledger keeps room for them. Who
        says what share of epsilon they may have, and not their noise, states `hoarfrost.budget.PlannedShare`. A
        freezer that ignores the data releases nothing. What was taken from private data without noise is stated as
        `hoarfrost.budget.Unprotected`: nothing is private then, and every statement says so.
        """
        return ()

    def prepare(self, number: int, query: Query, info: RunInfo) -> None:
        """Makes the release of that number (from 0, in the order of `releases`) when its step has come.

        The query is the only way to the data: it charges for the release before it reads anything, and returns noisy
        sums only (`hoarfrost.query.Query`). What is found is kept in `state`: a run that goes on from a checkpoint with
        this state does not look again.
        """
        raise InvalidValue(f"{self!r} declares a release, and has no prepare() that makes it")

    def spent(self) -> tuple[Snapshot, ...]:
        """What was spent on the private data, before this run, for what it was told.

        It counts in the run as if the run had released it, in epsilon, in what the noise of the steps is calibrated
        for, and in the ledger, which is charged once for each id.
        """
        return ()

    def public(self) -> tuple[object, ...]:
        """Data sets that it has learned from without privacy, since it was told that they are public."""
        return ()

    def __and__(self, other: Freezer) -> Freezer:
        """Live is what is live in both."""
        return Both(self, other)


class Both(Freezer):
    """Two freezers at once: a coordinate moves if both let it.

    Both must mean the same by frozen, or nobody could say what a coordinate does that one of them freezes.
    """

    def __init__(self, first: Freezer, second: Freezer) -> None:
        self.parts = (check_freezer(first), check_freezer(second))
        for trait, what in (("velocity_flows", "lets velocity flow"), ("clips_everything", "freezes after clipping")):
            if getattr(first, trait) != getattr(second, trait):
                odd, other = (first, second) if getattr(first, trait) else (second, first)
                raise InvalidValue(f"{odd!r} {what} and {other!r} does not: they cannot be combined")
        self.velocity_flows, self.clips_everything = first.velocity_flows, first.clips_everything
        self.observes = any(part.observes for part in self.parts)

    def __repr__(self) -> str:
        return " & ".join(map(repr, self.parts))

    def live(self, step: int, info: RunInfo) -> Live:
        one, two = (part.live(step, info) for part in self.parts)
        unknown = {name: True for name in (*one, *two) if name not in info.shapes}  # for `FreezeController` to refuse
        masks = {
            name: intersect(one.get(name, False), two.get(name, False), shape) for name, shape in info.shapes.items()
        }
        return masks | unknown

    def key(self, step: int, info: RunInfo) -> Hashable:
        return tuple(part.key(step, info) for part in self.parts)

    def check(self, info: RunInfo) -> None:
        for part in self.parts:
            part.check(info)
        # In the last step most is frozen. What depends on what is still to be found is refused in its own step.
        if info.ordered and info.steps is not None and not self.observes and not self.releases(info):
            live = self.live(info.steps - 1, info)
            if not any(resolve_mask(live.get(name, False), torch.empty(shape)) for name, shape in info.shapes.items()):
                raise InvalidValue(f"{self!r} leaves nothing to train in the last step")

    def fresh(self) -> Freezer:
        return Both(*(part.fresh() for part in self.parts))

    def start(self, weights: Mapping[str, Tensor]) -> None:
        for part in self.parts:
            part.start(weights)

    def observe(self, step: int, gradients: Mapping[str, Tensor], info: RunInfo) -> None:
        for part in self.parts:
            if part.observes:
                part.observe(step, gradients, info)

    def state(self) -> dict[str, Tensor]:
        return {f"{n}.{name}": value for n, part in enumerate(self.parts) for name, value in part.state().items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        for n, part in enumerate(self.parts):
            part.load_state({k.removeprefix(f"{n}."): v for k, v in state.items() if k.startswith(f"{n}.")})

    def releases(self, info: RunInfo) -> tuple[Wanted, ...]:
        return tuple(release for part in self.parts for release in part.releases(info))

    def prepare(self, number: int, query: Query, info: RunInfo) -> None:
        for part in self.parts:
            own = len(part.releases(info))
            if number < own:
                return part.prepare(number, query, info)
            number -= own

    def spent(self) -> tuple[Snapshot, ...]:
        return tuple(each for part in self.parts for each in part.spent())

    def public(self) -> tuple[object, ...]:
        return tuple(data for part in self.parts for data in part.public())


def check_freezer(freezer: object) -> Freezer:
    """Refuses what is no freezer."""
    if not isinstance(freezer, Freezer):
        raise InvalidValue(f"a freezer is wanted, such as hoarfrost.freeze.Random(rate=0.9), and not {freezer!r}")
    return freezer
