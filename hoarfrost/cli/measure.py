"""`hoarfrost measure`: what trained models are worth beyond their accuracy."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hoarfrost.cli.group import command_group

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hoarfrost.measure import Calibration

app = command_group("Measure trained models beyond their accuracy.")


@app.command()
def calibration(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders of classifiers.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The figure, an SVG.")] = Path("reliability.svg"),
) -> None:
    """Compare how far the confidence of classifiers can be believed: a table, and reliability diagrams side by side.

    The figures are those of the test set, from the calibration.json of each run. No model is run.
    """
    from hoarfrost.errors import InvalidValue
    from hoarfrost.files import replace_file
    from hoarfrost.measure import read_calibration, reliability_diagram
    from hoarfrost.untrusted import shown_path

    if os.path.lexists(out):
        raise InvalidValue(f"there is a file at {shown_path(out)} already; choose another --out, or remove it first")
    if not os.path.isdir(out.parent):
        raise InvalidValue(f"there is no folder {shown_path(out.parent)} for the figure; choose another --out")
    found = {label: read_calibration(run) for label, run in zip(labels_of(runs), runs, strict=True)}
    _print(found)
    figure = reliability_diagram(found)
    replace_file(out, lambda draft: draft.write_text(figure, "utf-8"))
    print(f"\nwrote {shown_path(out)}")


def labels_of(runs: "Sequence[Path]") -> list[str]:
    """Each folder's name, with as many of the folders above it as it takes to tell it from the others.

    >>> labels_of([Path("/a/first"), Path("/a/x/last"), Path("/b/x/last")])
    ['first', 'a/x/last', 'b/x/last']
    """
    from hoarfrost.errors import InvalidValue
    from hoarfrost.untrusted import shown_path

    places = [Path(os.path.realpath(run)).parts for run in runs]
    labels = []
    for run, place in zip(runs, places, strict=True):
        if places.count(place) > 1:
            raise InvalidValue(f"the run {shown_path(run)} is given twice; leave one out")
        length = 1
        while sum(other[-length:] == place[-length:] for other in places) > 1:
            length += 1
        labels.append(str(Path(*place[-length:])))
    return labels


def _print(found: "Mapping[str, Calibration]") -> None:
    from hoarfrost.cli.table import print_table

    print_table(
        ("run", "examples", "accuracy", "NLL", "Brier", "ECE", "MCE"),
        (
            (
                label,
                str(each.examples),
                f"{each.accuracy:.1%}",
                f"{each.nll:.3f}",
                f"{each.brier:.3f}",
                f"{each.ece:.1%}",
                f"{each.mce:.1%}",
            )
            for label, each in found.items()
        ),
    )
