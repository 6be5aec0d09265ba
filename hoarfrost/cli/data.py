"""`hoarfrost data`: the data sets that recipes can name, and which are on this machine."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hoarfrost.cli.group import command_group

if TYPE_CHECKING:
    from hoarfrost.data.download import Progress

app = command_group("Download and list data sets.")


@app.command()
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Such as mnist; `hoarfrost data list` names all.")],
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="PATH", help="Read the raw files from this folder or archive instead of downloading."
        ),
    ] = None,
) -> None:
    """Download a data set into the cache and verify its checksums."""
    from hoarfrost.data import fetch
    from hoarfrost.data.catalog import CATALOG

    with _bar() as progress:
        path = fetch(name, source, progress)
    raw = CATALOG[name].raw
    print(f"{name}: {raw.train} training images, {raw.test} test images; checksums match\n{path}")


@app.command("list")
def list_() -> None:
    """List data sets, with size and path if downloaded."""
    from rich.filesize import decimal

    from hoarfrost.data import cache
    from hoarfrost.data.catalog import CATALOG

    for name, entry in CATALOG.items():
        path, raw = cache.path_of(entry), entry.raw
        there = os.path.exists(path)
        where = (
            f"{decimal(os.path.getsize(path))}  {path}" if there else f"not downloaded; run `hoarfrost data get {name}`"
        )
        _row(name, f"{raw.train} + {raw.test} images {'x'.join(map(str, raw.shape))}", where)
    _row("digits", "1500 + 297 images 1x8x8", "part of scikit-learn")


def _row(name: str, what: str, where: str) -> None:
    print(f"{name:<13}  {what:<30}  {where}")


@contextmanager
def _bar() -> Iterator["Progress"]:
    """A progress bar for each downloaded file, on a terminal only."""
    from rich import progress as rich
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.DownloadColumn(),
        rich.TransferSpeedColumn(),
    )
    tasks: dict[str, rich.TaskID] = {}
    with rich.Progress(*columns, console=console, disable=not console.is_terminal) as bar:

        def show(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=None)
            bar.update(tasks[name], completed=done, total=total)

        yield show
