"""Audits that compare several steps use one clipping for all of them, also of a style that changes it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from hoarfrost import audit
from hoarfrost.clipping import Clipper, Clipping, Local
from hoarfrost.info import RunInfo


@dataclass(frozen=True)
class Doubling(Clipper):
    """A larger norm in every step."""

    norm: float

    def begin(self, step: int, info: RunInfo) -> Clipping:
        return Local(self.norm * 2**step).begin(step, info)


def test_sensitivity() -> None:
    result = audit.sensitivity(clip=Doubling(0.7), rounds=1)
    assert result.passed
    assert result.sensitivity == (0.7,)
    assert result.ratio > 0.999


def test_noise() -> None:
    assert audit.noise(model=nn.Linear(30, 20), shape=(30,), clip=Doubling(0.7)).passed


def test_step() -> None:
    assert audit.step(noise_multiplier=1.0, clip=Doubling(0.7), canaries=64, rounds=20).passed
