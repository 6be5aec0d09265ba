"""Which panels a figure about measured runs has, and the curves in them: numbers alone, nothing is drawn here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hoarfrost.errors import InvalidValue
from hoarfrost.measure.clipped import BINS
from hoarfrost.measure.measurement import Row
from hoarfrost.measure.run_rows import Measured
from hoarfrost.untrusted import shown

WHOLE = "all layers"


@dataclass
class Curve:
    """A line in a panel: at each place the values of all repetitions."""

    label: str
    points: dict[float, list[float]] = field(default_factory=dict)

    def add(self, x: float, y: Any) -> None:
        """Adds what one repetition has there; None and other things that are no numbers are left out."""
        if isinstance(y, int | float) and not isinstance(y, bool) and y == y:
            self.points.setdefault(x, []).append(float(y))


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x: str
    y: str
    curves: Sequence[Curve]
    log_x: bool = False
    log_y: bool = False
    marks: Mapping[str, float] = field(default_factory=dict)  # vertical lines
    apart: bool = False  # points have nothing between them


@dataclass(frozen=True)
class Quantity:
    """A number of a row over the steps.

    Args:
        keys: where it is in a row, or in the part of a row that is about one layer.
        layers: whether there is one for each layer.
    """

    title: str
    y: str
    keys: tuple[str, ...]
    layers: bool = False
    log: bool = False


RADIANS = "radians"
OVER_STEPS: dict[str, tuple[str, tuple[Quantity, ...]]] = {
    "angles": (
        "distortion",
        (
            Quantity("clipping turns it", f"γ^UB, {RADIANS}", ("angles", "UB"), layers=True),
            Quantity("noise turns it", f"γ^BP, {RADIANS}", ("angles", "BP"), layers=True),
            Quantity("both turn it", f"γ^UP, {RADIANS}", ("angles", "UP"), layers=True),
        ),
    ),
    "norms": (
        "distortion",
        (
            Quantity("the batch's gradient", "‖s^U‖", ("norms", "U"), layers=True, log=True),
            Quantity("clipped", "‖s^B‖", ("norms", "B"), layers=True, log=True),
            Quantity("with noise", "‖s^P‖", ("norms", "P"), layers=True, log=True),
        ),
    ),
    "truth": (
        "truth",
        (
            Quantity("the batch as it is", f"γ^U to ∇f, {RADIANS}", ("angles", "U")),
            Quantity("clipped", f"γ^B to ∇f, {RADIANS}", ("angles", "B")),
            Quantity("with noise", f"γ to ∇f, {RADIANS}", ("angles", "P")),
            Quantity("examples that are clipped", f"angle to ∇f, {RADIANS}", ("angles", "clipped")),
            Quantity("examples that are not", f"angle to ∇f, {RADIANS}", ("angles", "unclipped")),
            Quantity("mean squared error", "MSE of the gradient", ("mse",), log=True),
            Quantity("of which signal loss", "‖∇f - s^B‖²", ("signal_loss",), log=True),
            Quantity("of which noise", "variance of the noise", ("noise_variance",), log=True),
        ),
    ),
    "clipped": ("clipping", (Quantity("examples that are clipped", "share of the batch", ("share_clipped",)),)),
    "agreement": (
        "clipping",
        (
            Quantity("how far gradients lie apart", "R = Tr Cov / ‖ḡ‖²", ("R",), log=True),
            Quantity("clipped mean along the true one", "c·ḡ / ‖ḡ‖", ("alignment",)),
            Quantity("its lower bound, if all are clipped", "C(1 - R/2)", ("alignment_bound",)),
        ),
    ),
}
# Two curves for each run: with nothing frozen, and with what is frozen.
FREEZING = (
    Quantity("examples that are clipped", "share of the sample", ("share_clipped",)),
    Quantity("clipped mean, live coordinates", "‖s^B‖", ("norm_B",)),
    Quantity("clipping turns it", f"γ^UB, {RADIANS}", ("angle_UB",)),
    Quantity("signal loss", "‖∇f - s^B‖²", ("signal_loss",), log=True),
    Quantity("mean squared error", "MSE of the gradient", ("mse",), log=True),
)


def panels_for(figure: str, measured: Sequence[Measured], layer: str | None = None) -> list[Panel]:
    """The panels of a figure; panels without any number are left out.

    Args:
        layer: of which layer angles and lengths are, where several runs are compared; by default of all together.
            One run is shown with every layer.
    """
    if figure not in FIGURES:
        raise InvalidValue(f"no figure {shown(figure)}; there are {', '.join(FIGURES)}")
    kind = KINDS[figure]
    if not any(kind in run for each in measured for run in each.runs):
        raise InvalidValue(f"none of these runs measured {kind}: train with --measure {kind}")
    found = [panel for panel in FIGURES[figure](figure, measured, layer) if any(c.points for c in panel.curves)]
    if not found:
        of = "" if layer is None else f" of the layer {shown(layer)}: there are {', '.join(_layers(measured[0], kind))}"
        raise InvalidValue(f"these runs have no numbers for the figure {figure}{of}")
    return found


def _over_steps(figure: str, measured: Sequence[Measured], layer: str | None) -> Iterator[Panel]:
    kind, quantities = OVER_STEPS[figure]
    for quantity in quantities:
        shown_layers: list[str | None] = [layer]
        if quantity.layers and len(measured) == 1 and layer is None:
            shown_layers += _layers(measured[0], kind)
        curves = []
        for each in measured:
            for of in shown_layers if quantity.layers else [None]:
                curve = Curve(each.label if len(measured) > 1 else of or WHOLE if quantity.layers else each.label)
                for run in each.runs:
                    for row in run.get(kind, ()):
                        within = row if of is None else _at(row, ("layers", of))
                        curve.add(row["step"], _at(within, quantity.keys))
                curves.append(curve)
        yield Panel(quantity.title, "step", quantity.y, curves, log_y=quantity.log)


def _freezing(figure: str, measured: Sequence[Measured], layer: str | None) -> Iterator[Panel]:
    for quantity in FREEZING:
        curves = []
        for each in measured:
            for key, words in (("unfrozen", "nothing frozen"), ("frozen", "as frozen")):
                curve = Curve(words if len(measured) == 1 else f"{each.label}, {words}")
                for run in each.runs:
                    for row in run.get("freezing", ()):
                        curve.add(row["step"], _at(row, (key, *quantity.keys)))
                curves.append(curve)
        yield Panel(quantity.title, "step", quantity.y, curves, log_y=quantity.log)


def _histogram(figure: str, measured: Sequence[Measured], layer: str | None) -> Iterator[Panel]:
    """At the first, the middle and the last step that was looked at; the bound of the clipping is marked."""
    steps = sorted({row["step"] for each in measured for run in each.runs for row in run.get("clipping", ())})
    for step in dict.fromkeys((steps[0], steps[len(steps) // 2], steps[-1])):
        curves, marks = [], {}
        for each in measured:
            curve = Curve(each.label)
            rows = [row for run in each.runs for row in run.get("clipping", ()) if row["step"] == step]
            bins = [{int(k): n for k, n in row["histogram"].items() if k.lstrip("-").isdigit()} for row in rows]
            filled = [k for counts in bins for k in counts]
            for k in range(min(filled) - 1, max(filled) + 2) if filled else ():
                for counts in bins:
                    curve.add(10 ** ((k + 0.5) / BINS), counts.get(k, 0))
            curves.append(curve)
            bounds = [bound for row in rows for bound in row["bounds"].values()]
            if len(set(bounds)) == 1:
                marks["C"] = bounds[0]
        yield Panel(f"step {step}", "‖g‖ over live coordinates", "examples", curves, log_x=True, marks=marks)


def _counts(figure: str, measured: Sequence[Measured], layer: str | None) -> Iterator[Panel]:
    curves = []
    for each in measured:
        curve = Curve(each.label)
        last = [run["freeze-counts"][-1] for run in each.runs if run.get("freeze-counts")]
        for times in sorted({int(k) for row in last for k in row["coordinates"]}):
            for row in last:
                curve.add(times, row["coordinates"].get(str(times), 0))
        curves.append(curve)
    yield Panel("how often coordinates were frozen", "steps in which it was frozen", "coordinates", curves, apart=True)


def _layers(measured: Measured, kind: str) -> list[str]:
    return list(dict.fromkeys(name for run in measured.runs for row in run.get(kind, ()) for name in row["layers"]))


def _at(row: Any, keys: Sequence[str]) -> Any:
    """What stands there; None if there is nothing."""
    for key in keys:
        row = row.get(key) if isinstance(row, Mapping) else None
    return row


Make = Callable[[str, Sequence[Measured], str | None], Iterator[Panel]]
FIGURES: dict[str, Make] = {
    **dict.fromkeys(OVER_STEPS, _over_steps),
    "freezing": _freezing,
    "histogram": _histogram,
    "freeze-counts": _counts,
}
KINDS = {figure: kind for figure, (kind, _) in OVER_STEPS.items()}
KINDS |= {"freezing": "freezing", "histogram": "clipping", "freeze-counts": "freeze-counts"}


def rows_of(panels: Sequence[Panel]) -> list[Row]:
    """The numbers behind the panels, a row for each point: the mean of the repetitions, and their range."""
    return [
        {
            "panel": panel.title, "quantity": panel.y, "curve": curve.label, "x": x, "mean": sum(values) / len(values),
            "least": min(values), "most": max(values), "runs": len(values),
        }
        for panel in panels for curve in panel.curves for x, values in sorted(curve.points.items())
    ]  # fmt: skip
