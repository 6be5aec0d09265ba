"""The types of what a component can be told: each with its bounds, and with words for the reference of recipes.

To Python and to a type checker they are plain ``float``, ``int`` and so on. A recipe that names a value out of bounds
is refused; a component that is built in Python checks its own arguments.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, Field, ValidationInfo

from hoarfrost import validate
from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import shown

# Far beyond any training run, and well within what float32, a thread pool or an accountant can work with.
SMALLEST, LARGEST = 1e-30, 1e30
MOST_OF_ANYTHING = 1_000_000  # a layer's width, classes, ...
MOST_ENTRIES = 64  # of a list: layers, channels, patterns


@dataclass(frozen=True)
class Label:
    """The words for a type in the reference of recipes."""

    text: str


@dataclass(frozen=True)
class File:
    """Marks the path of a file or a folder: `read_recipe` keeps it below the recipe's folder."""


@dataclass(frozen=True)
class Chosen:
    """Marks an argument that is a component itself: in a recipe, a table that chooses one."""

    table: str


def checked(*checks: Callable[..., None]) -> AfterValidator:
    """Runs the library's own checks on a value, under the name of its key."""

    def check(value: Any, info: ValidationInfo) -> Any:
        for each in checks:
            each(**{info.field_name or "value": value})
        return value

    return AfterValidator(check)


def up_to(most: float) -> Callable[..., None]:
    """The check that a number is at most so large."""

    def check(**values: Any) -> None:
        for name, value in values.items():
            if abs(value) > most:
                raise InvalidValue(f"{name} must be at most {most:g}, got {shown(value)}")

    return check


def _not_tiny(**values: float) -> None:
    for name, value in values.items():
        if value < SMALLEST:
            raise InvalidValue(f"{name} must be at least {SMALLEST:g}, got {value}")


Positive = Annotated[
    float, checked(validate.positive, validate.finite, _not_tiny, up_to(LARGEST)), Label("number above 0")
]
NotNegative = Annotated[
    float, checked(validate.not_negative, validate.finite, up_to(LARGEST)), Label("number, 0 or above")
]
Real = Annotated[float, checked(validate.finite, up_to(LARGEST)), Label("number")]
Probability = Annotated[float, checked(validate.probability), Label("number between 0 and 1")]
Rate = Annotated[float, checked(validate.rate), Label("number above 0, at most 1")]
Share = Annotated[float, Field(ge=0, lt=1), Label("number from 0 to below 1")]
Whole = Annotated[int, checked(validate.whole, up_to(MOST_OF_ANYTHING)), Label("whole number, 1 or above")]
# The size comes first where the other check would turn a number of any length into floating point, and overflow.
Count = Annotated[int, checked(up_to(MOST_OF_ANYTHING), validate.not_negative), Label("whole number, 0 or above")]
# A `Count` is of things that there are; a `Natural` may be any number, such as a step or a seed.
Integer = Annotated[int, checked(up_to(10**18)), Label("whole number")]
Natural = Annotated[int, checked(up_to(10**18), validate.not_negative), Label("whole number, 0 or above")]
Text = Annotated[str, Field(max_length=1000), Label("text")]
FilePath = Annotated[str, Field(max_length=1000), File(), Label("path of a file")]
FolderPath = Annotated[str, Field(max_length=1000), File(), Label("path of a folder")]
Widths = Annotated[tuple[Whole, ...], Field(max_length=MOST_ENTRIES)]
Channels = Annotated[tuple[Whole, ...], Field(min_length=1, max_length=MOST_ENTRIES)]
Patterns = Annotated[
    Sequence[Annotated[str, Field(max_length=200), Label("text")]], Field(min_length=1, max_length=MOST_ENTRIES)
]
SomePatterns = Annotated[Sequence[Annotated[str, Field(max_length=200), Label("text")]], Field(max_length=MOST_ENTRIES)]

ClipStyle = Annotated[Any, Chosen("clip")]

_PLAIN = {float: Real, int: Integer, str: Text, bool: bool, type(None): type(None)}


def recipe_type(annotation: Any, chosen: Callable[[str], Any] = lambda table: Any) -> Any:
    """What pydantic checks the key of a recipe by, for an argument that is annotated so.

    Numbers are finite and at most `LARGEST`, texts and lists have a bounded length, and lists become tuples. What a
    recipe cannot write is refused. ``chosen`` says by what the table of a component is checked.

    >>> get_args(recipe_type(list[bool]))[0]
    tuple[bool, ...]
    >>> recipe_type(bytes)
    Traceback (most recent call last):
        ...
    hoarfrost.errors.InvalidValue: bytes cannot be written in a recipe
    """
    if isinstance(annotation, type) and annotation in _PLAIN:
        return _PLAIN[annotation]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        base, *bounds = inner
        for each in bounds:
            if isinstance(each, Chosen):
                return chosen(each.table)
        # Bounds of its own come on top of those that every number and text has; a list's replace the usual length.
        return Annotated[(_container(base, chosen) or recipe_type(base, chosen), *bounds)]
    if origin is Literal:
        return annotation
    if origin in (Union, types.UnionType):
        return reduce(or_, (recipe_type(each, chosen) for each in inner))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        key, value = (recipe_type(each, chosen) for each in inner)
        return Annotated[dict[key, value], Field(max_length=MOST_ENTRIES)]  # type: ignore[valid-type]
    if (found := _container(annotation, chosen)) is not None:
        of_any_length = Ellipsis in get_args(get_args(found)[0])
        return Annotated[found, Field(max_length=MOST_ENTRIES)] if of_any_length else found
    name = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    raise InvalidValue(f"{name} cannot be written in a recipe")


def _container(annotation: Any, chosen: Callable[[str], Any]) -> Any:
    """A tuple for what is a tuple, a list or a sequence. TOML knows lists only; what is in them stays strict."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if not isinstance(origin, type) or not issubclass(origin, Sequence):
        return None
    entries = tuple(each if each is Ellipsis else recipe_type(each, chosen) for each in inner)
    if origin is not tuple:
        entries = (*entries, ...)
    return Annotated[tuple[entries], Field(strict=False)]  # type: ignore[valid-type]


def described(annotation: Any) -> str:
    """A type in words.

    >>> described(Whole | None), described(Literal["a", "b"]), described(tuple[Share, Share])
    ('whole number, 1 or above', '"a" or "b"', 'list of 2: number from 0 to below 1')
    """
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        labels = [each.text for each in inner[1:] if isinstance(each, Label)]
        return labels[-1] if labels else described(inner[0])
    if origin is Literal:
        return " or ".join(f'"{each}"' if isinstance(each, str) else str(each) for each in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(described(each) for each in inner if each is not type(None))
    if annotation is bool:
        return "true or false"
    if isinstance(annotation, type) and annotation in _PLAIN:
        return described(_PLAIN[annotation])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"table of: {described(inner[1])}"
    counted = f"of {len(inner)}: " if origin is tuple and Ellipsis not in inner else "of: "
    return f"list {counted}{described(inner[0])}"
