import dataclasses
import json
import math
import re

import pytest

from hoarfrost.budget import Gaussian, Statement, epsilon
from hoarfrost.errors import InvalidValue

RUN = Gaussian(noise_multiplier=1.54, sample_rate=0.02, steps=2000)


def test_it_says_everything_without_which_epsilon_means_nothing():
    text = str(Statement.of(RUN, delta=1e-5))
    for fact in ("2.754", "1e-05", "pld", "one example", "add or remove one", "2000 steps", "0.02", "1.54"):
        assert fact in text
    assert "seeded" not in text


@pytest.mark.parametrize("value", [2.75301, 2.7530000001, 0.000123456, 1e-9, 12345.6, 0.1])
def test_what_is_shown_is_rounded_up(value):
    first = Statement(epsilon=value, delta=1e-5, accountant="pld", releases=()).lines()[0]
    shown = float(re.match(r"epsilon (\S+) at", first).group(1))
    assert value <= shown <= 1.001 * value


def test_a_calibrated_budget_is_not_shown_as_exceeded():
    assert "epsilon 3 at" in str(Statement(epsilon=2.99999, delta=1e-5, accountant="pld", releases=()))


@pytest.mark.parametrize("value", [0.0, 1.0, math.inf])
def test_every_text_about_a_seeded_run_says_that_it_must_not_be_released(value):
    statement = Statement(epsilon=value, delta=1e-5, accountant="rdp", releases=(RUN,), seeded=True)
    for text in (str(statement), "\n".join(statement.lines()), json.dumps(statement.as_dict())):
        assert "seeded" in text
        assert "must not be released" in text


def test_no_noise_is_spelled_out():
    statement = Statement.of(Gaussian(noise_multiplier=0.0, steps=3), delta=1e-5)
    assert statement.lines()[0] == "not private (no noise)"
    assert "inf" not in str(statement)


@pytest.mark.parametrize("event", [RUN, Gaussian(noise_multiplier=0.0), Gaussian(noise_multiplier=1.0, steps=0)])
def test_it_is_valid_json(event):
    statement = Statement.of([event], delta=1e-5, accountant="rdp", unit="one person")
    facts = json.loads(json.dumps(statement.as_dict(), allow_nan=False))
    expected = epsilon(event, 1e-5, "rdp")
    assert facts["epsilon"] == (expected if math.isfinite(expected) else None)
    assert facts["private"] is math.isfinite(expected)
    assert facts["unit"] == "one person"
    assert facts["releases"] == [event.as_dict()]


def test_it_cannot_be_altered_or_made_of_nonsense():
    statement = Statement.of(RUN, delta=1e-5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        statement.epsilon = 0.1
    for wrong in ({"epsilon": -1.0}, {"delta": 0.0}, {"accountant": "mine"}):
        with pytest.raises(InvalidValue, match=next(iter(wrong))):
            dataclasses.replace(statement, **wrong)
