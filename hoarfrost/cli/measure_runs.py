"""`hoarfrost measure angles`, `norms`, ...: figures about what runs have measured on the way."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hoarfrost.cli.measure import app, labels_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hoarfrost.measure.run_panels import Panel

Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, trained with --measure.")]
Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="A folder called not-private.  [default: that of the run, if there is one run]"),
]
Layer = Annotated[
    str | None, typer.Option(metavar="NAME", help="Of this layer alone.  [default: of all layers together]")
]
ABOUT = {
    "angles": "Angles between the gradient of a batch, clipped, and with noise, whole and for each layer (distortion).",
    "norms": "Lengths of the gradient of a batch, clipped, and with noise, whole and for each layer (distortion).",
    "truth": "Angles to the true gradient over all data, signal loss and mean squared error (truth).",
    "clipped": "The share of the examples that are clipped (clipping).",
    "histogram": "How long the examples' gradients are, at the first, a middle and the last step (clipping).",
    "agreement": "R, and the clipped mean along the true one beside its lower bound (clipping).",
    "freezing": "Clipping, signal loss and mean squared error with and without freezing (freezing).",
    "freeze-counts": "How often coordinates were frozen (freeze-counts).",
}


def _command(figure: str) -> Callable[..., None]:
    def draw(runs: Runs, out: Out = None, layer: Layer = None) -> None:
        _draw(figure, runs, out, layer)

    def draw_whole(runs: Runs, out: Out = None) -> None:
        _draw(figure, runs, out, None)

    made = draw if figure in ("angles", "norms") else draw_whole
    made.__doc__ = (
        f"{ABOUT[figure]}\n\nRuns that differ in their seed alone are drawn as one line, with their range. What is "
        "drawn was computed without noise, and is not private: it is written to a folder called not-private."
    )
    return made


for _figure in ABOUT:
    app.command(_figure)(_command(_figure))


def _draw(figure: str, runs: "Sequence[Path]", out: Path | None, layer: str | None) -> None:
    from hoarfrost.errors import InvalidValue
    from hoarfrost.measure.run_figures import draw_panels
    from hoarfrost.measure.run_panels import panels_for
    from hoarfrost.measure.run_rows import read_measured
    from hoarfrost.untrusted import shown_path

    labels = labels_of(runs)
    if out is None and len(runs) > 1:
        raise InvalidValue("several runs need --out DIR, a folder called not-private: the figure is about private data")
    found = read_measured(dict(zip(labels, runs, strict=True)))
    panels = panels_for(figure, found, layer)
    _print(panels)
    folder = runs[0] / "not-private" if out is None else out
    for path in draw_panels(panels, folder, figure):
        print(f"wrote {shown_path(path)} (not private)")


def _print(panels: "Sequence[Panel]") -> None:
    """For every curve its first and last value, and the least and the most of all."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from hoarfrost.untrusted import line

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # characters that the terminal cannot show
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("quantity", "curve"):
        table.add_column(name, overflow="fold")
    for name in ("first", "last", "least", "most"):
        table.add_column(name, justify="right", no_wrap=True)
    for panel in panels:
        for curve in panel.curves:
            means = [sum(values) / len(values) for _, values in sorted(curve.points.items())]
            if means:
                figures = (means[0], means[-1], min(means), max(means))
                table.add_row(panel.y, Text(line(curve.label)), *(f"{each:.4g}" for each in figures))
    console = Console(highlight=False, markup=False, emoji=False)
    console.width = max(80, console.width) if console.is_terminal else 1000
    console.print(table)
