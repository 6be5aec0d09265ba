"""The commands of the command line."""

from typing import Annotated

import typer

import hoarfrost
from hoarfrost.cli import measure_attacks as measure_attacks
from hoarfrost.cli import measure_models as measure_models
from hoarfrost.cli import measure_runs as measure_runs
from hoarfrost.cli.audit import audit
from hoarfrost.cli.budget import app as budget
from hoarfrost.cli.data import app as data
from hoarfrost.cli.errors import OneLineErrorGroup
from hoarfrost.cli.ledger import app as ledger
from hoarfrost.cli.measure import app as measure
from hoarfrost.cli.recipe import app as recipe
from hoarfrost.cli.select import select
from hoarfrost.cli.train import train

app = typer.Typer(
    name="hoarfrost",
    cls=OneLineErrorGroup,
    help="Differentially private PyTorch training.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(train)
app.command()(select)
app.command()(audit)
app.add_typer(budget, name="budget")
app.add_typer(ledger, name="ledger")
app.add_typer(measure, name="measure")
app.add_typer(data, name="data")
app.add_typer(recipe, name="recipe")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"hoarfrost {hoarfrost.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Differentially private PyTorch training."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """The entry point."""
    app(prog_name="hoarfrost")
