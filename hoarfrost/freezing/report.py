"""What DP-FROST has found, as a table and as a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hoarfrost.budget import Snapshot
from hoarfrost.files import replace_file
from hoarfrost.freezing.partitions import Layout, Partition
from hoarfrost.freezing.selection import Ranking

FORMAT = "hoarfrost selection 1"


@dataclass(frozen=True)
class Row:
    """One partition. It has no magnitude if it is too large to be chosen."""

    name: str
    parameters: tuple[str, ...]
    size: int
    magnitude: float | None
    standard_error: float | None
    chosen: bool


@dataclass(frozen=True)
class Selection:
    """The partitions, the largest magnitude first; ``str`` of it is a table.

    Args:
        rows: of each partition.
        head: the parameters that are trained in any case.
        settings: the freezer's, in words.
    """

    rows: tuple[Row, ...]
    head: tuple[str, ...]
    settings: str

    @classmethod
    def of(cls, layout: Layout, ranking: Ranking, settings: str) -> Selection:
        """What a ranking says."""

        def row(each: Partition) -> Row:
            magnitude, error = ranking.magnitudes.get(each.name), ranking.errors.get(each.name)
            return Row(each.name, each.parameters, each.size, magnitude, error, each in ranking.chosen)

        ranked = sorted(layout.candidates, key=lambda each: -ranking.magnitudes[each.name])
        return cls(tuple(map(row, (*ranked, *layout.never))), layout.head, settings)

    @property
    def chosen(self) -> tuple[str, ...]:
        """The partitions that are trained."""
        return tuple(row.name for row in self.rows if row.chosen)

    @property
    def names(self) -> tuple[str, ...]:
        """Their parameters."""
        return tuple(name for row in self.rows if row.chosen for name in row.parameters)

    def __str__(self) -> str:
        lines = [("partition", "numbers", "magnitude", "error", "")]
        lines += [
            (row.name, f"{row.size:,}", _number(row.magnitude), _number(row.standard_error), "chosen" * row.chosen)
            for row in self.rows
        ]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = [_line(line, widths) for line in lines]
        return "\n".join([*table, f"always trained: {', '.join(self.head) or 'nothing'}"])

    def save(self, path: str | Path, spent: Snapshot) -> None:
        """Writes the choice, with what was spent for it: a run that uses it counts that, and pays no more.

        Args:
            spent: by the run that made the selection: ``private.account.snapshot()``.

        Guarantees:
            What is written follows from noisy magnitudes, and may be released as they may.
        """
        facts: dict[str, Any] = {
            "format": FORMAT,
            "settings": self.settings,
            "train": [*self.names, *self.head],
            "head": list(self.head),
            "partitions": [
                {
                    "name": row.name, "parameters": list(row.parameters), "size": row.size, "magnitude": row.magnitude,
                    "standard_error": row.standard_error, "chosen": row.chosen,
                }
                for row in self.rows
            ],
            "spent": spent.as_dict(),
        }  # fmt: skip
        text = json.dumps(facts, indent=2, allow_nan=False) + "\n"
        replace_file(Path(path), lambda draft: draft.write_text(text, encoding="utf-8"))


def _number(value: float | None) -> str:
    return "too large" if value is None else f"{value:.3g}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (
        cell.ljust(width) if n in (0, 4) else cell.rjust(width)
        for n, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([first, *rest]).rstrip()
