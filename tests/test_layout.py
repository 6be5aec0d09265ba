"""Tests import no other tests: what several of them use is in `tests/support`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# Tables that are known by their place: a new layer, clipping style or fault is a new row.
TABLES = {"tests.oracle", "tests.gradients.settings", "tests.clipping.settings", "tests.audit.faults"}


def module_name(file: Path) -> str:
    """The name under which a file below `tests` is imported."""
    parts = ("tests", *file.relative_to(TESTS).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file): file for file in sorted(TESTS.rglob("*.py"))}


def imported(source: str, package: str) -> Iterator[str]:
    """All names that the source of a module in ``package`` imports, relative ones written out.

    ``from a import b`` gives ``a`` and ``a.b``: `b` may be a module.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def imports_of(name: str) -> set[str]:
    """The modules of `tests` that a module of `tests` imports."""
    file = MODULES[name]
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    return set(imported(file.read_text(encoding="utf-8"), package)) & MODULES.keys()


def is_test(name: str) -> bool:
    return name.rpartition(".")[2].startswith("test_")


def test_no_test_is_imported() -> None:
    found = {name: sorted(filter(is_test, imports_of(name))) for name in MODULES}
    assert {name: tests for name, tests in found.items() if tests} == {}


def test_what_several_folders_use_is_in_support() -> None:
    """A helper outside of `tests/support` serves the tests of its own folder."""
    found = {
        (name, other)
        for name in MODULES
        for other in imports_of(name) - TABLES
        if MODULES[other].name != "__init__.py"
        and other.rpartition(".")[0] not in (name.rpartition(".")[0], "tests.support")
    }
    assert found == set()


@pytest.mark.parametrize(
    "source",
    [
        "from tests.train.test_resume import killed",
        "from tests.train import test_resume",
        "import tests.train.test_resume as resume",
        "def f():\n    from .test_resume import killed",
        "from . import test_resume",
        "from ..train.test_resume import killed",
    ],
)
def test_every_way_to_import_a_test_is_seen(source: str) -> None:
    assert "tests.train.test_resume" in set(imported(source, "tests.train"))
    assert "tests.train.test_resume" in MODULES
