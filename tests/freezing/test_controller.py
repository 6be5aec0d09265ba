"""What is asked of a freezer, and when."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from hoarfrost import budget
from hoarfrost import checkpoint as checkpoints
from hoarfrost.budget import plan
from hoarfrost.freezing import Freezer, Largest, Layers, Live, Random, Ranked, RunInfo
from tests.support.freezing import PLAN, make, net, step

# A freezer is for one run.


def test_a_freezer_that_was_used_before_begins_anew() -> None:
    freezer = Ranked(0.5)
    for _ in range(2):
        private = make(net(), freeze=freezer, **PLAN)
        controller = private.optimizer.controller
        assert controller.freezer.state().keys() == {"epoch"}
        assert all(live is True for live in controller.freezer.live(3, controller.info).values())
        for _ in range(4):
            step(private)
        assert len(controller.freezer.state()) > 1
    assert len(freezer.state()) == 1  # it was copied for each run


def test_two_runs_do_not_share_what_a_freezer_keeps() -> None:
    freezer, small = Largest(0.5) & Random(0.0), net()
    with torch.no_grad():
        small[0].weight[:2] *= 1e-6
    first, second = make(net(), freeze=freezer, **PLAN), make(small, freeze=freezer, **PLAN)
    for private in (first, second):
        step(private)
    masks = [private.optimizer.controller.masks["0.weight"].mask for private in (first, second)]
    assert masks[0][:2].any()
    assert not masks[1][:2].any()


# What it says is asked for in time, and worked out once.


class Toggled(Freezer):
    """Rests when somebody says so."""

    def __init__(self) -> None:
        self.mask = torch.ones(4, 1, 3, 3) > 0
        self.asked = 0

    def live(self, step: int, info: RunInfo) -> Live:
        self.asked += 1
        return dict.fromkeys(info.shapes, True) | {"0.weight": self.mask}


def test_one_of_your_own_may_change_its_mind_between_backward_and_step() -> None:
    freezer = Toggled()
    private = make(net(), freeze=freezer, noise_multiplier=1.0, sample_rate=1.0, steps=3)
    before = private.model[0].weight.clone()
    for x, y in private.loader:
        F.cross_entropy(private.model(x), y).backward()
        freezer.mask[:2] = False  # in place
        private.optimizer.step()
        break
    assert torch.equal(private.model[0].weight[:2], before[:2])
    assert (private.model[0].weight[2:] != before[2:]).all()


def test_what_is_said_twice_is_worked_out_once() -> None:
    private = make(net(), freeze=Toggled(), noise_multiplier=1.0, sample_rate=1.0, steps=3)
    private.optimizer.controller.freezer.mask[0] = False
    step(private)
    part = private.optimizer.controller.masks["0.weight"]
    step(private)
    assert private.optimizer.controller.masks["0.weight"] is part
    assert private.optimizer.controller.freezer.asked >= 4


def test_an_epsilon_is_translated_to_a_step_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = plan.steps_for
    monkeypatch.setattr(plan, "steps_for", lambda *args, **named: calls.append(args) or real(*args, **named))
    private = make(net(), freeze=Layers(first=1, epsilon=1.0), max_physical_batch=2, **PLAN)
    for _ in range(4):
        step(private)
    assert 1 <= len(calls) <= 3  # before the run, and when the order of the layers became known


def test_a_restored_run_works_out_anew_when_an_epsilon_is_spent(tmp_path: Path) -> None:
    """What other runs spent on these weights counts, also if the freezer was asked before they were brought back.

    The step that this run took before is paid for, and is not behind the weights it goes on with.
    """
    many = {"sample_rate": 0.5, "steps": 60, "noise_multiplier": 3.0}
    first = make(net(), **many)
    for _ in range(5):
        step(first)
    checkpoints.save(tmp_path / "a.safetensors", first)
    freezer = Layers(first=1, epsilon=4.0)
    second = make(net(), freeze=freezer, **many | {"noise_multiplier": 2.0})
    step(second)
    alone = freezer.begins(second.optimizer.controller.info)
    checkpoints.Checkpoint.read(tmp_path / "a.safetensors").restore(second)
    later = freezer.begins(second.optimizer.controller.info)
    own, other = ({"sample_rate": 0.5, "noise_multiplier": noise} for noise in (2.0, 3.0))
    spent = [
        budget.epsilon([budget.Gaussian(**other, steps=5), budget.Gaussian(**own, steps=later - 4 + n)], 1e-5)
        for n in (0, 1)
    ]
    assert alone < later
    assert spent[0] <= 4.0 < spent[1]
