"""What is known to have been charged for some weights: steps by their counter, other releases by their id."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from hoarfrost.budget.events import Event, Gaussian, Release, by_kind
from hoarfrost.budget.snapshot import Counters
from hoarfrost.errors import InvalidValue


@dataclass
class Charges:
    """Steps by the id of their counter, releases in addition to them by theirs, and which ids are of earlier stages.

    Guarantees:
        Learning lowers nothing: for every id the larger count stands, in whichever order and however often it is told.
        An id is of an earlier stage only as long as everybody who says of which stage it is says so.

    >>> known = Charges()
    >>> known.learn({"a": Gaussian(noise_multiplier=2.0, steps=5)}, {}, earlier={"a"})
    >>> known.learn({"a": Gaussian(noise_multiplier=2.0, steps=3), "b": Gaussian(noise_multiplier=2.0, steps=1)}, {})
    >>> [event.steps for event in known.events()], [event.steps for event in known.events(earlier=False)]
    ([6], [1])
    """

    counters: dict[str, Gaussian] = field(default_factory=dict)
    releases: dict[str, Release] = field(default_factory=dict)
    earlier: frozenset[str] = frozenset()

    def learn(
        self,
        counters: Counters,
        releases: Mapping[str, Release],
        earlier: Collection[str] | None = None,
        *,
        own: str | None = None,
    ) -> None:
        """Adds what somebody else knows.

        Args:
            earlier: of these ids, those that are of earlier stages; None from somebody who does not know of stages.
            own: the counter of whoever learns, which is of this stage whatever is said.
        """
        for id, event in counters.items():
            if replace(self.counters.get(id, event), steps=0) != replace(event, steps=0):
                raise InvalidValue(f"two kinds of steps with the same id: {self.counters[id]}, and {event}")
        told, known = {*counters, *releases}, {own, *self.counters, *self.releases}
        before = self.earlier & known
        said = before if earlier is None else told.intersection(earlier)
        self.earlier = frozenset(
            id for id in before | said if (id in said or id not in told) and (id in before or id not in known)
        )
        for id, event in counters.items():
            self.counters[id] = larger(self.counters.get(id, event), event)
        self.releases = {**releases, **self.releases}

    def events(self, *, earlier: bool | None = None) -> tuple[Event, ...]:
        """What was released, steps of one kind added up: all, or that of earlier stages, or that of this one."""
        chosen = [
            event
            for id, event in (*self.counters.items(), *self.releases.items())
            if earlier is None or (id in self.earlier) == earlier
        ]
        return by_kind(event for event in chosen if not isinstance(event, Gaussian) or event.steps)

    def copy(self) -> Charges:
        """One that learns for itself."""
        return Charges(dict(self.counters), dict(self.releases), self.earlier)


def larger(one: Gaussian, other: Gaussian) -> Gaussian:
    """The one with more steps."""
    return other if other.steps > one.steps else one
