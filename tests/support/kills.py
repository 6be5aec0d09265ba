"""Runs that end as a kill would end them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from hoarfrost.train import Progress
from hoarfrost.train.evaluation import Average


class KilledAtStep(Progress):
    """Ends the run in a given step as a kill would: no file is written any more."""

    def __init__(self, at: int) -> None:
        self.at = at

    def step(self, steps: int, average: Average) -> None:
        if steps == self.at:
            raise SystemExit


def run_until_killed(at: int, start: Callable[..., object], *args: Any, **options: Any) -> None:
    """Runs `start`, killed in step `at`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["hoarfrost.train.running"], "_end_early", lambda *_: None)
        with pytest.raises(SystemExit):
            start(*args, progress=KilledAtStep(at), **options)
