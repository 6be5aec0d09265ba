"""Every program of the corpus comes out as it must: private as stated and measured, or refused by name."""

from __future__ import annotations

import pytest

from tests.programs.tables import KNOWN_FAILURES, RIGHT


@pytest.mark.parametrize("name", [name for name in RIGHT if name not in KNOWN_FAILURES])
def test_a_right_program_is_accepted_and_private_as_stated(name: str) -> None:
    assert RIGHT[name].verdict() is None


@pytest.mark.parametrize("name", KNOWN_FAILURES)
def test_what_is_known_to_fail_still_does(name: str) -> None:
    """One that comes out right leaves the table."""
    assert RIGHT[name].verdict() is not None


def test_there_are_enough_programs() -> None:
    assert len(RIGHT) >= 60
