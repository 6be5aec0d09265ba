"""What is wrong with a recipe, in one line: pydantic's findings, told as advice."""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from hoarfrost.untrusted import line, shown

Location = tuple[int | str, ...]

TOLD = 3  # problems; a file of nothing but mistakes is not worth more
LONGEST_WORD = 40


def describe(error: ValidationError, schema: type[BaseModel], given: Mapping[str, Any]) -> str:
    """The first problems in ``given``, by their keys, in one line."""
    problems = error.errors(include_url=False)
    told = [_sentence(problem, schema, given) for problem in problems[:TOLD]]
    if len(problems) > TOLD:
        told.append(f"and {len(problems) - TOLD} more")
    return "; ".join(told)


def _sentence(problem: Any, schema: type[BaseModel], given: Mapping[str, Any]) -> str:
    path = _path(problem["loc"], given)
    key, context, value = ".".join(path), problem.get("ctx", {}), problem["input"]
    match problem["type"]:
        case "extra_forbidden":
            table, last = ".".join(path[:-1]), path[-1]
            known = sorted(_keys_at(schema, problem["loc"][:-1]))
            return f"unknown key {key}{_advice(last, known, f'keys of {table}' if table else 'tables')}"
        case "missing":
            return f"{key} is missing"
        case "value_error":
            message = str(context["error"])
            if path and message.startswith(path[-1]):
                return key + message.removeprefix(path[-1])  # it names the key, if not the table
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


def _keys_at(schema: type[BaseModel], location: Location) -> set[str]:
    """The keys that the table at a location may have."""
    schemas = [schema]
    for part in location:
        deeper = [
            table for each in schemas if part in each.model_fields
            for table in _tables_in(each.model_fields[str(part)].annotation)
        ]  # fmt: skip
        schemas = deeper or [each for each in schemas if part in _tags(each)]
    return {key for each in schemas for key in each.model_fields}


def _tables_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _tables_in(inner)


def _tags(table: type[BaseModel]) -> set[str]:
    return {tag for field in table.model_fields.values() for tag in get_args(field.annotation) if isinstance(tag, str)}
