"""Tables in the terminal."""

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hoarfrost.untrusted import line


def print_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints rows below the names of their columns: the first is a name from anywhere, the others are numbers."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # characters that the terminal cannot show
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(names[0], overflow="fold")
    for name in names[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    for label, *cells in rows:
        table.add_row(Text(line(label)), *cells)
    console = Console(highlight=False, markup=False, emoji=False)
    # Narrower than 80 columns, numbers would be cut. Without a terminal nothing is: a run is one line.
    console.width = max(80, console.width) if console.is_terminal else 1000
    console.print(table)
