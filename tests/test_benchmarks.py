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
