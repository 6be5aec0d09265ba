"""The tests of noise: what they find in numbers whose fault is known, and how often they are wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hoarfrost.audit import gaussianity
from hoarfrost.audit.gaussianity import Floats

STEPS, COORDINATES = 30, 120
NAMES = [str(i) for i in range(COORDINATES)]


def found(noise: Floats, live: gaussianity.Mask | None = None) -> str:
    return "; ".join(gaussianity.faults(noise, np.ones(noise.shape, bool) if live is None else live, NAMES))


def noise(seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal((STEPS, COORDINATES))


def repeated_step(x: Floats) -> Floats:
    x[17] = x[4]
    return x


def opposite_step(x: Floats) -> Floats:
    x[17] = -x[4]
    return x


def repeated_within(x: Floats) -> Floats:
    x[:, 70:110] = x[:, 5:45]
    return x


def one_without(x: Floats) -> Floats:
    x[:, 33] = 0
    return x


def one_not_finite(x: Floats) -> Floats:
    x[3, 3] = np.nan
    return x


WRONG: dict[str, tuple[Callable[[Floats], Floats], str]] = {
    "9/10 of the size": (lambda x: 0.9 * x, "times the stated variance"),
    "10/9 of the size": (lambda x: x / 0.9, "times the stated variance"),
    "none": (np.zeros_like, "has 0 times the stated variance"),
    "one coordinate without": (one_without, "1 of 120 coordinates get noise of the wrong variance: 33"),
    "signs only": (np.sign, "not Gaussian"),
    "shifted": (lambda x: (x + 1) / np.sqrt(2), "not Gaussian"),
    "a step repeated": (repeated_step, "steps 4 and 17 is correlated"),
    "a step repeated with the other sign": (opposite_step, "steps 4 and 17 is correlated"),
    "a part repeated": (repeated_within, "repeated within a step"),
    "not finite": (one_not_finite, "not finite"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_noise_is_named(name: str) -> None:
    spoil, words = WRONG[name]
    assert words in found(spoil(noise()))


def test_right_noise_is_passed() -> None:
    assert not any(found(noise(seed)) for seed in range(100))


def test_frozen_coordinates_do_not_count() -> None:
    live = np.random.default_rng(1).random((STEPS, COORDINATES)) < 0.5
    live[:, :20] = False
    assert not any(found(np.where(live, noise(seed), 0), live) for seed in range(100))
    assert "times the stated variance" in found(np.where(live, noise() * 0.9, 0), live)


def test_alarms_are_as_rare_as_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a level that can be counted: five tests at 2 % each."""
    monkeypatch.setattr(gaussianity, "ALPHA", 0.02)
    live = np.random.default_rng(1).random((STEPS, COORDINATES)) < 0.7
    alarms = [list(gaussianity.faults(np.where(live, noise(seed), 0), live, NAMES)) for seed in range(300)]
    assert 0.05 < sum(map(len, alarms)) / 300 < 0.15
