"""Registering a component, and finding it again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, TypeVar

from hoarfrost.errors import InvalidValue
from hoarfrost.registry.component import Argument, Component, Groups, arguments_of
from hoarfrost.registry.docstrings import summary
from hoarfrost.registry.source import read

Target = TypeVar("Target", bound=Callable[..., Any])

# Where the library's own components are. These modules import torch: they are read, not imported.
READ = {
    "clip": "hoarfrost.clipping",
    "freeze": "hoarfrost.freezing",
    "model": "hoarfrost.models",
    "measure": "hoarfrost.measure",
}
# These import torch when something is built. (Data sets do at once, but no recipe is checked against their names.)
IMPORTED = {
    "loss": "hoarfrost.recipes.losses",
    "peft": "hoarfrost.recipes.adapters",
    "optimizer": "hoarfrost.recipes.optimizers",
    "schedule": "hoarfrost.recipes.schedules",
    "data": "hoarfrost.data",
}
TABLES = (*READ, *IMPORTED)

_REGISTERED: dict[tuple[str, str], Component] = {}


def component(
    table: str,
    kind: str,
    *,
    examples: Callable[[], Iterable[Any]] = tuple,
    one_of: Groups = (),
    at_most_one: Groups = (),
    check: Callable[..., None] | None = None,
    takes: tuple[int, ...] | None = None,
    tokenizer: str | None = None,
) -> Callable[[Target], Target]:
    """Makes a class or a function something that a recipe can name: the one place where it is registered.

    The constructor's arguments (a dataclass's fields, or those of ``__init__``), or a function's, are the keys of the
    recipe's table, with their types and defaults. The docstring goes into the reference of recipes. Audits try the
    ``examples``. A class that needs more than its keys has a classmethod ``from_recipe``, whose arguments then count;
    those that are listed in `GIVEN` are no keys, and are handed over.

    The library's own clipping styles, freezers and models are not imported when a recipe is read, since that would
    import torch: `registry/source.py` takes all this from their source. So the decorator's arguments are constants
    there, types come from ``typing`` or `hoarfrost.registry`, and what ``__post_init__`` or ``__init__`` refuses is
    refused when the run is prepared. Classes from elsewhere are built, and so refuse, when a recipe is checked.

    Args:
        table: "clip", "freeze", "loss", "peft", "optimizer", "schedule", "model", "measure" or "data".
        kind: its name in a recipe.
        examples: what audits should try, made when they run. Of a clipping style, instances. Of a freezer, pairs: an
            instance, and about which share of the coordinates it leaves live. Of an optimizer, pairs: the name of the
            setting, and its arguments.
        one_of: groups of keys that say one thing in different ways: of each group exactly one is said.
        at_most_one: as ``one_of``, but none need be said.
        check: is handed all keys when a recipe is checked. For functions: a class checks in its constructor.
        takes: the shape of an example, of a model that takes no other.
        tokenizer: of a model for texts: ``"module:name"`` of a function that loads its tokenizer, from those of the
            model's arguments that it has as well (`hoarfrost.data.Tokenizer` says what it gives).

    >>> from dataclasses import dataclass
    >>> @component("schedule", "halving")
    ... @dataclass
    ... class Halving:
    ...     '''The learning rate is halved.
    ...
    ...     Args:
    ...         every: after so many epochs.
    ...     '''
    ...     every: int = 10
    >>> components("schedule")["halving"].arguments[0].meaning
    'after so many epochs.'
    >>> forget("schedule", "halving")
    """
    if table not in TABLES:
        raise InvalidValue(f"no table {table!r} of a recipe chooses a component; these do: {', '.join(TABLES)}")

    def register(target: Target) -> Target:
        where = f"{target.__module__}:{target.__qualname__}"
        own = read(READ[table], table).get(kind) if table in READ else None
        known = own or _REGISTERED.get((table, kind))
        if known is not None and known.where != where:  # the same place again is a module that is loaded again
            raise InvalidValue(f"{where}: there is a {table} {kind!r} already, {known.where}")
        arguments, given = arguments_of(target, table)
        if own is not None and _names(own.arguments) != _names(arguments):
            shown, has = _names(own.arguments), _names(arguments)
            raise InvalidValue(f"{where}: write its arguments out: its file shows {shown}, it has {has}")
        _REGISTERED[table, kind] = Component(
            table, kind, where, summary(target.__doc__), arguments, given, one_of, at_most_one, takes, tokenizer,
            target, check, examples,
        )  # fmt: skip
        return target

    return register


def forget(table: str, kind: str) -> None:
    """Takes back a registration, as examples and tests need it."""
    del _REGISTERED[table, kind]


def components(table: str) -> dict[str, Component]:
    """What a table can choose from, by kind. Nothing that needs torch is imported.

    >>> "local" in components("clip")
    True
    """
    if table in READ:
        own = read(READ[table], table)  # also where it is imported by now: a recipe's tables stay the same objects
        return {**own, **{kind: each for kind, each in _registered(table).items() if kind not in own}}
    import_module(IMPORTED[table])
    return _registered(table)


def loaded(table: str) -> dict[str, Component]:
    """As `components`, with their modules imported: with their examples."""
    for each in components(table).values():
        if each.target is None:
            import_module(each.where.partition(":")[0])
    return {kind: _REGISTERED[table, kind] for kind in components(table)}


def _names(arguments: Iterable[Argument]) -> str:
    return ", ".join(argument.name for argument in arguments)


def _registered(table: str) -> dict[str, Component]:
    return {kind: each for (its, kind), each in _REGISTERED.items() if its == table}
