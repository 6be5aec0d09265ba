"""Figures about private data: drawn alike, marked as such, with their numbers beside them, and in one kind of folder.

What is measured on training data without noise may not be released, and neither may a picture of it. `save_figure` is
the only way in which such a figure reaches the disk.
"""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hoarfrost.errors import InvalidValue, MissingExtra
from hoarfrost.files import replace_file
from hoarfrost.untrusted import shown_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = "not-private"
MARK = "not private: computed from training data without noise"
WIDTH, HEIGHT, LEGEND = 3.4, 2.7, 0.6  # inches, of a panel and of what is below all panels
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")  # Okabe and Ito
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SETTINGS: dict[Any, Any] = {"svg.hashsalt": "hoarfrost", "svg.fonttype": "path", "font.size": 8.5}


@contextmanager
def drawing() -> Iterator[None]:
    """Matplotlib as all figures need it, whatever the user's own settings are.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib import style
    except ImportError as error:
        raise MissingExtra("figures need matplotlib, which is not installed: pip install 'hoarfrost[plot]'") from error
    with style.context("default"), matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # in the name of a run: a box stands for it
        yield


def panels(count: int, *, across: int = 3) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels, marked as not private. Call it, and draw, inside of `drawing`."""
    from matplotlib.figure import Figure

    if count < 1:
        raise InvalidValue("a figure needs at least one panel: nothing was measured that it could show")
    across = min(count, across)
    rows = math.ceil(count / across)
    figure = Figure(figsize=(max(4.6, WIDTH * across), HEIGHT * rows + LEGEND))
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    grid = figure.add_gridspec(rows, across)
    axes = [figure.add_subplot(grid[divmod(number, across)]) for number in range(count)]
    # Above: the legend below may have any number of rows.
    figure.suptitle(MARK, fontsize="small", color="#A00000", x=0.01, ha="left")
    return figure, axes


def lines() -> Iterator[dict[str, Any]]:
    """How one line after the other is drawn: nothing depends on colour alone.

    >>> first, second, *_ = (style for style, _ in zip(lines(), range(2)))
    >>> first["linestyle"] != second["linestyle"] and first["marker"] != second["marker"]
    True
    """
    for colour, dash, marker in zip(cycle(COLOURS), cycle(DASHES), cycle(MARKERS), strict=False):
        yield {"color": colour, "linestyle": dash, "marker": marker, "markersize": 3.5, "linewidth": 1.3}


def legend(figure: Figure, axes: Axes, *, across: int = 3) -> None:
    """What the lines of one panel mean, for all of them, below the figure."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=across, frameon=False, handlelength=3.5)


def save_figure(
    figure: Figure, rows: Sequence[Mapping[str, object]], folder: Path, name: str
) -> tuple[Path, Path, Path]:
    """Writes ``name`` as SVG, as PNG, and its numbers as CSV; returns the three paths. Call it inside of `drawing`.

    Args:
        rows: the numbers behind the figure, all with the same keys.
        folder: a folder called ``not-private``, or one below such a folder. It is made if its parent is there.

    Guarantees:
        Nothing is written outside of a folder called ``not-private``, and the figure itself says that it is not
        private: it is refused if it has lost its mark.
    """
    _check(rows, folder)
    if not any(text.get_text() == MARK for text in figure.texts):
        raise InvalidValue("this figure does not say that it is not private: make it with hoarfrost.measure's panels()")
    folder.mkdir(exist_ok=True)
    svg, png = (folder / f"{name}.{kind}" for kind in ("svg", "png"))
    replace_file(svg, lambda draft: figure.savefig(draft, format="svg", metadata={"Date": None, "Creator": None}))
    replace_file(png, lambda draft: figure.savefig(draft, format="png", dpi=150))
    return svg, png, save_rows(rows, folder, name)


def save_rows(rows: Sequence[Mapping[str, object]], folder: Path, name: str) -> Path:
    """Writes numbers alone, as CSV, in the same places as `save_figure`; returns the path."""
    _check(rows, folder)
    folder.mkdir(exist_ok=True)
    table = folder / f"{name}.csv"
    replace_file(table, lambda draft: _write(draft, rows))
    return table


def _check(rows: Sequence[Mapping[str, object]], folder: Path) -> None:
    if FOLDER not in folder.resolve().parts:
        raise InvalidValue(
            f"{shown_path(folder)} is not below a folder called {FOLDER}: this figure is about private data and must "
            f"not be released. Give a folder called {FOLDER}, as every run has one"
        )
    if not rows:
        raise InvalidValue("a figure needs numbers, got none")
    if not folder.parent.is_dir():
        raise InvalidValue(f"there is no folder {shown_path(folder.parent)} for the figure")


def _write(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
