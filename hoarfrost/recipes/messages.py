"""What is wrong with a recipe, in one line: pydantic's findings, told as advice."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from hoarfrost.recipes.schema import Recipe, Table, table_at
from hoarfrost.untrusted import line, shown

Location = tuple[int | str, ...]

TOLD = 3  # problems; a file of nothing but mistakes is not worth more
LONGEST_WORD = 40


def describe(error: ValidationError, given: Mapping[str, Any]) -> str:
    """The first problems in ``given``, by their keys, in one line."""
    problems = error.errors(include_url=False)
    told = [_sentence(problem, given) for problem in problems[:TOLD]]
    if len(problems) > TOLD:
        told.append(f"and {len(problems) - TOLD} more")
    return "; ".join(told)


def _sentence(problem: Any, given: Mapping[str, Any]) -> str:
    path = _path(problem["loc"], given)
    key, context, value = ".".join(path), problem.get("ctx", {}), problem["input"]
    match problem["type"]:
        case "extra_forbidden":
            table, last = ".".join(path[:-1]), path[-1]
            known = sorted(_keys_at(problem["loc"][:-1], given))
            return f"unknown key {key}{_advice(last, known, f'keys of {table}' if table else 'tables')}"
        case "missing":
            return f"{key} is missing"
        case "value_error":
            message = str(context["error"])
            if path and message.startswith(path[-1]):
                return key + message.removeprefix(path[-1])  # it names the key, if not the table
            if path and message.split(maxsplit=1)[0] in _keys_at(problem["loc"], given):
                return f"{key}.{message}"
            return f"{key}: {message}" if path else message
        case "union_tag_invalid":
            known = [tag.strip("' ") for tag in context["expected_tags"].split(",")]
            name = context["discriminator"].strip("'")
            return f"{key}.{name} cannot be {shown(context['tag'])}{_advice(context['tag'], known, 'it is one of')}"
        case "union_tag_not_found":
            return f"{key}.{context['discriminator'].strip(chr(39))} is missing"
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"{key} must be a table, got {shown(value)}"
        case _:
            rule = re.sub(r"^\w+ should", "must", problem["msg"])
            return f"{key}: {rule}, got {shown(value)}"


def _path(location: Location, given: Any) -> list[str]:
    """The keys as the user wrote them; pydantic puts the chosen member of a union among them."""
    path = []
    for position, part in enumerate(location):
        if isinstance(given, Mapping):
            inside = part in given
        else:  # an entry of a list, unless it is one that is missing
            inside = isinstance(given, list) and isinstance(part, int) and part < len(given)
        if inside or position == len(location) - 1:
            path.append(line(str(part), LONGEST_WORD))
        if inside:
            given = given[part]
    return path


def _advice(word: str, known: list[str], these: str) -> str:
    close = get_close_matches(word[:LONGEST_WORD], known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; {these}: {', '.join(known)}"


def _keys_at(location: Location, given: Any) -> set[str]:
    """The keys that the table at a location may have, where it chooses what the given one does."""
    table: type[Table] | None = Recipe
    for part in location:
        given = given.get(part) if isinstance(given, Mapping) else None
        table = None if table is None else table_at(table, str(part), given)
    return set() if table is None else set(table.model_fields)
