"""Imports go one way: every room of the library imports rooms of earlier lines alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "hoarfrost"
# A room is a folder or a file below `hoarfrost`. Rooms in one line do not import each other.
ORDER = """
errors nested groups calls
validate untrusted masks tickets losses kept
epochs files registry noise columns
info budget models data
clipping sampling
observers query
measure
gradients freezing
clip freeze
mechanism recipes
optim
run
checkpoint
stages
private
train
hf lightning
audit
testing
cli
__main__
"""
LINE = {room: number for number, line in enumerate(ORDER.strip().splitlines()) for room in line.split()}
# Imports inside a function that go the other way, each with its reason.
LATE = {("run", "checkpoint"): "Private.save and Private.load are methods, and a checkpoint knows what a Private is"}
# What an order cannot say: rooms and packages that a room does without, whatever it imports imports.
WITHOUT = {
    "gradients": {"freezing", "budget", "sampling", "noise", "dp_accounting", "cryptography"},
    "clipping": {"masks", "tickets", "budget", "noise", "dp_accounting", "cryptography"},
    "freezing": {"clipping", "sampling", "gradients", "query"},
    "sampling": {"clipping", "registry", "masks", "info"},
    "mechanism": {"budget", "sampling", "freezing", "dp_accounting"},
    "budget": {"torch", "registry", "noise", "masks"},
    "measure": {"noise", "sampling", "dp_accounting", "cryptography"},
    "registry": {"torch", "numpy", "dp_accounting"},
    "columns": {"torch", "numpy", "registry"},
    "models": {"noise", "masks", "epochs", "dp_accounting"},
    "data": {"noise", "masks", "epochs", "dp_accounting"},
    "recipes": {"gradients", "sampling", "clipping"},
}


def imports(source: str) -> Iterator[tuple[str, bool]]:
    """The rooms and other packages that a source imports, and whether inside a function; not if TYPE_CHECKING."""

    def within(node: ast.AST, late: bool) -> Iterator[tuple[str, bool]]:
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            node = ast.Module(node.orelse, [])
        if isinstance(node, ast.Import):
            yield from ((alias.name, late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports are not looked at"
            yield from ((f"{node.module}.{alias.name}", late) for alias in node.names)
        late = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.iter_child_nodes(node):
            yield from within(child, late)

    for name, late in within(ast.parse(source), late=False):
        package, _, rest = name.partition(".")
        room = rest.partition(".")[0]
        yield (room if package == "hoarfrost" and room in LINE else package), late


def room_of(file: Path) -> str:
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


FOUND = [(room_of(f), *each) for f in sorted(ROOT.rglob("*.py")) for each in imports(f.read_text(encoding="utf-8"))]


def against(room: str, other: str, late: bool) -> bool:
    """Whether this import goes the wrong way."""
    if room == other or room not in LINE or other not in LINE or (late and (room, other) in LATE):
        return False
    return LINE[other] >= LINE[room]


def reached(room: str) -> set[str]:
    """All that is imported with a room, by the whole rooms that it imports."""
    seen: set[str] = set()
    todo = {room}
    while todo:
        seen |= todo
        todo = {other for here, other, late in FOUND if here in todo and not late} - seen
    return seen - {room}


def test_every_room_has_its_place() -> None:
    assert {room_of(file) for file in ROOT.rglob("*.py")} - {"__init__"} == set(LINE)


def test_imports_go_one_way() -> None:
    assert {(room, other) for room, other, late in FOUND if against(room, other, late)} == set()


def test_the_package_itself_imports_no_room() -> None:
    """It hands out names when they are asked for; inside the library, names come from their own room."""
    assert {other for room, other, _ in FOUND if room == "__init__"} & {*LINE} == set()
    assert {(room, other) for room, other, _ in FOUND if other == "hoarfrost"} <= {("cli", "hoarfrost")}  # its version


def test_what_goes_the_other_way_is_still_needed() -> None:
    assert set(LATE) <= {(room, other) for room, other, late in FOUND if late and against(room, other, late=False)}


@pytest.mark.parametrize("room", WITHOUT)
def test_a_room_imports_nothing_that_it_does_not_need(room: str) -> None:
    assert reached(room) & WITHOUT[room] == set()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import hoarfrost.optim.private as p", ("optim", False)),
        ("from hoarfrost import optim", ("optim", False)),
        ("from hoarfrost.optim.private import PrivateOptimizer", ("optim", False)),
        ("try:\n    from hoarfrost import optim\nexcept ImportError:\n    pass", ("optim", False)),
        ("class A:\n    def f(self):\n        from hoarfrost.optim import private", ("optim", True)),
        ("import hoarfrost", ("hoarfrost", False)),
        ("from hoarfrost import make_private", ("hoarfrost", False)),
        ("if TYPE_CHECKING:\n    import hoarfrost.run\nelse:\n    import hoarfrost.optim", ("optim", False)),
        ("import dp_accounting.pld", ("dp_accounting", False)),
    ],
)
def test_every_way_to_import_is_seen(source: str, found: tuple[str, bool]) -> None:
    assert list(imports(source)) == [found]


def test_an_import_against_the_order_is_seen() -> None:
    assert against("clipping", "optim", late=False)
    assert against("clipping", "optim", late=True)
    assert against("noise", "registry", late=False)  # of the same line
    assert against("run", "checkpoint", late=False)
    assert not against("run", "checkpoint", late=True)
    assert not against("optim", "clipping", late=False)
