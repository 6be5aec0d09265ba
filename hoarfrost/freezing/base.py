"""The contract of a freezer: from the number of a step to the coordinates that are live in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hoarfrost.errors import InvalidValue
from hoarfrost.masks import Live, intersect, resolve_mask

if TYPE_CHECKING:
    from hoarfrost import budget


@dataclass(frozen=True)
class Facts:
    """What a freezer may know: the shape of the model and the plan of the run. No data, and no gradients."""

    shapes: Mapping[str, torch.Size]  # of the parameters that the optimizer moves, by name
    layers: tuple[tuple[str, ...], ...]  # the parameters of each layer, in the order in which the model uses the layers
    steps: int | None  # that the run is planned for
    sample_rate: float
    steps_within: Callable[[float], int]  # how many steps an epsilon pays for
    ordered: bool = True  # False before the model has run: then the layers are as it lists them

    def epoch_of(self, step: int) -> int:
        """The epoch that a step belongs to, both counted from 0."""
        epoch = int(step * self.sample_rate)
        while self.first_step(epoch + 1) <= step:
            epoch += 1
        while self.first_step(epoch) > step:
            epoch -= 1
        return epoch

    def first_step(self, epoch: int) -> int:
        """The step that an epoch begins with, as the loader counts (`Poisson.epoch_boundary`)."""
        return round(epoch / self.sample_rate)


class Freezer(ABC):
    """Decides which coordinates are live in each step. One of your own needs `live` alone.

    >>> class EverySecondStep(Freezer):
    ...     '''The first parameter rests in every second step.'''
    ...     def live(self, step, facts):
    ...         first = next(iter(facts.shapes))
    ...         return {name: name != first or step % 2 == 0 for name in facts.shapes}

    Guarantees:
        A freezer sees step numbers, names and shapes, the weights before training, and, if it asks for them
        (`observes`), noisy gradients that have been paid for. What it decides from these costs no privacy.
    """

    velocity_flows = False  # momentum may go on moving frozen coordinates
    clips_everything = False  # the norm is taken over all coordinates, and the mask comes after clipping
    observes = False  # wants every released gradient, with noise on all coordinates

    def __repr__(self) -> str:
        """In words; a checkpoint goes on with a freezer of the same ones."""
        return f"{type(self).__name__}()"

    @abstractmethod
    def live(self, step: int, facts: Facts) -> Live:
        """The live coordinates of step ``step`` (from 0). A name that is left out is frozen."""

    def key(self, step: int, facts: Facts) -> Hashable:
        """Changes whenever `live` does: as long as it stays the same, `live` is not asked again.

        By default it never is the same: `live` is asked before every forward pass, and before the update.
        """
        return object()

    def check(self, facts: Facts) -> None:  # noqa: B027 - most need not
        """Refuses what cannot be: when the run is made, and again when the order of the layers is known."""

    def start(self, weights: Mapping[str, Tensor]) -> None:  # noqa: B027 - most need not
        """Sees the weights before the first step, by name, and may change them in place.

        What it keeps of an earlier run it forgets. They are the model's own: what shall last must be copied.
        """

    def observe(self, step: int, gradients: Mapping[str, Tensor], facts: Facts) -> None:  # noqa: B027 - most need not
        """Sees what a step released, if `observes`."""

    def state(self) -> dict[str, Tensor]:
        """What must be kept in a checkpoint; most freezers compute everything anew."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:  # noqa: B027 - most need not
        """Takes back what `state` gave."""

    def fresh(self) -> Freezer:
        """For a run of its own: itself, or a copy if it keeps something from `start` on."""
        return self

    def events(self) -> tuple[budget.Release, ...]:
        """Releases of its own, those behind a loaded state too. A schedule that ignores the data makes none.

        They are charged before the first step, and the noise of the steps is calibrated for what they leave. What was
        released is known by the freezer's words (``repr``): the same words again are the same release, charged once. A
        freezer that looks at the data anew needs words that say so.
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

    Both must mean the same by resting, or nobody could say what a coordinate does that rests by one of them.
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

    def live(self, step: int, facts: Facts) -> Live:
        one, two = (part.live(step, facts) for part in self.parts)
        unknown = {name: True for name in (*one, *two) if name not in facts.shapes}  # for `Switch` to refuse
        masks = {
            name: intersect(one.get(name, False), two.get(name, False), shape) for name, shape in facts.shapes.items()
        }
        return masks | unknown

    def key(self, step: int, facts: Facts) -> Hashable:
        return tuple(part.key(step, facts) for part in self.parts)

    def check(self, facts: Facts) -> None:
        for part in self.parts:
            part.check(facts)
        # In the last step most is frozen. What rests for other reasons then is found in its own step.
        if facts.ordered and facts.steps is not None and not self.observes:
            live = self.live(facts.steps - 1, facts)
            if not any(resolve_mask(live.get(name, False), torch.empty(shape)) for name, shape in facts.shapes.items()):
                raise InvalidValue(f"{self!r} leaves nothing to train in the last step")

    def fresh(self) -> Freezer:
        return Both(*(part.fresh() for part in self.parts))

    def start(self, weights: Mapping[str, Tensor]) -> None:
        for part in self.parts:
            part.start(weights)

    def observe(self, step: int, gradients: Mapping[str, Tensor], facts: Facts) -> None:
        for part in self.parts:
            if part.observes:
                part.observe(step, gradients, facts)

    def state(self) -> dict[str, Tensor]:
        return {f"{n}.{name}": value for n, part in enumerate(self.parts) for name, value in part.state().items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        for n, part in enumerate(self.parts):
            part.load_state({k.removeprefix(f"{n}."): v for k, v in state.items() if k.startswith(f"{n}.")})

    def events(self) -> tuple[budget.Release, ...]:
        return tuple(event for part in self.parts for event in part.events())

    def public(self) -> tuple[object, ...]:
        return tuple(data for part in self.parts for data in part.public())


def check_freezer(freezer: object) -> Freezer:
    """Refuses what is no freezer."""
    if not isinstance(freezer, Freezer):
        raise InvalidValue(f"a freezer is wanted, such as hoarfrost.freeze.Random(rate=0.9), and not {freezer!r}")
    return freezer
