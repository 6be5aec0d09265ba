"""`hoarfrost measure connectivity`, `directions`, `surface`, `ntk`, `similarity`: looking at trained models."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hoarfrost.cli.measure import app, labels_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from hoarfrost.train.loading import Trained

RUN = typer.Argument(metavar="RUN", help="A run folder, whose data are still there.")
OTHER = typer.Argument(metavar="RUN", help="Another one, of the same architecture.")
TEST = typer.Option("--test", help="Use the test set, not the training set.")
EXAMPLES = typer.Option(help="At most so many examples, drawn at random; the same ones every time.")
OUT = typer.Option(metavar="DIR", help="A folder called not-private.  [default: that of the RUN]")
OUT_OF_TWO = typer.Option(metavar="DIR", help="A folder called not-private.")
DEVICE = typer.Option(help="cpu, cuda, ...  [default: a GPU if there is one]")
POINTS = typer.Option(help="Points on each line, both ends included.")
YES = {True: "yes", False: "no"}
SEED = typer.Option(help="Of what is drawn at random.")


@app.command()
def connectivity(
    first: Annotated[Path, RUN],
    second: Annotated[Path, OTHER],
    out: Annotated[Path, OUT_OF_TWO],
    points: Annotated[int, POINTS] = 30,
    test: Annotated[bool, TEST] = False,
    examples: Annotated[int, EXAMPLES] = 10_000,
    device: Annotated[str | None, DEVICE] = None,
) -> None:
    """Do two runs end in one basin? The loss on the straight line between their weights, and its barrier.

    Both are measured on the first run's data. Not private.
    """
    from hoarfrost.measure import connectivity as measured
    from hoarfrost.measure.model_figures import connectivity_figure

    check_out(out)
    labels = labels_of([first, second])
    one, other = load(first, device), load(second, device)
    found = measured(one.model, other.model, batches_of(one, test, examples), loss=one.loss, points=points)
    table(
        ("between", "distance", "loss of the first", "of the second", "highest", "instability"),
        [(" and ".join(labels), *map(number, (
            found.distance, found.losses[0], found.losses[-1], found.highest, found.instability
        )))],
        test,
    )  # fmt: skip
    said(connectivity_figure({" and ".join(labels): found}, out, loss=axis(test)), out)


@app.command()
def directions(
    run: Annotated[Path, RUN],
    towards: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Another run: go as far as it is, and compare."),
    ] = None,
    distance: Annotated[float | None, typer.Option(help="How far; instead of --towards.")] = None,
    count: Annotated[int, typer.Option(help="How many random directions.")] = 100,
    points: Annotated[int, POINTS] = 30,
    seed: Annotated[int, SEED] = 0,
    test: Annotated[bool, TEST] = False,
    examples: Annotated[int, EXAMPLES] = 1000,
    out: Annotated[Path | None, OUT] = None,
    device: Annotated[str | None, DEVICE] = None,
) -> None:
    """How steep is the basin of a run? The loss along random directions, and the largest cosine between two of them.

    Not private.
    """
    from hoarfrost.errors import InvalidValue
    from hoarfrost.measure import connectivity as measured
    from hoarfrost.measure import random_directions
    from hoarfrost.measure.model_figures import directions_figure

    folder = check_out(out or run / "not-private")
    if (towards is None) == (distance is None):
        raise InvalidValue("say how far to go: either --towards another run, or --distance NUMBER")
    trained = load(run, device)
    batches = batches_of(trained, test, examples)
    way = None
    if towards is not None:
        other = load(towards, device).model
        way = measured(trained.model, other, batches, loss=trained.loss, points=points)
        distance = way.distance
    assert distance is not None  # one of the two is there
    found = random_directions(
        trained.model, batches, distance=distance, count=count, points=points, loss=trained.loss, seed=seed
    )
    ends = sorted(losses[-1] for losses in found.losses)
    rows = [(f"{count} random directions", number(distance), number(found.losses[0][0]), number(ends[0]),
             number(found.mean[-1]), number(ends[-1]))]  # fmt: skip
    if way is not None and towards is not None:
        end = number(way.losses[-1])
        rows.append((f"towards {labels_of([towards])[0]}", number(distance), number(way.losses[0]), end, end, end))
    table(("direction", "distance", "loss at the run", "lowest at the end", "mean", "highest"), rows, test)
    cosine = "one direction" if found.largest_cosine is None else f"{found.largest_cosine:.2g}"
    print(f"largest |cosine| between two directions: {cosine}; the loss rises along {found.rises} of {count}")
    said(directions_figure(found, folder, towards=way, loss=axis(test)), folder)


@app.command()
def surface(
    run: Annotated[Path, RUN],
    reach: Annotated[float, typer.Option(help="How far each way, in lengths of the model's own filters.")] = 1.0,
    points: Annotated[int, typer.Option(help="Points along each side, an odd number.")] = 21,
    seed: Annotated[int, SEED] = 0,
    test: Annotated[bool, TEST] = False,
    examples: Annotated[int, EXAMPLES] = 1000,
    out: Annotated[Path | None, OUT] = None,
    device: Annotated[str | None, DEVICE] = None,
) -> None:
    """What does the loss look like around a run? A surface over two random directions, filter-normalised."""
    from hoarfrost.measure import loss_surface
    from hoarfrost.measure.model_figures import surface_figure

    folder, label = check_out(out or run / "not-private"), labels_of([run])[0]
    trained = load(run, device)
    found = loss_surface(
        trained.model, batches_of(trained, test, examples), reach=reach, points=points, loss=trained.loss, seed=seed
    )
    middle, every = found.losses[points // 2][points // 2], sorted(value for row in found.losses for value in row)
    table(
        ("run", "loss in the middle", "lowest", "median", "highest"),
        [(label, *map(number, (middle, every[0], every[len(every) // 2], every[-1])))],
        test,
    )
    said(surface_figure({label: found}, folder, loss=axis(test)), folder)


@app.command()
def ntk(
    run: Annotated[Path, RUN],
    norm: Annotated[
        float | None, typer.Option(help="The small clipping norm R.  [default: a tenth of the longest gradient]")
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of gradient descent, without noise.")] = 200,
    step: Annotated[float, typer.Option(help="Their size.")] = 0.1,
    parameters: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Take this part of the parameters. Repeatable.")
    ] = None,
    test: Annotated[bool, TEST] = False,
    examples: Annotated[int, EXAMPLES] = 32,
    out: Annotated[Path | None, OUT] = None,
    device: Annotated[str | None, DEVICE] = None,
) -> None:
    """What does clipping do to the neural tangent kernel (NTK) of a batch, and to how its loss falls? Not private."""
    from hoarfrost.measure import TangentKernels, clipped_flows
    from hoarfrost.measure.model_figures import ntk_figure

    folder = check_out(out or run / "not-private")
    trained = load(run, device)
    ((x, y),) = batches_of(trained, test, examples, size=examples)
    batch = TangentKernels(trained.model, x, y, loss=trained.loss, parameters=parameters or ["*"])
    found = clipped_flows(batch, norm or batch.longest_gradient / 10 or 1.0, steps=steps, step=step)
    quantities = {
        "NTK": lambda each: each.matrix,
        "clipping norm R": lambda each: "" if each.norm is None else number(each.norm),
        "symmetric": lambda each: YES[each.kernel.symmetric],
        "positive in quadratic form": lambda each: YES[each.kernel.positive_in_quadratic_form],
        "positive in eigenvalues": lambda each: YES[each.kernel.positive_in_eigenvalues],
        "-dL/dt, predicted": lambda each: f"{each.kernel.decay:.7g}",
        "-dL/dt, measured": lambda each: f"{each.measured_decay:.7g}",
        f"L rises, in {steps} steps": lambda each: str(each.rises),
        "L at first": lambda each: number(each.losses[0]),
        "L at last": lambda each: number(each.losses[-1]),
    }
    rows = [(name, *map(quantity, found)) for name, quantity in quantities.items()]
    table(("clipping", *(each.clipping for each in found)), rows, test)
    said(ntk_figure(found, folder), folder)


@app.command()
def similarity(
    run: Annotated[Path, RUN],
    reference: Annotated[Path, typer.Argument(metavar="RUN", help="The run that it is compared with.")],
    out: Annotated[Path, OUT_OF_TWO],
    layer: Annotated[
        list[str] | None, typer.Option(help="A layer by name. Repeatable.  [default: all that hold parameters]")
    ] = None,
    points: Annotated[int, typer.Option(help="At most so many data points for a layer.")] = 10_000,
    test: Annotated[bool, TEST] = False,
    examples: Annotated[int, EXAMPLES] = 2000,
    device: Annotated[str | None, DEVICE] = None,
) -> None:
    """How alike do the layers of two runs see the same examples? PWCCA and CKA: 1 is alike.

    Both look at the first run's data. Not private.
    """
    from hoarfrost.measure import activations
    from hoarfrost.measure.activations import BY_NAME
    from hoarfrost.measure.model_figures import similarity_figure

    check_out(out)
    labels = labels_of([run, reference])
    one, other = load(run, device), load(reference, device)
    batches = batches_of(one, test, examples)
    seen, known = (activations(each.model, batches, layers=layer, points=points) for each in (one, other))
    found = {name: seen.against(known, measure) for name, measure in BY_NAME.items()}
    table(
        ("layer", "neurons", "points", *found),
        [
            (name, str(t.shape[1]), str(t.shape[0]), *(f"{of[name]:.3f}" for of in found.values()))
            for name, t in seen.of.items()
        ],
        test,
    )
    of_runs = {name: {f"{labels[0]} against {labels[1]}": dict(of)} for name, of in found.items()}
    said(similarity_figure(of_runs, out, across="layer"), out)


def check_out(folder: Path) -> Path:
    """Whether the figures can be written there in the end, and drawn at all: before anything is computed."""
    from hoarfrost.errors import InvalidValue
    from hoarfrost.measure.figures import FOLDER, drawing
    from hoarfrost.untrusted import shown_path

    if FOLDER not in folder.resolve().parts:
        raise InvalidValue(f"--out {shown_path(folder)} is not called {FOLDER}: what is measured must not be released")
    with drawing():
        return folder


def load(run: Path, device: str | None) -> "Trained":
    """A run's model, loss and data, the model on the device."""
    from hoarfrost.train.loading import Trained
    from hoarfrost.train.prepare import device_for

    trained = Trained.load(run)
    trained.model.to(device_for(device))
    return trained


