"""`hoarfrost audit`"""

import json
from pathlib import Path
from typing import Annotated

import typer


def audit(
    subject: Annotated[str, typer.Argument(help="A run folder, or a recipe, by path or name.", metavar="RUN|RECIPE")],
    one_run: Annotated[
        bool,
        typer.Option("--one-run", help="Also train once more with canaries in the data. This spends budget."),
    ] = False,
    canaries: Annotated[int, typer.Option(help="With --one-run: how many canaries.")] = 1000,
    ledger: Annotated[
        Path | None, typer.Option(help="With --one-run: the ledger that pays for it.", metavar="PATH")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="The ledger owner's key.", metavar="FILE")] = None,
    root: Annotated[
        Path | None, typer.Option(help="The folder that a recipe's data must lie below.", metavar="DIR")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...  [default: a GPU if there is one]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Attack what a recipe would do, or a run has done, and compare what that shows with what is claimed.

    Attacks the noise and the clipping of a single step, draws batches, and compares a run's statement with its ledger.
    Exits with code 1 if anything should not be.
    """
    from hoarfrost.audit.suite import Subject, run_suite
    from hoarfrost.budget import Ledger, read_key
    from hoarfrost.errors import InvalidValue

    if ledger is not None and not one_run:
        raise InvalidValue("--ledger pays for --one-run: say --one-run, or leave it out")
    secret = None if key is None else read_key(key)
    found = []
    for result in run_suite(
        Subject.find(subject, root),
        key=secret,
        canaries=canaries if one_run else None,
        ledger=None if ledger is None else Ledger(ledger, secret),
        device=device,
    ):
        found.append(result)
        if not as_json:
            print(f"{result}\n", flush=True)
    alarms = sum(len(result.alarms) for result in found)
    if as_json:
        facts = {"passed": alarms == 0, "audits": [result.as_dict() for result in found]}
        print(json.dumps(facts, indent=2, allow_nan=False))
    elif alarms:
        print(f"{alarms} alarm{'s' if alarms > 1 else ''}: this must not be relied on", flush=True)
    else:
        print("no alarm: nothing was found against the claim, which is evidence and not proof", flush=True)
    if alarms:
        raise typer.Exit(1)
