"""`hoarfrost measure membership`: attacks on trained models."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hoarfrost.cli.measure import app, labels_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hoarfrost.measure import Membership

FOLDER = "not-private"


class Attack(StrEnum):
    """As `hoarfrost.train.membership.ATTACKS` has them."""

    LOGISTIC = "logistic"
    THRESHOLD = "threshold"
    LIRA = "lira"


@app.command()
def membership(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, whose data are still there.")],
    attack: Annotated[
        list[Attack] | None, typer.Option(help="How members are told. Repeatable.  [default: logistic]")
    ] = None,
    shadows: Annotated[int, typer.Option(help="Shadow models for lira: an even number, at least 4.")] = 8,
    examples: Annotated[
        int | None, typer.Option(help="At most so many members, and as many non-members.  [default: all]")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder called not-private.  [default: that of the RUN, if there is one]"),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...  [default: a GPU if there is one]")] = None,
) -> None:
    """Attack runs: can training examples be told from test examples by what the model says about them?

    Prints a table, and writes ROC curves beside what (ε, δ) allows at most. What is found is a lower bound on the leak:
    it proves no privacy. It is not private: it goes into a folder called not-private. LiRA trains shadow models.
    """
    from hoarfrost.errors import InvalidValue
    from hoarfrost.measure import membership_figures
    from hoarfrost.measure.figures import drawing
    from hoarfrost.untrusted import line, shown_path

    if out is None and len(runs) > 1:
        raise InvalidValue("several runs need --out: a folder called not-private for their figures")
    folder = runs[0] / FOLDER if out is None else out
    if FOLDER not in folder.resolve().parts:
        raise InvalidValue(
            f"--out {shown_path(folder)} is not called {FOLDER}: what an attack finds must not be released"
        )
    if out is not None and not folder.resolve().parent.is_dir():
        raise InvalidValue(f"there is no folder {shown_path(folder.parent)} for --out; make it, or choose another one")
    with drawing():
        pass  # without matplotlib nothing is computed first
    kinds = list(dict.fromkeys(attack or [Attack.LOGISTIC]))
    names = dict(zip(labels_of(runs), runs, strict=True))

    from hoarfrost.train.membership import attack as attacked

    found: dict[str, Membership] = {}
    for name, run in names.items():
        for kind in kinds:
            label = name if len(kinds) == 1 else f"{name}, {kind}"
            found[label] = attacked(
                run, kind, shadow_models=shadows, examples=examples, device=device,
                say=lambda text: print(line(text, 1000), flush=True),
            )  # fmt: skip
    _print(found)
    written = membership_figures(found, folder)
    print(f"\nwrote {', '.join(path.name for path in written)} to {shown_path(folder)}: not private, like all of this")
    print("no attack proves that there is no other one: these are lower bounds on the leak")
    for text in _red_flags(found):
        print(text)


def _print(found: "Mapping[str, Membership]") -> None:
    from hoarfrost.cli.table import print_table
    from hoarfrost.measure.membership import RATES

    names = ["run", "members", "AUC", "at most"]
    for rate in RATES:
        names += [f"TPR at FPR {100 * rate:g} %", "at most"]
    rows = []
    for label, each in found.items():
        cells = [str(len(each.roc.members)), str(each.auc), f"{each.bound.auc:.3f}"]
        for rate in RATES:
            cells += [str(each.roc.at(rate).tpr), f"{float(each.bound.tpr(rate)):.3f}"]
        rows.append((label, *cells))
    print_table(names, rows)


def _red_flags(found: "Mapping[str, Membership]") -> "Iterator[str]":
    from hoarfrost.untrusted import line

    for label, each in found.items():
        for flag in each.red_flags:
            yield (
                f"RED FLAG: {line(label)}: {flag}. Either training leaks more than it states, or members and "
                "non-members differ in other ways, such as where they come from: `hoarfrost audit` tests the training"
            )
