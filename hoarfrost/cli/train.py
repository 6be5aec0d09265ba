"""`hoarfrost train`"""

from pathlib import Path
from typing import Annotated

import typer

from hoarfrost.cli.oneline import INTERRUPTED

DEFAULT = "digits"


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(help="The path of a TOML file, or the name of a built-in recipe.  [default: digits]"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder.  [default: runs/RECIPE-TIME]", metavar="DIR")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Replace a value, such as privacy.epsilon=2. Repeatable.", metavar="KEY=VALUE"),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Make the run repeatable, noise included: nothing of it may be released.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...  [default: a GPU if there is one]")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print warnings and errors only.")] = False,
) -> None:
    """Train privately, as a recipe says, and leave a run folder.

    The folder holds the weights, the test metrics, the resolved recipe and the budget statement. Ctrl-C ends the run
    after the current step and leaves the folder usable.
    """
    from hoarfrost.train import progress_for, read_recipe, recipes, run

    overrides = list(set_ or ())
    if seed is not None:
        overrides.append(f"privacy.seed={seed}")
    wanted = read_recipe(recipe or DEFAULT, overrides)
    if recipe is None and not quiet:
        print(f"no recipe given: training {DEFAULT} (built in: {', '.join(recipes())})", flush=True)
    result = run(wanted, out=out, device=device, progress=progress_for(quiet))
    if not quiet:
        print(f"\n{result.summary()}", flush=True)
    if result.status == "interrupted":
        raise typer.Exit(INTERRUPTED)
