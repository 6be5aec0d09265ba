"""Reliability diagrams of several runs side by side, as SVG."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hoarfrost.errors import InvalidValue, MissingExtra
from hoarfrost.measure.calibration import Calibration
from hoarfrost.untrusted import line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACROSS = 3  # panels in a row
NAME = 34  # characters of a run's name that fit above a panel
WIDTH, HEIGHT = 2.9, 4.9  # inches, of a panel with its axes and title
LEFT, BELOW, NARROWEST = 0.5, 0.7, 4.6  # inches: for labels, for the legend, and so that the legend fits

# The colours of Okabe and Ito, which people with any kind of colour vision can tell apart. Gaps are hatched and lines
# are dashed differently, so that nothing depends on colour alone.
BLUE, VERMILION, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#8C8C8C"
Style = dict[str, Any]
BAR: Style = {"facecolor": BLUE, "edgecolor": "white", "linewidth": 0.5}
OVER: Style = {"facecolor": "#F7D7C4", "edgecolor": VERMILION, "hatch": "////", "linewidth": 0.8}
UNDER: Style = {"facecolor": "#C4E8DD", "edgecolor": GREEN, "hatch": "\\\\\\\\", "linewidth": 0.8}
DIAGONAL: Style = {"color": "black", "linestyle": ":", "linewidth": 1.2}
COUNTS: Style = {"facecolor": GREY, "edgecolor": "white", "linewidth": 0.5}
CONFIDENCE: Style = {"color": VERMILION, "linestyle": "--", "linewidth": 1.6}
ACCURACY: Style = {"color": BLUE, "linestyle": "-", "linewidth": 1.6}
TICKS = [0, 0.2, 0.4, 0.6, 0.8, 1]
ALWAYS_THE_SAME: dict[Any, Any] = {
    "svg.hashsalt": "hoarfrost",
    "svg.fonttype": "path",
    "text.parse_math": False,
    "font.size": 8.5,
}


def reliability_diagram(calibrations: Mapping[str, Calibration]) -> str:
    """A figure with a panel for each run, by name: the reliability diagram above, the confidence histogram below.

    A bar is the accuracy of a bin. The hatched gap goes from there to the bin's mean confidence, near the dotted
    diagonal: up if the model is overconfident, down if it is underconfident. ECE is the mean of these gaps, weighted by
    the examples in the bins, and MCE the largest.

    Returns:
        The text of an SVG, which needs no fonts. The same runs always give the same text.

    >>> import torch
    >>> found = Calibration.of(torch.tensor([[2.0, 0.0], [0.0, 2.0], [1.0, 0.0]]), torch.tensor([0, 1, 1]))
    >>> reliability_diagram({"first": found, "second": found}).startswith("<?xml")
    True
    """
    try:
        import matplotlib
        from matplotlib import style
    except ImportError as error:
        raise MissingExtra(
            "the reliability diagram needs matplotlib, which is not installed: pip install 'hoarfrost[plot]'"
        ) from error
    text = io.StringIO()
    with style.context("default"), matplotlib.rc_context(ALWAYS_THE_SAME), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # in the name of a run: a box stands for it
        figure_of(calibrations).savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()


def figure_of(calibrations: Mapping[str, Calibration]) -> Figure:
    """The figure itself."""
    from matplotlib.figure import Figure

    if not calibrations:
        raise InvalidValue("a reliability diagram needs at least one run, got none")
    rows = math.ceil(len(calibrations) / ACROSS)
    columns = math.ceil(len(calibrations) / rows)  # four runs are two rows of two
    figure = Figure(figsize=(max(NARROWEST, WIDTH * columns + LEFT), HEIGHT * rows + BELOW))
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    most = max(each.count / found.examples for found in calibrations.values() for each in found.bins)
    grid = figure.add_gridspec(2 * rows, columns, height_ratios=[2.4, 1] * rows)
    for number, (name, found) in enumerate(calibrations.items()):
        row, column = divmod(number, columns)
        above, below = figure.add_subplot(grid[2 * row, column]), figure.add_subplot(grid[2 * row + 1, column])
        _reliability(above, found)
        _histogram(below, found)
        above.set_title(_name(name), fontweight="bold", fontsize="medium", pad=30)
        above.text(0.5, 1.02, _scores(found), transform=above.transAxes, ha="center", va="bottom")
        above.set(xlim=(0, 1), ylim=(0, 1), xticks=TICKS, yticks=TICKS, ylabel="" if column else "accuracy")
        below.set(xlim=(0, 1), ylim=(0, 1.05 * most), xticks=TICKS, ylabel="" if column else "share of examples")
        below.set_xlabel("confidence")
        above.tick_params(labelleft=column == 0, labelbottom=False)
        below.tick_params(labelleft=column == 0)
    _legend(figure)
    return figure


def _reliability(axes: Axes, found: Calibration) -> None:
    for each in found.bins:
        if each.count:
            sure, right = each.mean_confidence, each.mean_accuracy
            place: Style = {"x": each.low, "width": each.high - each.low, "align": "edge"}
            axes.bar(height=right, **place, **BAR)
            axes.bar(height=sure - right, bottom=right, **place, **(OVER if sure > right else UNDER))
    axes.plot([0, 1], [0, 1], **DIAGONAL)


def _histogram(axes: Axes, found: Calibration) -> None:
    for each in found.bins:
        axes.bar(x=each.low, width=each.high - each.low, align="edge", height=each.count / found.examples, **COUNTS)
    axes.axvline(found.confidence, **CONFIDENCE)
    axes.axvline(found.accuracy, **ACCURACY)


def _legend(figure: Figure) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    entries = {
        "accuracy of a bin": Patch(**BAR),
        "gap: overconfident": Patch(**OVER),
        "gap: underconfident": Patch(**UNDER),
        "perfect calibration": Line2D([], [], **DIAGONAL),
        "mean confidence": Line2D([], [], **CONFIDENCE),
        "accuracy": Line2D([], [], **ACCURACY),
    }
    columns = 3 if figure.get_figwidth() > NARROWEST else 2
    figure.legend(
        list(entries.values()), list(entries), loc="outside lower center", ncols=columns, frameon=False, handlelength=3
    )


def _name(name: str) -> str:
    """Both ends of what is too long: names of runs begin with the recipe's and end with the time."""
    text = line(name, 1000)
    return text if len(text) <= NAME else f"{text[: NAME // 2]}…{text[-(NAME - NAME // 2 - 1) :]}"


def _scores(found: Calibration) -> str:
    return f"accuracy {found.accuracy:.1%}   NLL {found.nll:.3f}\nECE {found.ece:.1%}   MCE {found.mce:.1%}"
