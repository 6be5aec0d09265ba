"""Figures of trained models: the loss between, around and along them, their NTK, and how alike their layers are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hoarfrost.measure.connectivity import Connectivity
from hoarfrost.measure.directions import Directions
from hoarfrost.measure.figures import drawing, legend, lines, panels, save_figure
from hoarfrost.measure.ntk_table import ClippedFlow
from hoarfrost.measure.surface import Surface

Paths = tuple[Path, Path, Path]
LEVELS = 10
ALPHA = "α: from θ₀ (0) to θ₁ (1)"


def connectivity_figure(
    found: Mapping[str, Connectivity], folder: Path, name: str = "connectivity", *, loss: str = "mean loss"
) -> Paths:
    """The losses on the straight lines between pairs of models, by the name of each pair.

    Args:
        folder: called ``not-private``, as for all figures.
        loss: what the vertical axis is called.
    """
    rows = [
        {"pair": pair, "alpha": alpha, "loss": value, "distance": each.distance, "instability": each.instability}
        for pair, each in found.items()
        for alpha, value in zip(each.alphas, each.losses, strict=True)
    ]
    with drawing():
        figure, (axes,) = panels(1)
        for style, (pair, each) in zip(lines(), found.items(), strict=False):
            axes.plot(each.alphas, each.losses, label=f"{pair}: instability {each.instability:.3g}", **style)
        axes.set(xlabel=ALPHA, ylabel=f"{loss} $\\mathcal{{E}}_\\alpha$")
        legend(figure, axes, across=1)
        return save_figure(figure, rows, folder, name)


def directions_figure(
    found: Directions, folder: Path, name: str = "directions", *, towards: Connectivity | None = None,
    loss: str = "mean loss",
) -> Paths:  # fmt: skip
    """The losses along random directions, their mean and range, beside the line to another model."""
    rows: list[dict[str, Any]] = [
        {"direction": number, "distance": d, "loss": value}
        for number, losses in enumerate(found.losses)
        for d, value in zip(found.distances, losses, strict=True)
    ]
    with drawing():
        figure, (axes,) = panels(1)
        first, second = (style for style, _ in zip(lines(), range(2), strict=False))
        low, high = ([bound(c) for c in zip(*found.losses, strict=True)] for bound in (min, max))
        axes.fill_between(found.distances, low, high, color=first["color"], alpha=0.25, linewidth=0)
        label = f"{len(found.losses)} random directions: mean and range"
        axes.plot(found.distances, found.mean, label=label, **first)
        if towards is not None:
            at = [alpha * towards.distance for alpha in towards.alphas]
            axes.plot(at, towards.losses, label="towards the other model", **second)
            rows += [
                {"direction": "other model", "distance": d, "loss": v} for d, v in zip(at, towards.losses, strict=True)
            ]
        axes.set(xlabel="distance from θ₀ (Euclidean norm of the parameters)", ylabel=loss)
        legend(figure, axes, across=1)
        return save_figure(figure, rows, folder, name)


def surface_figure(
    found: Mapping[str, Surface], folder: Path, name: str = "surface", *, loss: str = "mean loss"
) -> Paths:
    """Contours of loss surfaces, side by side on one scale, by the name of each model."""
    from matplotlib.ticker import MaxNLocator

    rows: list[dict[str, Any]] = [
        {"model": model, "a": a, "b": b, "loss": value}
        for model, each in found.items()
        for b, losses in zip(each.steps, each.losses, strict=True)
        for a, value in zip(each.steps, losses, strict=True)
    ]
    heights = [row["loss"] for row in rows if math.isfinite(row["loss"])] or [0.0]
    with drawing():
        figure, grid = panels(len(found))
        levels = MaxNLocator(LEVELS).tick_values(min(heights), max(heights))
        for axes, (model, each) in zip(grid, found.items(), strict=True):
            drawn = axes.contourf(each.steps, each.steps, each.losses, levels=levels, cmap="cividis")
            edges = axes.contour(each.steps, each.steps, each.losses, levels=levels, colors="white", linewidths=0.5)
            for label in axes.clabel(edges, fontsize=6, colors="black"):
                label.set_bbox({"facecolor": "white", "pad": 0.5, "linewidth": 0})
            axes.plot(0, 0, marker="+", color="white", markersize=9)
            axes.set(title=model, xlabel="a: along δ", ylabel="b: along η", aspect="equal")
        figure.colorbar(drawn, ax=grid, label=f"{loss} at θ + a·δ + b·η")
        return save_figure(figure, rows, folder, name)


def ntk_figure(found: Sequence[ClippedFlow], folder: Path, name: str = "ntk") -> Paths:
    """How the loss of the batch falls under each way to clip, and the eigenvalues of each kernel."""
    import torch

    spectra = [torch.linalg.eigvals(each.kernel.matrix).real.sort(descending=True).values.tolist() for each in found]
    rows: list[dict[str, Any]] = [
        {"clipping": each.clipping, "quantity": "loss", "number": number, "value": value}
        for each in found
        for number, value in enumerate(each.losses)
    ]
    rows += [
        {"clipping": each.clipping, "quantity": "eigenvalue", "number": number, "value": value}
        for each, spectrum in zip(found, spectra, strict=True)
        for number, value in enumerate(spectrum)
    ]
    with drawing():
        figure, (left, right) = panels(2)
        for style, each, spectrum in zip(lines(), found, spectra, strict=False):
            every = max(1, len(each.losses) // 10)
            left.plot(each.losses, label=each.clipping, markevery=every, **style)
            right.plot(range(1, len(spectrum) + 1), spectrum, markevery=max(1, len(spectrum) // 10), **style)
        left.set(xlabel="step of gradient descent, without noise", ylabel="L: mean loss of the batch")
        largest = max(abs(value) for spectrum in spectra for value in spectrum)
        right.set_yscale("symlog", linthresh=1e-7 * largest or 1.0)
        right.set(xlabel="number, from the largest", ylabel="eigenvalue (real part)")
        legend(figure, left, across=2)
        return save_figure(figure, rows, folder, name)


def similarity_figure(
    found: Mapping[str, Mapping[str, Mapping[Any, float]]], folder: Path, name: str = "similarity", *,
    across: str = "step",
) -> Paths:  # fmt: skip
    """Distances (1 - similarity) of layers from a reference, over steps or over layers.

    Args:
        found: for each similarity, for each line (a layer, or a run), a similarity at each place.
        across: what the horizontal axis is.
    """
    rows = [
        {"similarity": kind, "line": line, across: place, "distance": 1 - value}
        for kind, of in found.items()
        for line, values in of.items()
        for place, value in values.items()
    ]
    with drawing():
        figure, grid = panels(len(found))
        for axes, (kind, of) in zip(grid, found.items(), strict=True):
            for style, (line, values) in zip(lines(), of.items(), strict=False):
                axes.plot(list(values), [1 - value for value in values.values()], label=line, **style)
            axes.set(xlabel=across, ylabel=f"1 − {kind}: 0 is as the reference")
            axes.set_ylim(0, 1.08 * max(1e-3, axes.get_ylim()[1]))
        legend(figure, grid[0], across=3 if len(grid) > 1 else 2)
        return save_figure(figure, rows, folder, name)
