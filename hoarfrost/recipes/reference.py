"""Every table and key of a recipe, with type, default and meaning: `hoarfrost recipe reference > docs/recipes.md`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

from hoarfrost.recipes.loading import about, as_toml, recipes
from hoarfrost.recipes.schema import DEFAULTS, KEYS, ComponentTable, Recipe, Table, forms, meaning, several
from hoarfrost.registry import components
from hoarfrost.registry.docstrings import meanings, summary
from hoarfrost.registry.types import described

INTRODUCTION = """\
# Recipes

<!-- Made by `hoarfrost recipe reference > docs/recipes.md`: change the docstrings, not this page. -->

A recipe is a TOML file that says everything about one training run. `hoarfrost train RECIPE` runs it,
`hoarfrost recipe show RECIPE` prints it with every default, `hoarfrost recipe check RECIPE` says whether it is valid.
An unknown key, a wrong type or an impossible value is refused before anything runs. Every number is finite.
"""


def reference() -> str:
    """The whole page.

    >>> print(reference().splitlines()[0])
    # Recipes
    """
    return "\n".join(_page())


def _page() -> Iterator[str]:
    yield INTRODUCTION
    yield from ("| built in | |", "|---|---|", *(f"| `{name}` | {about(name)} |" for name in recipes()), "")
    yield from _rows(_keys(Recipe, ["name"]))
    for name in Recipe.model_fields:
        tables = forms(name)
        if not tables:
            continue
        needed = "" if Recipe.model_fields[name].is_required() else " (may be left out)"
        header = f"[[{name}]]" if several(name) else f"[{name}]"
        yield from (f"## `{header}`{needed}", "")
        choices = [form for form in tables if issubclass(form, ComponentTable)]
        yield from _choosing(name, choices) if choices else _plain(name, *tables)


def _choosing(name: str, choices: Sequence[type[ComponentTable]]) -> Iterator[str]:
    key = KEYS.get(name, "kind")
    yield f"{_code(_sentence(meanings(Recipe.__doc__)[name]))} `{key}` is one of these:\n"
    for form in choices:
        of = form._component
        default = " (the default)" if DEFAULTS.get(name) == of.kind else ""
        yield from (f'### `{key} = "{of.kind}"`{default}', "", _code(of.summary), "")
        yield from _rows(_keys(form, [argument.name for argument in of.arguments]))
        yield from _groups(form)
    if name == "freeze":
        yield "`[freeze.also]` is " + meaning(choices[0], "also") + " It has the same keys.\n"


def _plain(name: str, of: type[Table]) -> Iterator[str]:
    yield from (_code(paragraph) + "\n" for paragraph in _prose(of))
    yield from _rows(_keys(of, of.model_fields))
    yield from _groups(of)
    if name == "data":
        rows = (f"| `{each.kind}` | {_code(each.summary)} |" for each in components("data").values())
        yield from ("| name | |", "|---|---|", *rows, "")


def _keys(of: type[Table], names: Iterable[str]) -> Iterator[tuple[str, str, str, str]]:
    for name in names:
        field = of.model_fields[name]
        kind = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        default = "required" if field.is_required() else "" if field.default is None else f"`{as_toml(field.default)}`"
        yield f"`{name}`", described(kind), default, _code(_sentence(meaning(of, name)))


def _rows(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    texts = ["| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in rows]
    if texts:
        yield from ("| key | type | default | meaning |", "|---|---|---|---|", *texts, "")


def _groups(of: type[Table]) -> Iterator[str]:
    for how, groups in (("Exactly", of._one_of), ("At most", of._at_most_one)):
        for group in groups:
            yield f"{how} one of {', '.join(f'`{key}`' for key in group)} is given.\n"


def _prose(of: type[Table]) -> Iterator[str]:
    """A docstring's paragraphs before its arguments."""
    for paragraph in inspect.cleandoc(of.__doc__ or "").split("\n\n"):
        if paragraph.startswith("Args:"):
            return
        yield summary(paragraph)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] if text[:1].isascii() else text  # Γ is another symbol than γ


def _code(text: str) -> str:
    """In Markdown, code stands between single quotes of that kind."""
    return text.replace("``", "`")
