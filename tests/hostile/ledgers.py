"""Ledgers that were not written by a ledger: broken, enormous, or rightly chained and yet impossible."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hoarfrost.budget import Gaussian, Ledger
from hoarfrost.budget._journal import Journal
from tests.support import payload

Write = Callable[[Path], None]

CREATE: dict[str, Any] = {
    "kind": "create", "format": 1, "epsilon": 3.0, "delta": 1e-5, "accountant": "pld", "keyed": False, "seeded": False,
    "note": "", "who": "me", "code": "hoarfrost", "at": 0,
}  # fmt: skip
ADMIT: dict[str, Any] = {
    "kind": "admit", "run": "a", "what": "", "who": "me", "code": "", "at": 0, "seeded": False, "data": None,
    "event": {"kind": "gaussian", "noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 5},
}  # fmt: skip


def _bytes(content: bytes) -> Write:
    def write(file: Path) -> None:
        file.write_bytes(content)

    return write


def _records(*bodies: dict[str, Any]) -> Write:
    """Chained as they should be, whatever they say."""

    def write(file: Path) -> None:
        journal = Journal(file)
        journal.create(bodies[0])
        with journal.locked() as writer:
            for body in bodies[1:]:
                writer.append(body)

    return write


def _event(**changes: object) -> dict[str, Any]:
    return {**ADMIT, "event": {**ADMIT["event"], **changes}}


def _changed(change: Callable[[bytes], bytes]) -> Write:
    """A good ledger, some of whose bytes were changed."""

    def write(file: Path) -> None:
        ledger = Ledger.create(file, epsilon=3.0, delta=1e-5)
        allowance = ledger.admit(Gaussian(noise_multiplier=5.0, sample_rate=0.1, steps=5), run="a")
        for _ in range(3):
            allowance.reserve()
        file.write_bytes(change(file.read_bytes()))

    return write


def _without_line(number: int) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        lines = content.splitlines(keepends=True)
        return b"".join(lines[:number] + lines[number + 1 :])

    return change


def _sparse(file: Path) -> None:
    with open(file, "wb") as opened:
        opened.truncate(1 << 40)


FILES: dict[str, Write] = {
    "ledger-empty.jsonl": _bytes(b""),
    "ledger-torn.jsonl": _bytes(b'{"kind":"create"'),
    "ledger-garbage.jsonl": _bytes(bytes(range(256)) * 40 + b"\n"),
    "ledger-terabyte.jsonl": _sparse,
    "ledger-line-without-end.jsonl": _bytes(b"x" * 3_000_000),
    "ledger-nested.jsonl": _bytes(b"[" * 60_000 + b"\n"),
    "ledger-objects-nested.jsonl": _bytes(b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"\n"),
    "ledger-digits.jsonl": _bytes(b'{"n":' + b"9" * 60_000 + b"}\n"),
    "ledger-nan.jsonl": _bytes(json.dumps({**CREATE, "epsilon": math.nan, "n": 0, "hash": "0"}).encode() + b"\n"),
    "ledger-pickle.jsonl": payload.pickled,
    "ledger-torch.jsonl": payload.torch_saved,
    "ledger-folder.jsonl": lambda file: file.mkdir(),
    "ledger-pipe.jsonl": os.mkfifo,
    "ledger-zeros.jsonl": lambda file: file.symlink_to("/dev/zero"),
    "ledger-list.jsonl": _bytes(b"[]\n"),
    "ledger-no-hash.jsonl": _bytes(json.dumps(CREATE, sort_keys=True, separators=(",", ":")).encode() + b"\n"),
    "ledger-flipped.jsonl": _changed(lambda content: content.replace(b'"epsilon":3.0', b'"epsilon":9.0')),
    "ledger-spaces.jsonl": _changed(lambda content: content.replace(b'"at":', b'"at": ')),
    "ledger-lacks-a-line.jsonl": _changed(_without_line(2)),
    "ledger-lacks-the-first.jsonl": _changed(_without_line(0)),
    "ledger-twice.jsonl": _changed(lambda content: content * 2),
    "ledger-future.jsonl": _records({**CREATE, "format": 2}),
    "ledger-no-budget.jsonl": _records({key: value for key, value in CREATE.items() if key != "epsilon"}),
    "ledger-negative-budget.jsonl": _records({**CREATE, "epsilon": -3}),
    "ledger-budget-in-words.jsonl": _records({**CREATE, "epsilon": "lots"}),
    "ledger-delta-2.jsonl": _records({**CREATE, "delta": 2}),
    "ledger-accountant.jsonl": _records({**CREATE, "accountant": "rdp@inf"}),
    "ledger-accountant-object.jsonl": _records({**CREATE, "accountant": {"__class__": "os.system"}}),
    "ledger-two-budgets.jsonl": _records(CREATE, {**CREATE, "epsilon": 1e9}),
    "ledger-begins-with-a-run.jsonl": _records(ADMIT),
    "ledger-unknown-kind.jsonl": _records(CREATE, {"kind": "refund", "for": 1, "steps": 3}),
    "ledger-refund.jsonl": _records(CREATE, ADMIT, {"kind": "reserve", "for": 1, "steps": -3, "at": 0}),
    "ledger-more-than-admitted.jsonl": _records(CREATE, ADMIT, {"kind": "reserve", "for": 1, "steps": 6, "at": 0}),
    "ledger-commit-of-nothing.jsonl": _records(CREATE, ADMIT, {"kind": "commit", "for": 1, "steps": 1, "at": 0}),
    "ledger-for-nobody.jsonl": _records(CREATE, {"kind": "reserve", "for": 7, "steps": 1, "at": 0}),
    "ledger-for-a-list.jsonl": _records(CREATE, {"kind": "reserve", "for": [1], "steps": 1, "at": 0}),
    "ledger-after-the-end.jsonl": _records(
        CREATE, ADMIT, {"kind": "close", "for": 1, "at": 0}, {"kind": "reserve", "for": 1, "steps": 1, "at": 0}
    ),
    "ledger-negative-noise.jsonl": _records(CREATE, _event(noise_multiplier=-1)),
    "ledger-rate-7.jsonl": _records(CREATE, _event(sample_rate=7)),
    "ledger-half-a-step.jsonl": _records(CREATE, _event(steps=0.5)),
    "ledger-other-event.jsonl": _records(CREATE, _event(kind="__import__")),
    "ledger-event-extra.jsonl": _records(CREATE, _event(nothing=1)),
    "ledger-event-text.jsonl": _records(CREATE, {**ADMIT, "event": "gaussian"}),
}
