"""Gradients are computed without freezers, accounting or ciphers: what the room imports stays that small."""

import subprocess
import sys

import pytest

PROGRAM = """
import importlib, pkgutil, sys
import {package}
for info in pkgutil.walk_packages(getattr({package}, "__path__", []), "{package}."):
    importlib.import_module(info.name)
print(*(name for name in sys.modules if name.startswith({unwanted!r})))
"""
UNWANTED = {
    "hoarfrost.gradients": (
        "hoarfrost.freezing",
        "hoarfrost.budget",
        "hoarfrost.sampling",
        "dp_accounting",
        "cryptography",
    ),
    "hoarfrost.masks": ("hoarfrost.", "dp_accounting", "cryptography"),
}


@pytest.mark.parametrize("package", UNWANTED)
def test_it_imports_nothing_that_it_does_not_need(package: str) -> None:
    program = PROGRAM.format(package=package, unwanted=UNWANTED[package])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    allowed = {"hoarfrost.masks", "hoarfrost.errors"} if package == "hoarfrost.masks" else set()
    assert set(done.stdout.split()) - allowed == set()
