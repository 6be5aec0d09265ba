"""A run is audited with its own clipping: its groups and layers, each stage of its schedule, and its noisy counts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hoarfrost import audit
from hoarfrost.audit.canaries import AsInRun, ByFreezer, Freezing, LinearLoss, clipping_of, info_of, stages
from hoarfrost.audit.result import Audit
from hoarfrost.audit.suite import Subject, run_suite
from hoarfrost.clipping import Adaptive, Clipper, Clipping, Global, Local, PerGroup, PerLayer, Schedule, Statistic
from hoarfrost.freezing import Layers
from hoarfrost.info import RunInfo
from hoarfrost.noise import Noise
from tests.audit.faults import around, noise_for_the_bound, statistics_without_noise
from tests.support.recipes import tiny

SMALL = {"canaries": 32, "rounds": 10}
audits = pytest.mark.parametrize("audits", [10, pytest.param(30, marks=pytest.mark.slow)])
INFO = RunInfo({"0.weight": torch.Size([4, 3]), "0.bias": torch.Size([4]), "2.weight": torch.Size([2, 4])}, steps=8)
BY_EPSILON = Schedule((0, Local(1.0)), (0.5, Local(2.0)), (3.0, PerLayer(Local(0.5))), by="epsilon")
GROUPS = PerGroup({"*.weight": Global(1.5), "*.bias": Local(0.3)}, noise="proportional")


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 20))


def of_steps(**changes: Any) -> list[Any]:
    """The recipe's audits of steps: sensitivity, noise and step."""
    return [result for result in run_suite(Subject(tiny(**changes))) if result.kind != "sampling"]


# The right code raises no alarm.

STEPS: dict[str, Clipper] = {
    "groups": AsInRun(GROUPS, 0, INFO),
    "adaptive": AsInRun(Adaptive(start=0.7, cost=0.3), 0, INFO),
    "adaptive layers": PerLayer(Adaptive(start=0.4, cost=0.5, style="global")),
    "a schedule by epsilon": BY_EPSILON,
    "from one block to several": Schedule((0, Local(0.5)), (3, PerLayer(Adaptive(start=0.4, cost=0.5))), by="step"),
}


@audits
@pytest.mark.parametrize("name", STEPS)
def test_right_steps_raise_no_alarm(name: str, audits: int) -> None:
    for _ in range(audits):
        result = audit.step(noise_multiplier=1.0, clip=STEPS[name], **SMALL)
        assert result.passed, result
    assert audit.sensitivity(clip=STEPS[name], rounds=1).passed


class Watching(Layers):
    """Sees noisy gradients of what it freezes, too: they take their share of the noise."""

    observes = True

    def observe(self, *_: Any) -> None:
        pass


NOISE: dict[str, tuple[Clipper, Freezing]] = {
    "groups": (GROUPS, Freezing()),
    "a frozen layer": (PerLayer(Local(0.5)), ByFreezer(Layers(names=["0.*"], step=0))),
    "the first layer is frozen": (PerLayer(Adaptive(start=0.5)), ByFreezer(Layers(first=1, step=0))),
    "a frozen layer is observed": (PerLayer(Local(0.5)), ByFreezer(Watching(names=["0.*"], step=0))),
    "a schedule by epsilon": (BY_EPSILON, Freezing()),
}


@audits
@pytest.mark.parametrize("name", NOISE)
def test_right_noise_raises_no_alarm(name: str, audits: int) -> None:
    clip, freeze = NOISE[name]
    for _ in range(audits):
        result = audit.noise(model=net(), shape=(30,), clip=clip, freeze=freeze, rounds=5)
        assert result.passed, result
    assert audit.sensitivity(model=net(), shape=(30,), clip=clip, rounds=1).passed


RECIPES: dict[str, dict[str, Any]] = {
    "groups": {
        "clip": {
            "kind": "per-group",
            "groups": {"*.weight": {"kind": "global", "norm": 1.5}, "*.bias": {"kind": "local", "norm": 0.3}},
        }
    },
    "layers of which one is frozen": {
        "clip": {"kind": "per-layer", "style": {"kind": "local", "norm": 0.5}},
        "freeze": {"kind": "layers", "first": 1},
    },
    "a schedule by epsilon": {
        "clip": {
            "kind": "schedule",
            "starts": [0, 3.0],
            "by": "epsilon",
            "styles": [{"kind": "local"}, {"kind": "per-layer", "style": {"kind": "adaptive"}}],
        }
    },
}


@pytest.mark.parametrize(("name", "audits"), list(zip(RECIPES, (1, 1, 2), strict=True)))
def test_a_recipe_passes_with_its_own_clipping(name: str, audits: int) -> None:
    found = of_steps(**RECIPES[name])
    assert [result.kind for result in found] == ["sensitivity", "sensitivity", "noise", "step"] * audits
    assert all(result.passed for result in found)


# What is audited is what the run does.


def test_blocks_keep_all_but_their_parameters() -> None:
    own = GROUPS.begin(0, INFO)
    moved = clipping_of(AsInRun(GROUPS, 0, INFO), LinearLoss([1, 1, 1]))
    assert [block.parameters for block in moved.blocks] == [("parts.0.weight", "parts.2.weight"), ("parts.1.weight",)]
    assert (moved.bounds, moved.stds(1.3), moved.rule) == (own.bounds, own.stds(1.3), own.rule)


