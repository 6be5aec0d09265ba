"""What trainers of other libraries leave behind in a process is no matter of the next test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _the_environment_stays() -> Iterator[None]:
    """Lightning writes the ranks of processes there, which accelerate takes for a launch in several processes."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
