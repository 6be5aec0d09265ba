"""Every program of the corpus comes out as it must: private as stated and measured, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import hoarfrost
from hoarfrost.clipping import Clipping
from hoarfrost.gradients.uses import Uses
from tests.audit.faults import around, norms_of
from tests.programs.corpus import Private, Program
from tests.programs.examples import vectors
from tests.programs.loops import fit, two_layers
from tests.programs.running import MakePrivate
from tests.programs.tables import KNOWN_FAILURES, KNOWN_GAPS, RIGHT, SLOW, WRONG


@pytest.mark.parametrize("name", [name for name in RIGHT if name not in KNOWN_FAILURES])
def test_a_right_program_is_accepted_and_private_as_stated(name: str) -> None:
    assert RIGHT[name].verdict() is None


@pytest.mark.parametrize("name", [*KNOWN_FAILURES, *KNOWN_GAPS])
def test_what_is_known_to_fail_still_does(name: str) -> None:
    """One that comes out right leaves the table."""
    assert (RIGHT | WRONG)[name].verdict() is not None


@pytest.mark.parametrize("name", [name for name in WRONG if name not in KNOWN_GAPS.keys() | SLOW])
def test_a_wrong_program_comes_out_as_it_must(name: str) -> None:
    assert WRONG[name].verdict() is None


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SLOW))
def test_a_slow_program_comes_out_as_it_must(name: str) -> None:
    assert WRONG[name].verdict() is None


def test_there_are_enough_programs_and_the_tables_name_no_others() -> None:
    assert len(RIGHT) >= 100
    assert len(WRONG) >= 100
    assert set(KNOWN_FAILURES) <= set(RIGHT)
    assert set(WRONG) >= SLOW
    assert set(KNOWN_GAPS) <= set(WRONG)


# The corpus can fail: faults that it must see.


def plain(rows: list[Any], make_private: MakePrivate) -> None:
    fit(two_layers(), rows, make_private)


def verdict(program: Any, must: Private = Private()) -> str:  # noqa: B008 - frozen
    found = Program(program, vectors, must).verdict()
    assert found is not None
    return found


def test_clipping_to_twice_the_norm_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    factors = Clipping.factors
    monkeypatch.setattr(Clipping, "factors", lambda self, norms, **_: factors(self, norms / 2))
    assert "moves the sum by 2" in verdict(plain, Private(oracle=False))
    assert "from the oracle" in verdict(plain)


def test_a_step_on_half_of_the_gradient_is_seen_by_the_oracle_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    factors = Clipping.factors
    monkeypatch.setattr(Clipping, "factors", lambda self, norms, **_: factors(self, norms) / 2)
    assert Program(plain, vectors, Private(oracle=False)).verdict() is None
    assert "from the oracle" in verdict(plain)


def test_norms_of_one_parameter_alone_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    around(monkeypatch, Uses, "norms", lambda original, uses: norms_of(original, uses, slice(-1, None)))
    assert "one example moves the sum by" in verdict(plain, Private(oracle=False))


def test_examples_that_mix_before_the_model_are_seen() -> None:
    """Nobody looks at what the loop does to a batch; the measurement does."""

    def mixing(rows: list[Any], make_private: MakePrivate) -> None:
        model = two_layers()
        model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
        for x, y in loader:
            F.cross_entropy(model(x / x.nan_to_num().abs().max()), y).backward()
            optimizer.step()

    assert verdict(mixing, Private(oracle=False)).startswith("one example moves the sum by")


def test_what_is_saved_beside_the_trained_weights_is_seen() -> None:
    def keeping(rows: list[Any], make_private: MakePrivate) -> None:
        model = two_layers()
        model.register_buffer("kept", torch.zeros(6))
        fit(model, rows, make_private)
        model.kept.copy_(rows[0][0])

    assert verdict(keeping) == "one example changes kept of model 0, which is saved"


def test_a_warning_about_a_right_program_is_seen() -> None:
    def warned(rows: list[Any], make_private: MakePrivate) -> None:
        fit(two_layers(), rows, make_private, clip=hoarfrost.clip.Global(1.0, edge=0))

    assert verdict(warned, Private(oracle=False)).startswith("a warning: Global(")


def test_a_program_that_takes_no_step_is_seen() -> None:
    def idle(rows: list[Any], make_private: MakePrivate) -> None:
        model = two_layers()
        make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows)

    assert verdict(idle, Private(oracle=False)) == "no step was taken"
