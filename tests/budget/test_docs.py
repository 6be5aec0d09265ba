import doctest
import importlib
import pkgutil

import pytest

from hoarfrost import budget

MODULES = [module.name for module in pkgutil.iter_modules(budget.__path__, "hoarfrost.budget.")]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_the_documentation_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_every_public_name_has_documentation_and_what_promises_privacy_says_what_it_guarantees():
    for name in ("Event", "Gaussian", "Readout", "Statement", "epsilon", "noise_multiplier", "steps"):
        assert getattr(budget, name).__doc__
    for promise in (budget.epsilon, budget.noise_multiplier, budget.steps, budget.Readout):
        assert "Guarantees:" in promise.__doc__
