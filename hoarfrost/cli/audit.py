"""`hoarfrost audit`"""

import json
from pathlib import Path
from typing import Annotated

import typer


def audit(
    subject: Annotated[str, typer.Argument(help="A run folder, or a recipe, by path or name.", metavar="RUN|RECIPE")],
    one_run: Annotated[
        bool,
        typer.Option("--one-run", help="Also train once with canaries in the data. This spends budget."),
    ] = False,
    canaries: Annotated[int, typer.Option(help="Number of canaries, with --one-run.")] = 1000,
    ledger: Annotated[
        Path | None, typer.Option(help="The ledger that is charged, with --one-run.", metavar="PATH")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="The ledger owner's key.", metavar="FILE")] = None,
    root: Annotated[
        Path | None, typer.Option(help="The folder that must contain the recipe's data.", metavar="DIR")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...  [default: a GPU if there is one]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Audit a recipe or a run: lower bounds on epsilon beside the claimed epsilon.

    Tests the noise, the clipping and the sampling, and compares a run's statement with its ledger. Exits with code 1 if
    there is an alarm.
    """
    from hoarfrost.audit.suite import Subject, run_suite
    from hoarfrost.budget import Ledger, read_key
    from hoarfrost.errors import InvalidValue

    if ledger is not None and not one_run:
        raise InvalidValue("--ledger is for --one-run: add --one-run, or leave out --ledger")
    secret = None if key is None else read_key(key)
    results = []
    for result in run_suite(
        Subject.find(subject, root),
        key=secret,
        canaries=canaries if one_run else None,
        ledger=None if ledger is None else Ledger(ledger, secret),
        device=device,
    ):
        results.append(result)
        if not as_json:
            print(f"{result}\n", flush=True)
    alarms = sum(len(result.alarms) for result in results)
    if as_json:
        report = {"passed": alarms == 0, "audits": [result.as_dict() for result in results]}
        print(json.dumps(report, indent=2, allow_nan=False))
    elif alarms:
        print(f"{alarms} alarm{'s' if alarms > 1 else ''}: do not rely on this privacy claim", flush=True)
    else:
        print("no alarm: no evidence against the claim; this is not a proof", flush=True)
    if alarms:
        raise typer.Exit(1)
