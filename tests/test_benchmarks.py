"""The benchmarks of clipping styles, in small: figures are for `python -m benchmarks --styles`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks import report, timing
from benchmarks.contenders import STYLE_CONTENDERS, STYLES
from benchmarks.workloads import WORKLOADS
from hoarfrost.info import RunInfo
from hoarfrost.registry import loaded


def test_every_style_of_the_library_is_timed() -> None:
    for style in loaded("clip").values():
        if style.target.__module__.startswith("hoarfrost."):
            assert any(isinstance(each, style.target) for each in STYLES.values()), style.kind


@pytest.mark.parametrize("workload", WORKLOADS)
def test_styles_fit_the_workloads(workload: str) -> None:
    with torch.device("meta"):
        shapes = {name: p.shape for name, p in WORKLOADS[workload].model().named_parameters()}
    for style in STYLES.values():
        style.check(RunInfo(shapes, steps=10_000))


def test_styles_take_turns_and_are_compared_with_local() -> None:
    small = replace(WORKLOADS["mnist"], batch_size=4)
    seconds = timing.take_turns({name: kind(small) for name, kind in STYLE_CONTENDERS.items()}, rounds=1)
    figures = report.time_figures(small, seconds)
    assert next(iter(figures)) == "local"
    assert figures["local"]["ratio"] == 1
    assert set(figures) == set(STYLES)
    for name, row in figures.items():
        assert row["ratio"] == pytest.approx(seconds[name][0] / seconds["local"][0])


class Counted:
    """Takes so many seconds for each of its steps, in turn."""

    def __init__(self, clock: list[float], takes: list[float]) -> None:
        self.clock, self.takes, self.steps = clock, takes, 0

    def prepare(self) -> None:
        self.clock[0] += 100.0  # which is not timed

    def step(self) -> None:
        self.clock[0] += self.takes[self.steps % len(self.takes)]
        self.steps += 1


def test_a_round_of_short_steps_is_their_median(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(timing, "perf_counter", lambda: clock[0])
    contenders = {"plain": Counted(clock, [1.0]), "other": Counted(clock, [2.0, 3.0, 50.0])}
    seconds = timing.take_turns(contenders, rounds=4, steps=3)
    assert seconds == {"plain": [1.0] * 4, "other": [3.0] * 2}  # the last step of the warm-up was slow
    assert contenders["plain"].steps == 3 + 4 * 3


def test_figures_of_contenders_alone_stand_beside_those_in_turn() -> None:
    seconds, alone = {"plain": [1.0], "hoarfrost": [2.0]}, {"plain": [0.5], "hoarfrost": [2.0]}
    figures = report.time_figures(WORKLOADS["tiny"], seconds, alone)
    assert figures["hoarfrost"]["ratio"] == 2.0
    assert figures["hoarfrost"]["alone_ratio"] == 4.0
    assert "alone_ratio" not in report.time_figures(WORKLOADS["mlp"], seconds)["hoarfrost"]
