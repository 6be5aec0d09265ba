"""A recipe from a TOML file or by its name, with single values replaced; and back into TOML."""

import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hoarfrost.errors import InvalidValue
from hoarfrost.recipes import messages
from hoarfrost.recipes.schema import KEYS, LONGEST_NAME, Recipe, Table, alternatives, file_keys, meaning, table_at
from hoarfrost.untrusted import line, shown, shown_path, size_of

BUILT_IN = Path(__file__).parent / "builtin"

LONGEST_FILE = 64 * 1024  # bytes; the longest recipe that makes sense has about two thousand
LONGEST_ENTRY = 200  # characters of a key and its value in one line, as `to_toml` writes them
LONGEST_LINE = 1024  # characters; the parser's time grows with the square of a dotted key's length


def recipes() -> tuple[str, ...]:
    """The names of the built-in recipes.

    >>> "digits" in recipes()
    True
    """
    return tuple(sorted(path.stem for path in BUILT_IN.glob("*.toml")))


def about(name: str) -> str:
    """What a built-in recipe is for, from its first comment.

    >>> about("digits")
    'Handwritten digits, 8x8 pixels, that come with scikit-learn'
    """
    lines = (BUILT_IN / f"{name}.toml").read_text("utf-8").splitlines()
    comment = " ".join(text.removeprefix("#").strip() for text in takewhile(lambda text: text.startswith("#"), lines))
    return re.split(r": |\. ", comment, maxsplit=1)[0]


def read_recipe(source: str | Path, overrides: Iterable[str] = (), root: str | Path | None = None) -> Recipe:
    """A built-in recipe by its name, or one in a TOML file by its path.

    Args:
        overrides: values that replace the recipe's, such as ``"privacy.epsilon=2"``. What stands after the = is TOML; a
            word needs no quotes. One of two alternatives (epsilon and noise_multiplier, say) replaces the other.
        root: the folder that the files a recipe names (``data.path``, ``data.test``, ``freeze.reference``) must lie
            below; by default the one that the recipe itself is in.

    Guarantees:
        Reading runs nothing, writes nothing, and takes well under a second, whatever the file holds. The data that a
        file names lies below the root, with every link and ``..`` followed: a recipe from somebody else cannot reach
        for other files. Whoever gives an override is trusted: its path may lie anywhere, and is relative to the current
        folder.

    >>> read_recipe("digits", ["privacy.epsilon=2"]).privacy.epsilon
    2.0
    """
    found = _find(source)
    given = _parsed(found)
    given.setdefault("name", found.name)
    said: dict[str, Any] = {}  # what the overrides alone say
    for override in overrides:
        _set(given, override)
        _set(said, override)
    for name in Recipe.model_fields:
        tables: tuple[str, ...] = (name,)
        while _table(given, tables):
            for key in file_keys(name):
                _anchor_path((*tables, key), given, said, found, root)
            tables += ("also",)
    try:
        return Recipe.model_validate(given)
    except ValidationError as error:
        raise InvalidValue(line(f"{found.shown}: {messages.describe(error, given)}")) from error


def to_toml(recipe: Recipe, *, explained: bool = False) -> str:
    """The recipe with every default filled in, as TOML that `read_recipe` reads back.

    Args:
        explained: with what every key means, as a comment.

    >>> "epsilon = 3.0" in to_toml(read_recipe("digits"))
    True
    """
    return "\n".join(_lines(recipe, explained)) + "\n"


def _lines(table: Table | Mapping[str, Any], explained: bool, above: str = "", about: str = "") -> Iterator[str]:
    """A table's own values first, then the tables in it; none within braces, whose one line may be too long to be read.

    Args:
        above: the tables that it lies in, each with a dot behind it.
        about: what every key of it means, if it has keys of the user's own.
    """
    if isinstance(table, Mapping):
        said = {as_toml(key): value for key, value in table.items()}
        meanings = dict.fromkeys(said, about)
    else:
        said = {key: value for key, value in table if value is not None}
        meanings = {key: meaning(type(table), key) for key in said}
    values = {
        key: value for key, value in said.items() if not isinstance(value, Table | Mapping) and not _tables(value)
    }
    yield from _entries(values, meanings if explained else {})
    for key, value in said.items():
        if isinstance(value, Table | Mapping):
            yield from ("", f"[{above}{key}]", *_lines(value, explained, f"{above}{key}.", meanings[key]))
        for each in _tables(value):
            yield from ("", f"[[{above}{key}]]", *_lines(each, explained, f"{above}{key}.", meanings[key]))


def _tables(value: Any) -> tuple[Table, ...]:
    """The tables of a list that holds nothing else."""
    return value if isinstance(value, tuple) and all(isinstance(each, Table) for each in value) else ()


def _entries(values: Mapping[str, Any], meanings: Mapping[str, str]) -> Iterator[str]:
    texts = {key: f"{key} = {as_toml(value)}" for key, value in values.items()}
    long = {key for key, text in texts.items() if len(text) > LONGEST_ENTRY and isinstance(values[key], tuple)}
    width = max((len(text) for key, text in texts.items() if key not in long), default=0)
    for key, text in texts.items():
        comment = f"  # {_first_sentence(meanings[key])}" if key in meanings else ""
        if key in long:  # a list, one entry in a line
            yield from (f"{key} = [{comment}", *(f"  {as_toml(each)}," for each in values[key]), "]")
        else:
            yield f"{text:<{width}}{comment}" if comment else text


def _first_sentence(text: str) -> str:
    return re.split(r"\. ", text, maxsplit=1)[0].removesuffix(".").replace("``", "")


