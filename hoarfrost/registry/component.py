"""A component as a recipe knows it: its kind, and its arguments with their types, defaults and meanings."""

from __future__ import annotations

import inspect
import sys
from collections import ChainMap
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from hoarfrost.errors import InvalidValue
from hoarfrost.registry.docstrings import meanings
from hoarfrost.registry.types import recipe_type

Groups = tuple[tuple[str, ...], ...]
EMPTY = inspect.Parameter.empty

# Arguments of these names are no keys of a recipe: they are handed over when the component is built.
GIVEN: dict[str, tuple[str, ...]] = {
    # The shape of an example, how many outputs are needed (one for each class), and what puts adapters into the model.
    "model": ("shape", "classes", "adapters"),
    "peft": ("head",),  # the names of the modules of the model's head
    "measure": ("outside",),  # the gradients outside of the steps
    "optimizer": ("params",),  # the model's parameters
    "freeze": (
        "network",
        "loss",
        "own_data",
        "load_data",
    ),  # the model, its loss, the private data set's name, what loads others
}


@dataclass(frozen=True)
class Argument:
    """A key of a recipe: an argument of a component."""

    name: str
    type: Any
    default: Any  # EMPTY if a recipe must say it
    meaning: str


@dataclass(frozen=True, eq=False)
class Component:
    """A clipping style, a freezer, an optimizer, ... that a recipe can name."""

    table: str
    kind: str
    where: str  # module:name
    summary: str
    arguments: tuple[Argument, ...]
    given: tuple[str, ...]  # those of GIVEN that it takes
    one_of: Groups = ()  # of each group exactly one is said
    at_most_one: Groups = ()
    takes: tuple[int, ...] | None = None  # the shape of an example, if a model takes no other
    tokenizer: str | None = None  # module:name of what loads the tokenizer of a model for texts, from the same keys
    target: Callable[..., Any] | None = None  # None if it was read from its source
    check: Callable[..., None] | None = None
    examples: Callable[[], Iterable[Any]] = tuple  # what audits try; none by default

    def build(self, at: str, keys: Mapping[str, Any], **given: Any) -> Any:
        """The component itself. What it refuses is told under its place in the recipe, ``at``."""
        target = self.target or _found(self.where)
        make = getattr(target, "from_recipe", target)
        try:
            return make(**{name: given[name] for name in self.given}, **keys)
        except InvalidValue as error:
            raise InvalidValue(self.placed(at, str(error))) from error

    def load_tokenizer(self, at: str, keys: Mapping[str, Any]) -> Any:
        """The tokenizer of a model for texts, from those of the model's keys that it takes."""
        if self.tokenizer is None:
            raise InvalidValue(f"{at}: {self.kind} has no tokenizer, and data.text needs one")
        load = _found(self.tokenizer)
        try:
            return load(**{name: keys[name] for name in inspect.signature(load).parameters if name in keys})
        except InvalidValue as error:
            raise InvalidValue(self.placed(at, str(error))) from error

    def check_keys(self, keys: Mapping[str, Any]) -> None:
        """Lets the component refuse its keys, as far as it can without being imported and without what it is given."""
        if self.check is not None:
            self.check(**keys)
        if self.target is not None and not self.given:
            getattr(self.target, "from_recipe", self.target)(**keys)

    def placed(self, at: str, message: str) -> str:
        """A message under its key, unless it names the table itself.

        >>> local = Component("clip", "local", "", "", (Argument("norm", float, 1.0, "length"),), ())
        >>> local.placed("clip", "norm must be above 0"), local.placed("clip", "give one")
        ('clip.norm must be above 0', 'clip: give one')
        """
        if message.split(maxsplit=1)[0] in {argument.name for argument in self.arguments}:
            return f"{at}.{message}"
        return message if f"{self.table}." in message or f"the {self.table} " in message else f"{at}: {message}"


def _found(where: str) -> Callable[..., Any]:
    module, _, name = where.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def check_groups(one_of: Groups, at_most_one: Groups, said: Container[str]) -> None:
    """Of keys that say one thing in different ways, one is said.

    >>> check_groups((("epochs", "steps"),), (), {"epochs"})
    >>> check_groups((), (("step", "epoch"),), {"step", "epoch"})
    Traceback (most recent call last):
        ...
    hoarfrost.errors.InvalidValue: give one of step= and epoch=
    """
    for group in one_of:
        given = [key for key in group if key in said]
        if len(given) != 1:
            raise InvalidValue(f"give either {' or '.join(group)}, {'not both' if given else 'one of them'}")
    for group in at_most_one:
        if sum(key in said for key in group) > 1:
            *others, last = (f"{key}=" for key in group)
            raise InvalidValue(f"give one of {', '.join(others)} and {last}")


def arguments_of(target: Callable[..., Any], table: str) -> tuple[tuple[Argument, ...], tuple[str, ...]]:
    """The keys that a class or a function has in a recipe, and what it is given beside them."""
    make = getattr(target, "from_recipe", target)
    said = {**meanings(target.__doc__), **meanings(make.__doc__)}
    found = []
    for parameter in inspect.signature(make).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InvalidValue(f"{target.__qualname__}: a recipe cannot write {parameter}; name the arguments")
        annotation = parameter.annotation
        found.append((parameter.name, lambda text=annotation: _evaluated(text, make), parameter.default))
    return checked_arguments(target.__qualname__, table, found, said)


def checked_arguments(
    what: str, table: str, found: Iterable[tuple[str, Callable[[], Any], Any]], said: Mapping[str, str]
) -> tuple[tuple[Argument, ...], tuple[str, ...]]:
    """Arguments with their annotations (which those that are given need not have) and defaults, as keys of a recipe."""
    keys, given = [], []
    for name, annotation, default in found:
        if name in GIVEN.get(table, ()):
            given.append(name)
            continue
        try:
            kind = annotation()
            if kind is EMPTY:
                raise InvalidValue("it has no type; annotate it")
            recipe_type(kind)
        except (InvalidValue, NameError) as error:
            raise InvalidValue(f"{what}: the argument {name} cannot be a recipe's key: {error}") from error
        keys.append(Argument(name, kind, default, said.get(name, "")))
    return tuple(keys), tuple(given)


def _evaluated(annotation: Any, make: Callable[..., Any]) -> Any:
    """The type. An annotation that is text is read as in the module that it was written in."""
    if not isinstance(annotation, str):
        return annotation
    owners = make.__mro__ if isinstance(make, type) else (make,)  # a dataclass has fields from its bases, too
    return eval(annotation, {}, ChainMap(*(vars(sys.modules[each.__module__]) for each in owners)))
