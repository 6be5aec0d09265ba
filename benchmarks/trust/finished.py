"""A ledger of finished runs, no two of the same kind, written at once and not step by step."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hoarfrost.budget import Gaussian, Ledger
from hoarfrost.budget._journal import Journal

RECORDS = 10  # of a run: admitted, four times steps reserved and committed, closed
TIMES, AHEAD = 4, 100
STEPS = TIMES * AHEAD
DELTA = 1e-5


def kinds(runs: int) -> list[Gaussian]:
    """What each of so many runs released."""
    return [
        Gaussian(noise_multiplier=0.8 + number / runs, sample_rate=0.002 + 0.004 * number / runs, steps=STEPS)
        for number in range(runs)
    ]


def write(path: Path, runs: int, budget: float | None, key: bytes | None = None) -> None:
    """Writes the ledger."""
    Ledger.create(path, epsilon=budget, delta=DELTA, key=key)
    journal = Journal(path, key)
    with journal.locked() as writer:
        for number, event in enumerate(kinds(runs)):
            for body in _records(1 + number * RECORDS, event):
                writer.append(body, durable=False)
    if key is not None:
        journal._vouch(journal.head)


def _records(number: int, event: Gaussian) -> Iterator[dict[str, Any]]:
    yield {
        "kind": "admit", "run": f"run-{number}", "what": f"model {number}", "who": "someone@somewhere", "at": number,
        "code": "hoarfrost", "event": event.as_dict(), "seeded": False, "data": None, "id": f"{number:032x}",
        "owner": None,
    }  # fmt: skip
    for _ in range(TIMES):
        for kind in ("reserve", "commit"):
            yield {"kind": kind, "for": number, "steps": AHEAD, "at": number}
    yield {"kind": "close", "for": number, "at": number}
