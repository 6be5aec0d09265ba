"""An audit is worth what it catches: wrong steps are found every time, the right one never is."""

from __future__ import annotations

import pytest

from hoarfrost import audit
from hoarfrost.audit.battery import configurations, freezing
from hoarfrost.clipping import Local
from tests.audit.faults import FAULTS, FURTHER, SIGMA_OF_EPSILON_4, Fault, noise_times

REPETITIONS = 20


def step_alarms(fault: Fault, patch: pytest.MonkeyPatch, **sizes: int) -> tuple[str, ...]:
    clip = fault.seed(patch) or Local(1.0)
    freeze = freezing()["one tensor frozen" if fault.one_tensor_frozen else "nothing frozen"]
    return audit.step(noise_multiplier=fault.noise_multiplier, clip=clip, freeze=freeze, **sizes).alarms


def sensitivity_alarms(fault: Fault, patch: pytest.MonkeyPatch, seed: int = 0) -> tuple[str, ...]:
    clip = fault.seed(patch) or Local(1.0)
    return audit.sensitivity(clip=clip, rounds=1, seed=seed).alarms


@pytest.mark.parametrize("name", FAULTS)
def test_the_audits_catch_the_fault_every_time(name: str) -> None:
    """By small audits, of 1,280 samples and 85 neighbouring batches: larger ones detect more."""
    caught = 0
    for repetition in range(REPETITIONS):
        with pytest.MonkeyPatch.context() as patch:
            alarmed = step_alarms(FAULTS[name], patch, canaries=128, rounds=10)
        with pytest.MonkeyPatch.context() as patch:
            caught += bool(alarmed or sensitivity_alarms(FAULTS[name], patch, seed=repetition))
    assert caught == REPETITIONS


@pytest.mark.parametrize("name", FAULTS | FURTHER)
def test_the_audit_that_is_made_for_the_fault_sees_it_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = (FAULTS | FURTHER)[name]
    if fault.by == "step":
        assert step_alarms(fault, monkeypatch, canaries=64, rounds=30)
    else:
        assert sensitivity_alarms(fault, monkeypatch)


@pytest.mark.parametrize("factor", [0.5, 0.8])
def test_the_lower_bound_itself_exceeds_the_claim_when_noise_is_missing(
    factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only by the noise's variance, which an attacker need not care about."""
    noise_times(factor)(monkeypatch)
    result = audit.step(noise_multiplier=SIGMA_OF_EPSILON_4)
    assert result.epsilon_lower > result.epsilon_claimed
    assert result.run_epsilon_lower > result.run_epsilon_claimed
    assert result.alarms[0].startswith("canaries are detected more often than the claim allows")


def test_the_alarm_names_the_coordinate_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    (alarm,) = step_alarms(FURTHER["one coordinate without noise"], monkeypatch, canaries=64, rounds=30)
    assert alarm.startswith("1 of 129 coordinates get noise of the wrong variance: parts.0.weight[0]")


def test_clipping_after_summation_needs_the_opposing_example(monkeypatch: pytest.MonkeyPatch) -> None:
    (alarm,) = sensitivity_alarms(FAULTS["clipping after summation"], monkeypatch)
    assert "added to an opposing example: moves the clipped sum by 2 times" in alarm


@pytest.mark.slow
def test_the_right_implementation_raises_no_alarm() -> None:
    """Two full audits of each configuration of the battery, and many small ones."""
    runs = 0
    for configuration in configurations():
        for sizes in [{}] * 2 + [{"canaries": 64, "rounds": 20}] * 20:
            result = configuration.step(**sizes)
            assert result.passed, result
            runs += 1
    assert runs >= 200
