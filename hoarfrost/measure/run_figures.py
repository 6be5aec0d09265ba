"""Figures about measured runs: curves over steps, with the range of repetitions around their mean."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

from hoarfrost.measure.figures import drawing, legend, lines, panels, save_figure
from hoarfrost.measure.run_panels import Panel, rows_of
from hoarfrost.untrusted import line

MOST_MARKERS = 12  # on a line
LONGEST_LABEL = 40


def draw_panels(figure_panels: Sequence[Panel], folder: Path, name: str) -> tuple[Path, Path, Path]:
    """Draws them into a folder called ``not-private``: SVG, PNG and CSV.

    Guarantees:
        As `hoarfrost.measure.figures.save_figure`: nothing is written elsewhere, and the figure says what it is.
    """
    with drawing():
        figure, every_axes = panels(len(figure_panels))
        for axes, panel in zip(every_axes, figure_panels, strict=True):
            for curve, style in zip(panel.curves, lines(), strict=False):
                label = line(curve.label, LONGEST_LABEL).replace("$", r"\$").lstrip("_")
                if not curve.points:
                    axes.plot([], [], label=label, **style)
                    continue
                x = sorted(curve.points)
                values = [curve.points[place] for place in x]
                means = [sum(each) / len(each) for each in values]
                if panel.apart:
                    style["linestyle"] = "none"
                    axes.vlines(x, 0, means, color=style["color"], linewidth=0.6)
                axes.plot(
                    x, means, label=label, markevery=1 if panel.apart else max(1, len(x) // MOST_MARKERS), **style
                )
                if not panel.apart and any(len(each) > 1 for each in values):
                    low, high = [min(each) for each in values], [max(each) for each in values]
                    axes.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0)
            for text, place in panel.marks.items():
                axes.axvline(place, color="black", linewidth=0.8, linestyle=(0, (2, 2)))
                axes.annotate(text, (place, 0.97), xycoords=("data", "axes fraction"), va="top", fontsize="small")
            positive = any(v > 0 for curve in panel.curves for each in curve.points.values() for v in each)
            if panel.log_x:
                axes.set_xscale("log")
                places = [place for curve in panel.curves for place in curve.points] + list(panel.marks.values())
                axes.set_xlim(10 ** math.floor(math.log10(min(places))), 10 ** math.ceil(math.log10(max(places))))
                axes.xaxis.set_minor_formatter("")
            if panel.log_y and positive:
                axes.set_yscale("log", nonpositive="mask")
            axes.set(title=panel.title, xlabel=panel.x, ylabel=re.sub(r"\^([A-Z]+)", r"$^{\1}$", panel.y))
        legend(figure, every_axes[0], across=min(3, 1 + len(every_axes)))
        return save_figure(figure, rows_of(figure_panels), folder, name)
