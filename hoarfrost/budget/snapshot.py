"""What an account knows at one moment, as a checkpoint keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hoarfrost import validate
from hoarfrost.budget.events import Gaussian, Release, from_dict, gaussian_from_dict

Counters = Mapping[str, Gaussian]


@dataclass(frozen=True)
class Snapshot:
    """What an account knows at one moment; it travels with the weights in a checkpoint.

    Args:
        steps_taken: that the weights have behind them.
        counters: the steps charged, by the id of their counter.
        releases: in addition to the steps, by their id.
        made: for each planned release its id; None where it was not made yet.
    """

    steps_taken: int
    counters: Counters
    releases: Mapping[str, Release]
    made: tuple[str | None, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "steps_taken": self.steps_taken,
            "counters": {id: event.as_dict() for id, event in self.counters.items()},
            "releases": {id: event.as_dict() for id, event in self.releases.items()},
            "made": list(self.made),
        }

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Snapshot:
        """What `as_dict` described; anything else raises."""
        validate.count(steps_taken=facts["steps_taken"])
        if not all(id is None or id in facts["releases"] for id in facts["made"]):
            raise ValueError("a planned release that was made is not among the releases")
        return cls(
            steps_taken=facts["steps_taken"],
            counters={str(id): gaussian_from_dict(event) for id, event in facts["counters"].items()},
            releases={str(id): from_dict(event) for id, event in facts["releases"].items()},
            made=tuple(facts["made"]),
        )
