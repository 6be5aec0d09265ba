"""Checkpoints that were not written by Hoarfrost."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hostile.good import arrays, entries, safetensors
from tests.support import payload

Write = Callable[[Path], None]

HEADER: dict[str, Any] = {
    "format": 1, "steps_taken": 1, "position": {"epoch": 1, "steps_drawn": 1, "iterations": 1}, "spent": {},
    "ledger": {"path": "ledger.jsonl", "run": "a", "head": "0:" + "0" * 64},
    "optimizer": {"groups": [], "numbers": {}}, "scheduler": None, "facts": {},
}  # fmt: skip


def _bytes(content: bytes) -> Write:
    def write(file: Path) -> None:
        file.write_bytes(content)

    return write


def _said(text: str, numbers: bytes | None = None) -> Write:
    header, good = entries(arrays())
    whole = {"__metadata__": {"hoarfrost-checkpoint": text}, **header}
    return _bytes(safetensors(whole, good if numbers is None else numbers))


def _header(**changes: object) -> Write:
    return _said(json.dumps({**HEADER, **changes}))


FILES: dict[str, Write] = {
    "checkpoint-empty.safetensors": _bytes(b""),
    "checkpoint-pickle.safetensors": payload.pickled,
    "checkpoint-torch.safetensors": payload.torch_saved,
    "checkpoint-torch-old.safetensors": payload.torch_saved_the_old_way,
    "checkpoint-truncated.safetensors": _said(json.dumps(HEADER), numbers=b"1234"),
    "checkpoint-no-metadata.safetensors": _bytes(safetensors(*entries(arrays()))),
    "checkpoint-header-of-exabytes.safetensors": _bytes(b"\xff" * 8 + b"{}"),
    "checkpoint-not-json.safetensors": _said("import os"),
    "checkpoint-nested.safetensors": _said("[" * 100_000),
    "checkpoint-digits.safetensors": _said('{"format": ' + "9" * 10_000 + "}"),
    "checkpoint-list.safetensors": _said("[]"),
    "checkpoint-future.safetensors": _header(format=2),
    "checkpoint-no-steps.safetensors": _said(json.dumps({k: v for k, v in HEADER.items() if k != "steps_taken"})),
    "checkpoint-spent-text.safetensors": _header(spent="nothing"),
    "checkpoint-spent-negative.safetensors": _header(
        spent=[{"run": "a", "event": {"kind": "gaussian", "noise_multiplier": 1.0, "sample_rate": 0.1, "steps": -5}}]
    ),
    "checkpoint-no-ledger.safetensors": _header(ledger=None),
    "checkpoint-ledger-number.safetensors": _header(ledger=7),
    "checkpoint-ledger-elsewhere.safetensors": _header(ledger={"path": "/etc/passwd", "run": "a", "head": "0:0"}),
    "checkpoint-ledger-device.safetensors": _header(ledger={"path": "/dev/zero", "run": "a", "head": "0:0"}),
    "checkpoint-ledger-lacks-head.safetensors": _header(ledger={"path": "nowhere"}),
    "checkpoint-facts-list.safetensors": _header(facts=[]),
}
