"""Random edits of a ledger: are they detected?"""

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hoarfrost.budget import Gaussian, Ledger
from hoarfrost.errors import LedgerDamaged

COUNT = 1000
RUNS, STEPS = 10, 15  # so many records, and as many commits


def flip(text: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(text))
    return text[:place] + bytes([text[place] ^ 1 << rng.randrange(8)]) + text[place + 1 :]


def delete(text: bytes, rng: random.Random) -> bytes:
    lines = text.splitlines(keepends=True)
    del lines[rng.randrange(len(lines) - 1)]  # not the last: that would be a cut
    return b"".join(lines)


def swap(text: bytes, rng: random.Random) -> bytes:
    lines = text.splitlines(keepends=True)
    one, other = rng.sample(range(len(lines)), 2)
    lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def cut(text: bytes, rng: random.Random) -> bytes:
    return text[: rng.randrange(len(text))]


EDITS: dict[str, Callable[[bytes, random.Random], bytes]] = {"flip": flip, "delete": delete, "swap": swap, "cut": cut}


def written(path: Path) -> Ledger:
    """A ledger of a few hundred records."""
    ledger = Ledger.create(path, epsilon=None, delta=1e-5)
    for number in range(RUNS):
        allowance = ledger.admit(Gaussian(noise_multiplier=1.0, steps=STEPS), what=f"model {number}")
        for _ in range(STEPS):
            allowance.reserve()
            allowance.commit()
        allowance.close()
    return ledger


def measure(count: int = COUNT) -> dict[str, Any]:
    rng = random.Random(0)
    found = {name: {"edits": 0, "noticed by anyone": 0, "noticed with the head": 0} for name in EDITS}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.jsonl"
        ledger = written(path)
        head, text = str(ledger.head), path.read_bytes()
        for number in range(count):
            name = list(EDITS)[number % len(EDITS)]
            edited = EDITS[name](text, rng)
            assert edited != text
            path.write_bytes(edited)
            by_anyone, with_head = _noticed(path, head)
            found[name]["edits"] += 1
            found[name]["noticed by anyone"] += by_anyone
            found[name]["noticed with the head"] += with_head
    return {
        "records": ledger.head.number + 1,
        "edits": count,
        "noticed": sum(each["noticed with the head"] for each in found.values()),
        "kinds": found,
    }


def _noticed(path: Path, head: str) -> tuple[bool, bool]:
    try:
        ledger = Ledger(path)
    except LedgerDamaged:
        return True, True
    try:
        ledger.check(head)
    except LedgerDamaged:
        return False, True
    return False, False


def summary(figures: dict[str, Any]) -> str:
    kinds = ", ".join(f"{name} {each['noticed by anyone']}/{each['edits']}" for name, each in figures["kinds"].items())
    return (
        f"{figures['noticed']} of {figures['edits']} edits of {figures['records']} records noticed with an exported "
        f"head (without one: {kinds})"
    )
