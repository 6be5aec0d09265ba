"""`hoarfrost recipe`: which recipes there are, what one says, and whether it is valid."""

from pathlib import Path
from typing import Annotated

import typer

from hoarfrost.cli.group import command_group

app = command_group("Recipes: which there are, what one says, and whether it is valid.")

Source = Annotated[str, typer.Argument(metavar="RECIPE", help="The path of a TOML file, or a built-in recipe's name.")]
Root = Annotated[
    Path | None,
    typer.Option(help="The folder that a recipe's files must lie below.  [default: the recipe's]", metavar="DIR"),
]


@app.command("list")
def list_() -> None:
    """The built-in recipes."""
    from hoarfrost.recipes.loading import about, recipes

    width = max(map(len, recipes()))
    for name in recipes():
        print(f"{name:<{width}}  {about(name)}")


@app.command()
def show(recipe: Source, root: Root = None) -> None:
    """A recipe with every default filled in, and what its keys mean: TOML that can be trained as it stands."""
    from hoarfrost.recipes import read_recipe, to_toml

    print(to_toml(read_recipe(recipe, root=root), explained=True), end="")


@app.command()
def check(recipe: Source, root: Root = None) -> None:
    """Whether a recipe is valid; if not, the reason, and exit code 2. Neither data nor models are looked at."""
    from hoarfrost.errors import InvalidValue
    from hoarfrost.recipes import read_recipe
    from hoarfrost.recipes.schema import build_what_needs_no_data
    from hoarfrost.untrusted import line, shown_path

    found = read_recipe(recipe, root=root)
    try:
        build_what_needs_no_data(found)
    except InvalidValue as error:
        raise InvalidValue(line(f"{shown_path(recipe)}: {error}")) from error
    print(f"{shown_path(recipe)} is valid")


@app.command()
def reference() -> None:
    """Every table and key of a recipe, with type, default and meaning, as Markdown."""
    from hoarfrost.recipes.reference import reference as text

    print(text(), end="")
