"""The result of an audit."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import ClassVar

ALPHA = 1e-6
"""False alarm probability of one statistical test. An audit makes at most ten tests: 1e-5 together."""


@dataclass(frozen=True, kw_only=True)
class Audit(ABC):
    """The result of an audit: figures, and an alarm for each fault that was found."""

    kind: ClassVar[str]

    alarms: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether there is no alarm. Evidence, not proof: see the guarantees of each audit."""
        return not self.alarms

    @abstractmethod
    def figures(self) -> tuple[str, ...]:
        """Measured and claimed values, as lines of text."""

    def lines(self) -> tuple[str, ...]:
        """The figures, then the alarms."""
        verdict = ("no alarm",) if self.passed else tuple(f"ALARM: {alarm}" for alarm in self.alarms)
        return (*self.figures(), *verdict)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def as_dict(self) -> dict[str, object]:
        """The result for JSON. None stands for infinity, which JSON does not have."""
        facts = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }
        return {"kind": self.kind, "passed": self.passed, **facts, "alarms": list(self.alarms)}
