"""What an account knows at one moment, as a checkpoint keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hoarfrost import validate
from hoarfrost.budget.events import Gaussian, Release, from_dict, gaussian_from_dict
from hoarfrost.budget.statement import EXAMPLE, check_unit

Counters = Mapping[str, Gaussian]


@dataclass(frozen=True)
class Snapshot:
    """What an account knows at one moment; it travels with the weights in a checkpoint.

    Args:
        steps_taken: that the weights have behind them, of the stage that they are in.
        counters: the steps charged, by the id of their counter.
        releases: in addition to the steps, by their id.
        made: for each planned release its id; None where it was not made yet.
        earlier: of the counters and releases, the ids of those that belong to earlier stages of the weights.
        seeded: some of the noise can be repeated from a seed.
        unit: for what it was spent: one example, or one person.
    """

    steps_taken: int
    counters: Counters
    releases: Mapping[str, Release]
    made: tuple[str | None, ...] = ()
    earlier: tuple[str, ...] = ()
    seeded: bool = False
    unit: str = EXAMPLE

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "steps_taken": self.steps_taken,
            "counters": {id: event.as_dict() for id, event in self.counters.items()},
            "releases": {id: event.as_dict() for id, event in self.releases.items()},
            "made": list(self.made),
            "earlier": list(self.earlier),
            "seeded": self.seeded,
            "unit": self.unit,
        }

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Snapshot:
        """What `as_dict` described; anything else raises."""
        validate.count(steps_taken=facts["steps_taken"])
        if not all(id is None or id in facts["releases"] for id in facts["made"]):
            raise ValueError("a planned release that was made is not among the releases")
        # Checkpoints of the first versions know of no stages, and do not say whether they were seeded.
        earlier, seeded = facts.get("earlier", ()), facts.get("seeded", False)
        if not {*earlier} <= {*facts["counters"], *facts["releases"]} or not isinstance(seeded, bool):
            raise ValueError("what it says of earlier stages cannot be")
        check_unit(facts.get("unit", EXAMPLE))
        return cls(
            steps_taken=facts["steps_taken"],
            counters={str(id): gaussian_from_dict(event) for id, event in facts["counters"].items()},
            releases={str(id): from_dict(event) for id, event in facts["releases"].items()},
            made=tuple(facts["made"]),
            earlier=tuple(map(str, earlier)),
            seeded=seeded,
            unit=facts.get("unit", EXAMPLE),  # before there was a choice
        )
