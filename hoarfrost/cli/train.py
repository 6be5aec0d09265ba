"""`hoarfrost train`"""

import json
from pathlib import Path
from typing import Annotated

import typer

from hoarfrost.cli.errors import INTERRUPTED
from hoarfrost.cli.ledger import opened
from hoarfrost.cli.recipe import Root

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
    ledger: Annotated[
        Path | None, typer.Option(help="The data set's ledger.  [default: one in the run folder]", metavar="PATH")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="The ledger owner's key.", metavar="FILE")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with a run: its folder, or one of its checkpoints.", metavar="RUN")
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(help="With --resume: go on although this key of the recipe, or data, has changed.", metavar="KEY"),
    ] = None,
    measure: Annotated[
        str | None,
        typer.Option(help="Measure these on the way, without privacy, into not-private/.", metavar="KIND,KIND,..."),
    ] = None,
    root: Root = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...  [default: a GPU if there is one]")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print warnings and errors only.")] = False,
) -> None:
    """Train privately, as a recipe says, and leave a run folder.

    The folder holds the weights, the test metrics, the resolved recipe, the ledger and the budget statement. Ctrl-C
    ends the run after the current step and leaves the folder usable; --resume goes on with it.
    """
    from hoarfrost.errors import InvalidValue
    from hoarfrost.train import read_recipe, recipes

    overrides = list(set_ or ())
    if seed is not None:
        overrides.append(f"privacy.seed={seed}")
    if measure is not None:
        wanted_kinds = ", ".join(f"{{kind = {json.dumps(kind.strip())}}}" for kind in measure.split(","))
        overrides.append(f"measure=[{wanted_kinds}]")
    if key is not None and ledger is None:
        raise InvalidValue("--key is the key of a ledger: name the ledger with --ledger PATH")
    if resume is None:
        if accept:
            raise InvalidValue("--accept is for a run that is resumed: name it with --resume RUN")
        wanted = read_recipe(recipe or DEFAULT, overrides, root)
        if recipe is None and not quiet:
            print(f"no recipe given: training {DEFAULT} (built in: {', '.join(recipes())})", flush=True)
    elif recipe is not None or out is not None:
        raise InvalidValue("--resume goes on in its own folder with its own recipe: leave out RECIPE and --out")

    from hoarfrost import train as training

    shared = None if ledger is None else opened(ledger, key)
    progress = training.progress_for(quiet)
    if resume is None:
        result = training.run(wanted, out=out, device=device, progress=progress, ledger=shared)
    else:
        result = training.resume(
            resume, overrides=overrides, accept=accept or (), device=device, progress=progress, ledger=shared
        )
    if not quiet:
        print(f"\n{result.summary()}", flush=True)
    if result.status == "interrupted":
        raise typer.Exit(INTERRUPTED)
