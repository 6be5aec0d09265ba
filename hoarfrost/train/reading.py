"""A recipe from a TOML file or by its name, with single values replaced; and back into TOML."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hoarfrost.errors import InvalidValue
from hoarfrost.train import problems
from hoarfrost.train.recipe import ALTERNATIVES, Recipe

BUILT_IN = Path(__file__).parent.parent / "recipes"


def recipes() -> tuple[str, ...]:
    """The names of the built-in recipes.

    >>> "digits" in recipes()
    True
    """
    return tuple(sorted(path.stem for path in BUILT_IN.glob("*.toml")))


def read_recipe(source: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """A built-in recipe by its name, or one in a TOML file by its path.

    Args:
        overrides: values that replace the recipe's, such as ``"privacy.epsilon=2"``. What stands after the = is TOML; a
            word needs no quotes. One of two alternatives (epsilon and noise_multiplier, say) replaces the other.

    >>> read_recipe("digits", ["privacy.epsilon=2"]).privacy.epsilon
    2.0
    """
    where, text, folder = _find(source)
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidValue(f"{where} is not valid TOML: {error}") from error
    given.setdefault("name", where.removesuffix(".toml").rsplit("/", 1)[-1])
    _anchor_path(given, folder)
    overrides = list(overrides)
    for override in overrides:
        _set(given, override)
    if overrides:
        _anchor_path(given, Path.cwd())
    try:
        return Recipe.model_validate(given)
    except ValidationError as error:
        raise InvalidValue(f"{where}: {problems.describe(error, Recipe, given)}") from error


def to_toml(recipe: Recipe) -> str:
    """The recipe with every default filled in, as TOML that `read_recipe` reads back.

    >>> "epsilon = 3.0" in to_toml(read_recipe("digits"))
    True
    """
    given = recipe.model_dump(exclude_none=True)
    lines = [f"{key} = {_toml(value)}" for key, value in given.items() if not isinstance(value, dict)]
    for table, entries in given.items():
        if isinstance(entries, dict):
            lines += ["", f"[{table}]", *(f"{key} = {_toml(value)}" for key, value in entries.items())]
    return "\n".join(lines) + "\n"


def _find(source: str | Path) -> tuple[str, str, Path]:
    """How to call the recipe in messages, its text, and the folder that its paths are relative to."""
    name = str(source)
    known = recipes()
    if isinstance(source, str) and name in known:
        return f"{name}.toml", (BUILT_IN / f"{name}.toml").read_text("utf-8"), Path.cwd()
    path = Path(source)
    looks_like_a_path = path.suffix == ".toml" or len(path.parts) > 1
    if not path.exists():
        if looks_like_a_path:
            raise InvalidValue(f"no recipe file at {path}")
        close = get_close_matches(name, known, n=1)
        advice = f"did you mean {close[0]}?" if close else f"built in: {', '.join(known)}"
        raise InvalidValue(f"there is no recipe {name!r}, nor a file of that name; {advice}")
    try:
        return str(path), path.read_text("utf-8"), path.resolve().parent
    except OSError as error:
        raise InvalidValue(f"cannot read the recipe {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidValue(f"{path} is not valid TOML: it is not text in UTF-8") from error


def _anchor_path(given: Mapping[str, Any], folder: Path) -> None:
    """Makes the data's path absolute, so that the recipe means the same wherever it is read next."""
    data = given.get("data")
    if isinstance(data, dict) and isinstance(path := data.get("path"), str):
        data["path"] = str(folder / Path(path).expanduser())


def _set(given: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    *tables, last = (part.strip() for part in key.split("."))
    if not equals or not last or not all(tables):
        raise InvalidValue(f"--set takes key=value, such as privacy.epsilon=2, got {override!r}")
    table = given
    for name in tables:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise InvalidValue(f"--set {override}: {name} is a value, not a table")
    for alternatives in ALTERNATIVES.get(".".join(tables), ()):
        if last in alternatives:
            for other in alternatives:
                table.pop(other, None)
    table[last] = _value(text.strip())


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a word without quotes


def _toml(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    # JSON's strings, whole numbers and booleans are TOML's too; Python's floats are written as TOML reads them.
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