def batches_of(trained: "Trained", test: bool, examples: int, size: int = 500) -> "list[tuple[Any, Tensor]]":
    """Examples of a run, drawn at random but always the same ones."""
    import torch
    from torch.utils.data import DataLoader, Subset

    from hoarfrost import validate
    from hoarfrost.data import Texts

    validate.whole(examples=examples)
    every = trained.splits.test if test else trained.splits.train
    drawn = torch.randperm(len(every), generator=torch.Generator().manual_seed(0))[:examples]
    if isinstance(every, Texts):
        return list(DataLoader(Subset(every, drawn.tolist()), batch_size=size, collate_fn=every.collate))
    x, y = every.tensors
    return [(x[places], y[places]) for places in drawn.split(size)]


def table(names: tuple[str, ...], rows: "Sequence[tuple[str, ...]]", test: bool) -> None:
    """Prints what was measured, and on what."""
    from hoarfrost.cli.table import print_table

    print(f"on the {'test' if test else 'training'} set; not private", flush=True)
    print_table(names, rows)


def said(written: tuple[Path, ...], folder: Path) -> None:
    """Says where the figures are."""
    from hoarfrost.untrusted import shown_path

    print(f"\nwrote {', '.join(path.name for path in written)} to {shown_path(folder)}: not private")


def axis(test: bool) -> str:
    """What the losses of a figure are."""
    return f"mean loss, {'test' if test else 'training'} set"


def number(value: float) -> str:
    """As a table shows it."""
    return f"{value:.4g}"
