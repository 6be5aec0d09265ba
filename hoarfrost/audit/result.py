"""What an audit brings home."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import ClassVar

ALPHA = 1e-6
"""How often one statistical test may alarm although all is right. An audit makes at most ten: 1e-5 together."""


@dataclass(frozen=True, kw_only=True)
class Audit(ABC):
    """The outcome of an audit: figures, and an alarm for each of them that should not be."""

    kind: ClassVar[str]

    alarms: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing was found. Evidence, not proof: see the audit's own guarantees."""
        return not self.alarms

    @abstractmethod
    def figures(self) -> tuple[str, ...]:
        """What was measured beside what was claimed, for people."""

    def lines(self) -> tuple[str, ...]:
        """The outcome for people."""
        verdict = ("no alarm",) if self.passed else tuple(f"ALARM: {alarm}" for alarm in self.alarms)
        return (*self.figures(), *verdict)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def as_dict(self) -> dict[str, object]:
        """The outcome as JSON can hold it, which knows no infinity: null stands for it."""
        facts = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }
        return {"kind": self.kind, "passed": self.passed, **facts, "alarms": list(self.alarms)}
