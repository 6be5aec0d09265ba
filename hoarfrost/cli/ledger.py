"""`hoarfrost ledger`: a data set's budget, and who spent what of it."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hoarfrost.cli.budget import Delta, Json

if TYPE_CHECKING:
    from hoarfrost.budget import Ledger

app = typer.Typer(
    help="A data set's budget, and who spent what of it.",
    no_args_is_help=False,
    rich_markup_mode=None,
)

Where = Annotated[Path, typer.Argument(metavar="PATH", help="The ledger's file.")]
Key = Annotated[Path | None, typer.Option("--key", metavar="FILE", help="The owner's key: checks every record's MAC.")]
Earlier = Annotated[str | None, typer.Option("--head", help="An earlier head: checks that nothing was cut off since.")]


class Accountant(StrEnum):
    """How releases are composed."""

    pld = "pld"
    rdp = "rdp"
    filter = "filter"


@app.callback(invoke_without_command=True)
def start(context: typer.Context) -> None:
    """A data set's budget, and who spent what of it."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def create(
    path: Where,
    delta: Delta,
    epsilon: Annotated[float | None, typer.Option(help="The budget for all that is ever done with the data.")] = None,
    no_limit: Annotated[bool, typer.Option("--no-limit", help="Instead of --epsilon: keep the books only.")] = False,
    accountant: Annotated[
        Accountant,
        typer.Option(help="pld is nearly exact; filter also holds if what is asked for depends on earlier results."),
    ] = Accountant.pld,
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The owner's key, made if it does not exist: nobody without it can write."),
    ] = None,
    allow_seeded: Annotated[
        bool, typer.Option("--allow-seeded", help="Admit runs whose noise can be repeated from a seed.")
    ] = False,
    note: Annotated[str, typer.Option(help="What the data are; told to whoever reads the ledger.")] = "",
) -> None:
    """Make a ledger for a data set."""
    from hoarfrost.budget import Ledger, make_key, read_key
    from hoarfrost.errors import HoarfrostError, InvalidValue

    if (epsilon is None) != no_limit:
        raise InvalidValue("give either --epsilon or --no-limit")
    new_key = key is not None and not key.exists()
    secret = None if key is None else make_key(key) if new_key else read_key(key)
    try:
        ledger = Ledger.create(
            path, epsilon=epsilon, delta=delta, accountant=accountant.value, key=secret, seeded=allow_seeded, note=note
        )
    except HoarfrostError:
        if key is not None and new_key:
            key.unlink()  # the key to nothing
        raise
    limit = "no limit" if epsilon is None else f"epsilon {epsilon:g} at delta {delta:g}"
    print(f"made {path}: {limit} ({ledger.accountant} accountant)")
    if new_key:
        print(f"made {key}: whoever draws on the ledger needs this key, and whoever has it can write to the ledger")
    print(f"head {ledger.head}")


@app.command()
def show(
    path: Where,
    key: Key = None,
    head: Earlier = None,
    every: Annotated[
        bool, typer.Option("--all", help="Say for every kind of step how many are left, which may take minutes.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Who spent what, and what is left."""
    from hoarfrost.cli.account import Account

    account = Account.of(opened(path, key, head), every=every, macs=key is not None, head=head is not None)
    if as_json:
        print(account.json())
    else:
        account.print()


@app.command("head")
def head_(path: Where) -> None:
    """The newest record's number and hash: kept elsewhere, it tells later whether anything was cut off."""
    print(opened(path).head)


@app.command()
def check(path: Where, head: Earlier = None, key: Key = None) -> None:
    """Whether all records are as they were written."""
    ledger = opened(path, key, head)
    checked = ["every record follows from those before it"]
    checked += ["every MAC is right"] * (key is not None)
    checked += ["the given head is there"] * (head is not None)
    print(f"ok: {', '.join(checked)}\nhead {ledger.head}")


@app.command()
def close(
    path: Where,
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's name, as `hoarfrost ledger show` tells it.")],
    key: Key = None,
) -> None:
    """Give back what a dead run holds. What it reserved stays spent; if it is alive after all, its next step fails."""
    from hoarfrost.untrusted import line

    allowance = opened(path, key).resume(run)
    allowance.close()
    entry = allowance.entry
    print(f"closed {line(run)}: {entry.event.steps - entry.reserved} steps given back, {entry.reserved} stay spent")


def opened(path: Path, key: Path | None = None, head: str | None = None) -> "Ledger":
    """The ledger, checked as far as can be."""
    from hoarfrost.budget import Ledger, read_key

    ledger = Ledger(path, None if key is None else read_key(key))
    if head is not None:
        ledger.check(head)
    return ledger
