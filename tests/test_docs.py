"""Every example in a docstring runs and says the truth."""

import doctest
import importlib
import pkgutil

import pytest

import hoarfrost

MODULES = sorted(info.name for info in pkgutil.walk_packages(hoarfrost.__path__, "hoarfrost."))


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_the_docstrings_run(name: str) -> None:
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


def test_there_are_examples_to_run() -> None:
    for name in ("hoarfrost.private", "hoarfrost.validate"):
        assert doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS).attempted
