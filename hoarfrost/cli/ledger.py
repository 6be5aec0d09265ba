"""`hoarfrost ledger`: a data set's privacy budget, and what was spent."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hoarfrost.cli.budget import Delta, Json
from hoarfrost.cli.group import command_group

if TYPE_CHECKING:
    from hoarfrost.budget import Ledger

app = command_group("A data set's privacy budget, and what was spent.")

Where = Annotated[Path, typer.Argument(metavar="PATH", help="The ledger's file.")]
Key = Annotated[Path | None, typer.Option("--key", metavar="FILE", help="The owner's key, to verify MACs.")]
Earlier = Annotated[str | None, typer.Option("--head", help="An earlier head, to verify that no record was removed.")]


class Accountant(StrEnum):
    """The composition method."""

    pld = "pld"
    rdp = "rdp"
    filter = "filter"


class Unit(StrEnum):
    """What is added or removed."""

    example = "example"
    person = "person"


@app.command()
def create(
    path: Where,
    delta: Delta,
    epsilon: Annotated[float | None, typer.Option(help="The total budget of the data set.")] = None,
    no_limit: Annotated[
        bool, typer.Option("--no-limit", help="Record only, without a budget; instead of --epsilon.")
    ] = False,
    accountant: Annotated[
        Accountant,
        typer.Option(help="pld is nearly exact; filter stays valid if runs are chosen by looking at earlier results."),
    ] = Accountant.pld,
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The owner's key, required for writing. Created if it does not exist."),
    ] = None,
    allow_seeded: Annotated[bool, typer.Option("--allow-seeded", help="Allow runs with seeded noise.")] = False,
    note: Annotated[str, typer.Option(help="A description of the data, shown to readers.")] = "",
    unit: Annotated[
        Unit, typer.Option(help="For whom the budget is kept; runs for the other are refused.")
    ] = Unit.example,
) -> None:
    """Create a ledger for a data set."""
    from hoarfrost.budget import Ledger, make_key, read_key
    from hoarfrost.errors import HoarfrostError, InvalidValue

    if (epsilon is None) != no_limit:
        raise InvalidValue("give either --epsilon or --no-limit")
    new_key = key is not None and not key.exists()
    secret = None if key is None else make_key(key) if new_key else read_key(key)
    try:
        ledger = Ledger.create(
            path, epsilon=epsilon, delta=delta, accountant=accountant.value, key=secret, seeded=allow_seeded,
            note=note, unit=f"one {unit.value}",
        )  # fmt: skip
    except HoarfrostError:
        if key is not None and new_key:
            key.unlink()  # of no use without the ledger
        raise
    limit = "no limit" if epsilon is None else f"epsilon {epsilon:g} at delta {delta:g}"
    print(f"created {path}: {limit} ({ledger.accountant} accountant), for {ledger.unit}")
    if new_key:
        print(f"created {key}: this key is needed to write to the ledger; keep it secret")
    print(f"head {ledger.head}")


@app.command()
def show(
    path: Where,
    key: Key = None,
    head: Earlier = None,
    every: Annotated[
        bool, typer.Option("--all", help="Compute the steps left for every kind of step. May take minutes.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what each run spent, and what is left."""
    from hoarfrost.cli.ledger_report import LedgerReport

    report = LedgerReport.of(opened(path, key, head), every=every, macs=key is not None, head=head is not None)
    if as_json:
        print(report.json())
    else:
        report.print()


@app.command("head")
def head_(path: Where) -> None:
    """Print the newest record's number and hash. Keep it elsewhere to detect removed records later."""
    print(opened(path).head)


@app.command()
def check(path: Where, head: Earlier = None, key: Key = None) -> None:
    """Verify the hash chain, and MACs and an earlier head if given."""
    ledger = opened(path, key, head)
    checked = ["hash chain is intact"]
    checked += ["MACs are valid"] * (key is not None)
    checked += ["the given head is in the chain"] * (head is not None)
    print(f"ok: {', '.join(checked)}\nhead {ledger.head}")


@app.command()
def close(
    path: Where,
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's name, as in `hoarfrost ledger show`.")],
    key: Key = None,
) -> None:
    """Close a dead run and return the steps it holds. Reserved steps stay spent; a live run fails at its next step."""
    from hoarfrost.untrusted import line

    allowance = opened(path, key).resume(run)
    allowance.close()
    entry = allowance.entry
    print(f"closed {line(run)}: {entry.event.steps - entry.reserved} steps returned, {entry.reserved} stay spent")


def opened(path: Path, key: Path | None = None, head: str | None = None) -> "Ledger":
    """Opens a ledger and verifies it, with the key and an earlier head if given."""
    from hoarfrost.budget import Ledger, read_key

    ledger = Ledger(path, None if key is None else read_key(key))
    if head is not None:
        ledger.check(head)
    return ledger
