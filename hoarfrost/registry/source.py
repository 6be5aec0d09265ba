"""The library's own components, read from their source and not imported.

Clipping styles, freezers and models import torch, and a recipe is read, checked and refused without waiting for that.
So their classes are not asked for their arguments: the files are parsed, and decorators, fields, signatures and
docstrings are looked at. What is read must be what an import finds: a test compares both for every component, and
arguments that come from a base class in another file are refused when the class is defined.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hoarfrost.errors import InvalidValue
from hoarfrost.registry.component import EMPTY, Argument, Component, checked_arguments
from hoarfrost.registry.docstrings import meanings, summary

# What types and defaults may come from: none of them imports torch.
LIGHT = {"typing", "collections.abc", "hoarfrost.registry", "hoarfrost.registry.types"}
IGNORED = {"examples"}  # it is asked for when audits run

Definition = ast.ClassDef | ast.FunctionDef
Found = tuple[str, Callable[[], Any], Any]


@cache
def read(package: str, table: str) -> Mapping[str, Component]:
    """The components that a package's modules register for a table, by kind.

    >>> read("hoarfrost.clipping", "clip")["local"].where
    'hoarfrost.clipping.local:Local'
    """
    spec = find_spec(package)
    assert spec is not None
    found: dict[str, Component] = {}
    for folder in spec.submodule_search_locations or ():
        for path in sorted(Path(folder).glob("*.py")):
            text = path.read_text("utf-8")
            if "@component(" not in text:
                continue
            for each in _components(ast.parse(text), f"{package}.{path.stem}"):
                if each.table != table:
                    raise InvalidValue(f"{each.where}: what is in {package} belongs to the table {table}")
                if each.kind in found:
                    raise InvalidValue(
                        f"{each.where}: there is a {each.table} {each.kind!r} already, {found[each.kind].where}"
                    )
                found[each.kind] = each
    return MappingProxyType(found)


def _components(module: ast.Module, name: str) -> Iterator[Component]:
    names = _Names(module)
    for node in module.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "component":
                    yield _component(node, decorator, f"{name}:{node.name}", names)


def _component(node: Definition, decorator: ast.Call, where: str, names: _Names) -> Component:
    options: dict[str, Any] = {}
    for keyword in decorator.keywords:
        if keyword.arg == "check":
            raise InvalidValue(f"{where}: it is not imported when a recipe is read; let its constructor check")
        if keyword.arg is not None and keyword.arg not in IGNORED:
            options[keyword.arg] = names.value(keyword.value)
    table, kind = map(names.value, decorator.args)
    arguments, given = _arguments(node, table, names)
    return Component(table, kind, where, summary(ast.get_docstring(node)), arguments, given, **options)


def _arguments(node: Definition, table: str, names: _Names) -> tuple[tuple[Argument, ...], tuple[str, ...]]:
    said = dict(meanings(ast.get_docstring(node)))
    if isinstance(node, ast.FunctionDef):
        return checked_arguments(node.name, table, _parameters(node, names, method=False), said)
    functions = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
    make = functions.get("from_recipe") or functions.get("__init__")
    if make is None:
        return checked_arguments(node.name, table, _fields(node, names), said)
    said |= meanings(ast.get_docstring(make))
    return checked_arguments(node.name, table, _parameters(make, names, method=True), said)


def _fields(node: ast.ClassDef, names: _Names) -> Iterator[Found]:
    """Of a dataclass."""
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            default = EMPTY if each.value is None else names.value(each.value)
            yield each.target.id, lambda each=each: names.value(each.annotation), default  # type: ignore[misc]


def _parameters(make: ast.FunctionDef, names: _Names, *, method: bool) -> Iterator[Found]:
    if make.args.vararg or make.args.kwarg or make.args.posonlyargs:
        raise InvalidValue(f"{make.name}: a recipe cannot write unnamed arguments")
    positional = make.args.args
    missing = [None] * (len(positional) - len(make.args.defaults))
    defaults = [*missing, *make.args.defaults, *make.args.kw_defaults]
    pairs = list(zip([*positional, *make.args.kwonlyargs], defaults, strict=True))
    for each, default in pairs[1:] if method else pairs:  # without self, or the class
        yield (
            each.arg,
            lambda each=each: EMPTY if each.annotation is None else names.value(each.annotation),  # type: ignore[misc]
            EMPTY if default is None else names.value(default),
        )


class _Names(dict[str, Any]):
    """What names mean in a module, as far as its types and constants need it."""

    def __init__(self, module: ast.Module) -> None:
        super().__init__()
        self._imports = {
            alias.asname or alias.name: (node.module, alias.name)
            for node in module.body
            if isinstance(node, ast.ImportFrom) and node.module in LIGHT
            for alias in node.names
        }
        self._constants = {
            node.targets[0].id: node.value
            for node in module.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }

    def value(self, node: ast.expr) -> Any:
        """What an expression stands for."""
        return eval(compile(ast.Expression(node), "<component>", "eval"), {"__builtins__": {}}, self)

    def __missing__(self, name: str) -> Any:
        if name in self._imports:
            module, original = self._imports[name]
            self[name] = getattr(import_module(module or ""), original)
        elif name in self._constants:
            self[name] = self.value(self._constants[name])
        elif hasattr(builtins, name):
            self[name] = getattr(builtins, name)
        else:
            raise NameError(f"{name} is none of the types that a recipe can write")
        return self[name]
