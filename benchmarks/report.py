"""The figures as data for a file, and as tables for the terminal."""

from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.timing import Seconds, ratios
from benchmarks.workloads import WANTED_MEMORY, WORKLOADS, Workload

JUDGED = "hoarfrost"
"""The contender that the wanted ratios are for."""

Figures = dict[str, Any]


def time_figures(workload: Workload, seconds: Seconds, alone: Seconds | None = None) -> Figures:
    """One workload's times, ratios and verdict; ``alone`` are times of contenders each in a process of its own."""
    apart = ratios(alone) if alone else {}
    return {
        name: {
            "median_seconds": median(seconds[name]),
            "ratio": ratio,
            "best_ratio": best,
            "seconds": seconds[name],
            **({"alone_ratio": apart[name][0], "alone_seconds": alone[name]} if alone and name in apart else {}),
            **_verdict(name, ratio, workload.wanted),
        }
        for name, (ratio, best) in ratios(seconds).items()
    }


def memory_figures(added: dict[str, int]) -> Figures:
    """One workload's added bytes, ratios and verdict."""
    figures: Figures = {}
    for name, bytes_ in added.items():
        ratio = bytes_ / added["plain"]
        figures[name] = {"bytes": bytes_, "ratio": ratio, **_verdict(name, ratio, WANTED_MEMORY)}
    return figures


def show_time(console: Console, figures: dict[str, Figures]) -> None:
    first = next(iter(next(iter(figures.values()))))
    table = _table("Time of a step", "ms", f"x {first}", "at best", "alone")
    for workload, contenders in figures.items():
        _heading(table, WORKLOADS[workload].title)
        for name, row in contenders.items():
            milliseconds = row["median_seconds"] * 1e3
            cells = (
                f"{milliseconds:,.0f}" if milliseconds >= 10 else f"{milliseconds:.2f}",
                f"{row['ratio']:.2f}",
                f"{row['best_ratio']:.2f}",
                f"{row['alone_ratio']:.2f}" if "alone_ratio" in row else "",
            )
            table.add_row(f"  {name}", *cells, *_verdict_cells(row))
    console.print(table)


def show_memory(console: Console, figures: dict[str, Figures]) -> None:
    table = _table("Memory that a step adds", "MiB", "x plain")
    for workload, contenders in figures.items():
        _heading(table, WORKLOADS[workload].title)
        for name, row in contenders.items():
            cells = f"{row['bytes'] / 2**20:,.0f}", f"{row['ratio']:.2f}"
            table.add_row(f"  {name}", *cells, *_verdict_cells(row))
    console.print(table)


def _verdict(name: str, ratio: float, wanted: float) -> Figures:
    return {"wanted": wanted, "met": ratio <= wanted} if name == JUDGED else {}


def _verdict_cells(row: Figures) -> tuple[str, str]:
    if "wanted" not in row:
        return "", ""
    return f"{row['wanted']:.2f}", "[green]pass[/]" if row["met"] else "[red]fail[/]"


def _table(title: str, *columns: str) -> Table:
    table = Table("contender", title=title)
    for column in (*columns, "wanted", ""):
        table.add_column(column, justify="right")
    return table


def _heading(table: Table, title: str) -> None:
    if table.row_count:
        table.add_section()
    table.add_row(f"[bold]{title}[/]")