@pytest.mark.parametrize("block", range(5))
def test_each_of_the_run_s_layers_is_audited(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the linear loss has tensors by itself. In one of them nothing is clipped, or there is no noise."""
    clip = AsInRun(PerLayer(Local(0.5)), 0, info_of(nn.Sequential(*(nn.Linear(2, 2) for _ in range(5)))))
    right = audit.step(noise_multiplier=1.0, clip=clip, canaries=64, rounds=20)
    assert right.passed
    assert right.mu_lower > 0.5
    assert audit.sensitivity(clip=clip, rounds=1).passed

    def factors(original: Any, clipping: Clipping, norms: Tensor, **_: Any) -> Tensor:
        return original(clipping, norms).index_fill(1, torch.tensor([block]), 1.0)

    def add(original: Any, noise: Noise, tensors: list[Tensor], stds: list[float]) -> None:
        original(noise, tensors, [0.0 if i == block else std for i, std in enumerate(stds)])

    with monkeypatch.context() as patch:
        around(patch, Clipping, "factors", factors)
        assert not audit.sensitivity(clip=clip, rounds=1).passed
    with monkeypatch.context() as patch:
        around(patch, Noise, "add_", add)
        assert not audit.step(noise_multiplier=1.0, clip=clip, **SMALL).passed


def test_a_style_follows_its_noisy_counts_on_another_model() -> None:
    clip, info = AsInRun(PerLayer(Adaptive()), 0, INFO), replace(info_of(LinearLoss([1, 1, 1])), expected_batch=100)
    assert clip.begin(0, info).bounds == (1.0, 1.0)
    clip.observe(0, {"count of 0": 49.5}, info)  # all of 100 are shorter
    assert clip.begin(1, info).bounds == (pytest.approx(math.exp(-0.1)), 1.0)
    assert clip.fresh().begin(0, info).bounds == (1.0, 1.0)


# Stages.


def steps_of(clipper: Clipper, info: RunInfo = INFO) -> list[int]:
    return [int(f"{stage!r} from step 0".partition(" from step ")[2].split()[0]) for stage in stages(clipper, info)]


@dataclass(frozen=True)
class Turning(Clipper):
    """A norm for every step, again and again."""

    norms: tuple[float, ...]

    def begin(self, step: int, info: RunInfo) -> Clipping:
        norm = self.norms[step % len(self.norms)]
        return Clipping.flat(info.shapes, norm, lambda norms: (norm / norms).clamp(max=1))


def test_every_stage_is_audited_once() -> None:
    assert steps_of(Local(1.0)) == [0]
    assert steps_of(Adaptive()) == [0]
    assert steps_of(Schedule((0, Local(1.0)), (0.5, Local(2.0)))) == [0, 4]
    assert steps_of(Schedule((0, Local(1.0)), (3, Global(1.0)), by="step")) == [0, 3]  # another rule
    assert steps_of(Schedule((0, Local(1.0)), (3, Local(1.0), 0.1), by="step")) == [0, 3]  # another learning rate
    assert steps_of(Schedule((0, Local(1.0)), (3, PerLayer(Local(1.0))), (5, Local(1.0)), by="step")) == [0, 3]
    assert steps_of(Turning((1.0,))) == [0]
    assert steps_of(Turning((1.0, 2.0, 1.0, 3.0))) == [0, 1, 3]


def test_of_a_style_that_changes_all_the_time_some_steps_are_audited() -> None:
    info = RunInfo({"weight": torch.Size([2])}, steps=1000)
    found = steps_of(Turning(tuple(1.0 + i for i in range(1000))), info)
    assert (found[0], found[-1], len(found)) == (0, 999, 16)
    assert max(b - a for a, b in itertools.pairwise(found)) < 70


def alarmed(found: list[Audit]) -> list[str]:
    return [result.kind for result in found if not result.passed]


def test_a_fault_of_the_second_stage_is_found_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise for the norm of the first stage: before the second one begins, it is right."""
    styles = [{"kind": "local", "norm": 1.0}, {"kind": "local", "norm": 3.0}]
    clip = {"kind": "schedule", "starts": [0, 0.5], "styles": styles}
    noise_for_the_bound(1.0)(monkeypatch)
    found = of_steps(clip=clip)
    first, second = found[:4], found[4:]
    assert all(result.clip.endswith(" from step 0 on") for result in first)
    assert all(result.clip.endswith(" from step 3 on") for result in second)
    assert alarmed(first) == []
    assert alarmed(second) == ["noise", "step"]


# Counts.


@pytest.mark.parametrize("clip", [Adaptive(), PerLayer(Adaptive())], ids=str)
def test_a_count_without_noise_is_found_on_any_network(clip: Clipper, monkeypatch: pytest.MonkeyPatch) -> None:
    statistics_without_noise(monkeypatch)
    for _ in range(20):
        result = audit.noise(model=net(), shape=(30,), clip=clip)
        assert any("count of" in alarm for alarm in result.alarms)


def test_canaries_are_detected_by_their_counts_too() -> None:
    """The count has nine tenths of the privacy: gradients alone would allow a bound of 0.63, of 2."""
    result = audit.step(noise_multiplier=0.5, clip=Adaptive(cost=0.9), canaries=1, rounds=400)
    assert result.passed
    assert 1.0 < result.mu_lower < 2.0


def test_a_count_without_noise_is_found_in_a_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics_without_noise(monkeypatch)
    assert alarmed(of_steps(clip={"kind": "adaptive"})) == ["noise", "step"]


COUNTED: dict[str, Callable[[float], float]] = {"twice": lambda count: 2 * count, "one more": lambda count: count + 5}


@pytest.mark.parametrize("change", COUNTED)
def test_a_count_of_something_else_is_found(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Statistic.total
    monkeypatch.setattr(Statistic, "total", lambda self, norms: COUNTED[change](right(self, norms)))
    result = audit.step(noise_multiplier=1.0, clip=Adaptive(start=0.7, cost=0.3), canaries=64, rounds=20)
    assert any("count of all parameters" in alarm for alarm in result.alarms)
