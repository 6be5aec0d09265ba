"""The benchmark of attacks, in small: rows are computed once, figures are not private."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from benchmarks.accuracy.experiments import Runs
from benchmarks.measure import membership


def test_membership_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs("digits", "digits", {"one": (), "other": ("clip.norm=2",)})
    monkeypatch.setattr(membership, "EXPERIMENTS", {"clipping-cifar10": runs})
    monkeypatch.setattr(membership, "ARMS", ("one", "other"))
    monkeypatch.setattr(membership, "RUNS", tmp_path / "not-private" / "membership")
    monkeypatch.setattr(membership, "QUICK", ("privacy.steps=2",))
    options = argparse.Namespace(quick=True, seed=None)
    membership.main(options)
    folder = tmp_path / "not-private" / "membership-quick"
    rows = json.loads((folder / "membership.json").read_text())
    assert [(row["arm"], row["attack"]) for row in rows] == [
        (arm, kind) for kind in ("logistic", "threshold") for arm in ("one", "other")
    ]
    assert all(0.3 < row["auc"] < 0.7 and row["auc_bound"] < 1 and len(row["classes"]) == 10 for row in rows)
    assert (folder / "logistic-seed-1" / "membership-roc.png").exists()
    before = (folder / "membership.json").stat().st_mtime_ns
    monkeypatch.setattr(membership, "attack", None)  # nothing is attacked again
    membership.main(options)
    assert (folder / "membership.json").stat().st_mtime_ns == before
