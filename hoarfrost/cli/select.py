"""`hoarfrost select`"""

from pathlib import Path
from typing import Annotated

import typer

from hoarfrost.cli.ledger import opened
from hoarfrost.cli.recipe import Root, Source


def select(
    recipe: Source,
    out: Annotated[Path, typer.Option(help="The file that is written.", metavar="FILE")] = Path("selection.json"),
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Replace a value, such as freeze.ratio=0.06. Repeatable.", metavar="KEY=VALUE"),
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="The data set's ledger.  [default: one beside the file]", metavar="PATH")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="The ledger owner's key.", metavar="FILE")] = None,
    root: Root = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...  [default: a GPU if there is one]")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print warnings and errors only.")] = False,
) -> None:
    """Choose which part of a model to train, privately, and train nothing.

    The recipe has `kind = "frost"` in its table [freeze]. What was chosen is printed and written; a recipe with
    freeze = {kind = "chosen", path = FILE} trains it, and counts what it cost.
    """
    from hoarfrost.errors import InvalidValue
    from hoarfrost.train import read_recipe

    if key is not None and ledger is None:
        raise InvalidValue("--key is the key of a ledger: name the ledger with --ledger PATH")
    wanted = read_recipe(recipe, list(set_ or ()), root)

    from hoarfrost.train.selecting import select as select_now

    found = select_now(
        wanted, out=out, device=device, ledger=None if ledger is None else opened(ledger, key),
        on_round=lambda done, of: None if quiet else print(f"round {done} of {of}", flush=True),
    )  # fmt: skip
    if not quiet:
        print(f"\n{found.selection}\n\nspent: {found.statement}\nin: {found.path}", flush=True)