@dataclass(frozen=True)
class _Found:
    """A recipe's text, and where it comes from."""

    text: str
    name: str  # what the recipe is called, unless it says so itself
    shown: str  # what it is called in messages
    folder: Path  # what its paths are relative to


def _find(source: str | Path) -> _Found:
    known = recipes()
    if isinstance(source, str) and source in known:
        text = (BUILT_IN / f"{source}.toml").read_text("utf-8")
        return _Found(text, source, f"{source}.toml", Path.cwd())
    path = Path(source)
    looks_like_a_path = path.suffix == ".toml" or len(path.parts) > 1
    if not looks_like_a_path and not os.path.exists(path):
        close = get_close_matches(str(source)[:LONGEST_NAME], known, n=1)
        advice = f"did you mean {close[0]}?" if close else f"built in: {', '.join(known)}"
        raise InvalidValue(line(f"there is no recipe {shown(str(source))}, nor a file of that name; {advice}"))
    return _Found(_read(path), _name_after(path), shown_path(path), path.resolve().parent)


def _read(path: Path) -> str:
    if size_of(path, "recipe file") <= LONGEST_FILE:
        try:
            with open(path, "rb") as file:
                content = file.read(LONGEST_FILE + 1)  # it may have grown, or not know its own size
            if len(content) <= LONGEST_FILE:
                return content.decode("utf-8")
        except OSError as error:
            raise InvalidValue(f"cannot read the recipe file {shown_path(path)}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise InvalidValue(f"{shown_path(path)} is not valid TOML: it is not text in UTF-8") from error
    raise InvalidValue(f"{shown_path(path)} is longer than {LONGEST_FILE // 1024} KiB: it cannot be a recipe")


def _name_after(path: Path) -> str:
    """A recipe's name from that of its file, with dashes for what a folder should not be called."""
    return re.sub(r"[^\w.+-]", "-", path.stem).lstrip(".+-")[:LONGEST_NAME] or "run"


def _parsed(found: _Found) -> dict[str, Any]:
    for number, text in enumerate(found.text.split("\n"), 1):
        if len(text) > LONGEST_LINE:
            raise InvalidValue(
                f"{found.shown}: line {number} is longer than {LONGEST_LINE} characters; no value of a recipe is"
            )
    try:
        return tomllib.loads(found.text)
    except RecursionError as error:
        raise InvalidValue(f"{found.shown} is nested too deeply: a recipe has tables, and values in them") from error
    except ValueError as error:  # TOML that is wrong, and a number with thousands of digits
        raise InvalidValue(line(f"{found.shown} is not valid TOML: {error}")) from error


def _anchor_path(
    keys: tuple[str, ...], given: dict[str, Any], said: dict[str, Any], found: _Found, root: str | Path | None
) -> None:
    """Makes the path that stands there absolute, so that the recipe means the same wherever it is read next."""
    *tables, last = keys
    table, overriding = _table(given, tables), _table(said, tables)
    if not isinstance(path := table.get(last), str):
        return
    if last in overriding:
        table[last] = str(Path.cwd() / os.path.expanduser(path))
        return
    allowed = _followed(found.folder if root is None else Path(os.path.expanduser(root)))
    if not allowed.is_dir():
        raise InvalidValue(f"the root {shown_path(allowed)} is not a folder")
    # The file behind every link is the one that is checked, and the one that is opened later.
    real = _followed(found.folder / os.path.expanduser(path))
    if not real.is_relative_to(allowed):
        raise InvalidValue(
            f"{line(found.name, 30)}: {'.'.join(keys)} {shown_path(path)} lies outside of {shown_path(allowed)}; if "
            "you trust it, allow a folder above it with --root DIR"
        )
    table[last] = str(real)


def _table(given: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The table of that name, or one with nothing in it."""
    found: Any = given
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _followed(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, a name that is too long or has a NUL
        raise InvalidValue(line(f"the path {shown_path(path)} cannot be followed: {error}")) from error


def _set(given: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    path = _path(key) if equals else ()
    if not path:
        raise InvalidValue(f"--set takes key=value, such as privacy.epsilon=2, got {shown(override)}")
    *tables, last = path
    if last == "kind" and len(tables) == 1:
        last = KEYS.get(tables[0], last)
    table = given
    for name in tables:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise InvalidValue(line(f"--set {override}: {name} is a value, not a table"))
    for group in alternatives(".".join(name for name in tables if name != "also")):
        if last in group:
            for other in group:
                table.pop(other, None)
    value = _value(text.strip())
    form = table_at(Recipe, tables[0], {**table, last: value}) if len(tables) == 1 else None
    if form is not None and last == KEYS.get(tables[0], "kind") and table.get(last) != value:
        # What was said to another component does not concern this one.
        for key in table.keys() - form.model_fields.keys():
            del table[key]
    table[last] = value


def _path(key: str) -> tuple[str, ...]:
    """The parts of a dotted key, some of them perhaps in quotes, as TOML reads it; none of what is no key."""
    try:
        found: Any = tomllib.loads(f"{key} = 0") if len(key) <= LONGEST_LINE and "\n" not in key else 0
    except (ValueError, RecursionError):
        return ()
    path = []
    while isinstance(found, dict):
        ((name, found),) = found.items()
        path.append(name)
    return tuple(path)


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text  # a word without quotes


def _key(name: str) -> str:
    """A key, in quotes if TOML wants them."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def as_toml(value: Any) -> str:
    """A value, as TOML writes it."""
    if isinstance(value, Table):
        return as_toml({key: each for key, each in value if each is not None})
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {as_toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(as_toml, value))}]"
    # JSON's strings, whole numbers and booleans are TOML's too; Python's floats are written as TOML reads them.
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
