"""Lines over several seeds: their mean, and the range between the lowest and the highest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hoarfrost.measure.figures import drawing, legend, lines, panels, save_figure

Line = Mapping[float, Sequence[float]]  # from a place on the horizontal axis to a value for each seed


def draw(
    folder: Path, name: str, found: Mapping[str, Mapping[str, Line]], across: str, ylabel: str | Mapping[str, str], *,
    log: bool = False, mark: Mapping[str, float] | None = None,
) -> None:  # fmt: skip
    """One panel for each of them, with its lines.

    Args:
        log: whether the vertical axis is logarithmic.
        mark: in some panels, a horizontal line: the value before training.
    """
    rows = [
        {"panel": panel, "line": line, across: x, "seed": number, "value": value}
        for panel, of in found.items()
        for line, values in of.items()
        for x, each in values.items()
        for number, value in enumerate(each)
    ]
    with drawing():
        figure, grid = panels(len(found), across=2)
        for axes, (panel, of) in zip(grid, found.items(), strict=True):
            for style, (line, values) in zip(lines(), of.items(), strict=False):
                at = list(values)
                means = [sum(each) / len(each) for each in values.values()]
                axes.plot(at, means, label=line, markevery=max(1, len(at) // 10), **style)
                low, high = [min(each) for each in values.values()], [max(each) for each in values.values()]
                axes.fill_between(at, low, high, color=style["color"], alpha=0.2, linewidth=0)
            if mark and panel in mark:
                axes.axhline(mark[panel], color="#A00000", linestyle=(0, (4, 2)), linewidth=1)
            axes.set(title=panel, xlabel=across, ylabel=ylabel if isinstance(ylabel, str) else ylabel[panel])
            if log:
                axes.set_yscale("log")
        legend(figure, grid[0], across=2)
        save_figure(figure, rows, folder, name)
