"""Figures of attacks on membership: ROC curves beside their bounds, and the area for each class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hoarfrost.measure import figures
from hoarfrost.measure.membership import Membership
from hoarfrost.measure.tradeoff import Floats, Tradeoff
from hoarfrost.untrusted import line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_CLASSES = 20  # in the figure; the CSV has all
CURVE, AREAS = "membership-roc", "membership-classes"
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "++++")


def membership_figures(found: Mapping[str, Membership], folder: Path) -> tuple[Path, ...]:
    """Writes the figures of several attacks by name, and their numbers, into a folder called ``not-private``.

    ``membership-roc`` has each ROC curve and what (ε, δ) allows at most, on linear axes and on logarithmic ones, where
    small false positive rates can be seen. ``membership-classes`` has the area under the curve for each class.

    >>> import tempfile, torch
    >>> found = Membership.of(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.5]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in membership_figures({"run": found}, Path(folder, "not-private"))]
    ['membership-roc.svg', 'membership-roc.png', 'membership-roc.csv', 'membership-classes.csv']
    """
    with figures.drawing():
        figure, (linear, logarithmic) = figures.panels(2)
        smallest = min(1 / max(len(each.roc.members), len(each.roc.non_members)) for each in found.values())
        smallest = 10 ** np.floor(np.log10(smallest))
        for style, (name, each) in zip(figures.lines(), found.items(), strict=False):
            for axes in (linear, logarithmic):
                _curve(axes, _short(name), each, style, smallest)
        _bounds(linear, found, smallest)
        _bounds(logarithmic, found, smallest)
        for axes in (linear, logarithmic):
            axes.plot([smallest, 1], [smallest, 1], color="0.6", linewidth=0.8, label="guessing")
            axes.set_xlabel("false positive rate (FPR)")
        linear.set(xlim=(0, 1), ylim=(0, 1.01), ylabel="true positive rate (TPR)")
        logarithmic.set(xscale="log", yscale="log", xlim=(smallest, 1), ylim=(smallest, 1.2))
        figures.legend(figure, linear, across=2)
        written = figures.save_figure(figure, list(_curve_rows(found)), folder, CURVE)
        rows = list(_rows(found))
        if not any(each.classes for each in found.values()):
            return (*written, figures.save_rows(rows, folder, AREAS))
        figure, (axes,) = figures.panels(1)
        figure.set_size_inches(7.2, figure.get_figheight())
        _areas(axes, found)
        figures.legend(figure, axes, across=2)
        return (*written, *figures.save_figure(figure, rows, folder, AREAS))


def _curve(axes: Axes, name: str, found: Membership, style: dict[str, Any], smallest: float) -> None:
    false, true = found.roc.curve
    # On logarithmic axes 0 has no place: a point at the very edge stands for it.
    axes.step(
        np.maximum(false, smallest / 10), np.maximum(true, smallest / 10), where="post",
        label=f"{name}: AUC {found.auc}", **(style | {"marker": None}),
    )  # fmt: skip
    at = np.geomspace(smallest, 1, 8)[1:-1]
    axes.plot(at, [true[false <= fpr].max() for fpr in at], **(style | {"linestyle": "none"}))


def _bounds(axes: Axes, found: Mapping[str, Membership], smallest: float) -> None:
    """Each bound once, whoever has it: what (ε, δ) says as a thin line, the whole privacy profile as the edge of what
    is impossible.
    """
    at = np.concatenate([np.geomspace(smallest / 10, 1e-2, 200), np.linspace(1e-2, 1, 400)])
    claims = {each.claim for each in found.values() if each.claim is not None}
    bounds = {each.bound: each.claim for each in found.values() if each.bound.bounds}
    for shade, claim in zip(_shades(len(claims)), sorted(claims), strict=True):
        label = f"at most, by ε = {claim[0]:.3g}, δ = {claim[1]:.0e}"
        axes.plot(at, Tradeoff([claim]).tpr(at), color=shade, linewidth=0.9, linestyle=(0, (1, 1)), label=label)
    ordered = sorted(bounds.items(), key=lambda item: item[0].auc)
    for shade, (bound, stated) in zip(_shades(len(bounds)), ordered, strict=True):
        everybody = all(each.bound == bound for each in found.values())
        of = "" if stated is None or everybody else f" of runs with ε = {stated[0]:.3g}"
        label = f"at most, by all releases{of}: AUC {bound.auc:.3f}"
        axes.plot(at, bound.tpr(at), color=shade, linewidth=1.6, label=label)
        if everybody:
            axes.fill_between(at, bound.tpr(at), 1.2, color="0.9", linewidth=0)


def _shades(count: int) -> list[str]:
    return [f"{shade:.2f}" for shade in np.linspace(0, 0.5, count)]


def _areas(axes: Axes, found: Mapping[str, Membership]) -> None:
    kinds = sorted({kind for each in found.values() for kind in each.classes})[:MOST_CLASSES]
    places = [*(str(kind) for kind in kinds), "all"]
    width = 0.8 / len(found)
    for number, (style, (name, each)) in enumerate(zip(figures.lines(), found.items(), strict=False)):
        intervals = [*(each.classes[kind].auc if kind in each.classes else None for kind in kinds), each.auc]
        at = np.arange(len(places)) + (number - (len(found) - 1) / 2) * width
        shown = [(x, area) for x, area in zip(at, intervals, strict=True) if area is not None]
        axes.bar(
            [x for x, _ in shown], [area.value - 0.5 for _, area in shown], bottom=0.5, width=0.9 * width,
            facecolor=style["color"], edgecolor="white", hatch=HATCHES[number % len(HATCHES)], label=_short(name),
            yerr=np.array([[area.value - area.low, area.high - area.value] for _, area in shown]).T,
            error_kw={"linewidth": 0.9, "capsize": 2},
        )  # fmt: skip
    axes.axhline(0.5, color="black", linewidth=0.8)
    axes.axvline(len(kinds) - 0.5, color="0.6", linewidth=0.8)
    axes.set_xticks(range(len(places)), places)
    axes.set(xlabel="class", ylabel="AUC of the attack, and its interval")


def _curve_rows(found: Mapping[str, Membership]) -> Iterator[dict[str, object]]:
    for name, each in found.items():
        false, true = each.roc.curve
        for fpr, tpr, most in zip(*_corners(false, true), each.bound.tpr(_corners(false, true)[0]), strict=True):
            yield {"run": name, "fpr": fpr, "tpr": tpr, "tpr_bound": most}


def _corners(false: Floats, true: Floats) -> tuple[Floats, Floats]:
    """The points at which the curve turns; those in between add nothing."""
    turns = np.ones(len(false), dtype=bool)
    turns[1:-1] = np.diff(false)[:-1] * np.diff(true)[1:] != np.diff(false)[1:] * np.diff(true)[:-1]
    return false[turns], true[turns]


def _rows(found: Mapping[str, Membership]) -> Iterator[dict[str, object]]:
    for name, each in found.items():
        whole = each.row()
        bounds = {key: value for key, value in whole.items() if "bound" in key}
        yield {"run": name, "class": "all", **whole}
        for kind, row in each.class_rows().items():
            yield {"run": name, "class": kind, **row, **bounds}


def _short(name: str) -> str:
    text = line(name, 1000)
    return text if len(text) <= 34 else f"{text[:17]}…{text[-16:]}"
