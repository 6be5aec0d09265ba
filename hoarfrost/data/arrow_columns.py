"""What Parquet files and the folders of `datasets` have in common: columns as pyarrow reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hoarfrost.data.cells import MAX_COLUMNS, Cell
from hoarfrost.errors import InvalidValue, MissingExtra
from hoarfrost.untrusted import shown


def pyarrow_for(what: str) -> Any:
    """The library, or which extra brings it."""
    try:
        import pyarrow
    except ImportError as error:
        raise MissingExtra(f"{what} need pyarrow, which is not installed: pip install 'hoarfrost[parquet]'") from error
    return pyarrow


def check_number(names: Sequence[str]) -> None:
    """Refuses a table that no one can look at."""
    if len(names) > MAX_COLUMNS:
        raise InvalidValue(f"it has more than {MAX_COLUMNS} columns")


def check_type(arrow: Any, name: str, kind: Any) -> None:
    """Refuses a column of anything but numbers, text, true and false."""
    plain = (arrow.types.is_boolean, arrow.types.is_integer, arrow.types.is_floating, arrow.types.is_null)
    if not is_text(arrow, kind) and not any(is_it(kind) for is_it in plain):
        raise InvalidValue(
            f"its column {shown(name)} holds {shown(str(kind))}: numbers, text, true and false can be used"
        )


def is_text(arrow: Any, kind: Any) -> bool:
    """Whether a column holds texts, perhaps as places in a list of them."""
    if arrow.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(arrow.types.is_string(kind) or arrow.types.is_large_string(kind))


def cells_of(column: Any) -> Sequence[Cell]:
    """A column's cells. A text that many of them hold is in memory once."""
    if not hasattr(column, "dictionary"):
        cells: list[Cell] = column.to_pylist()
        return cells
    texts = [*column.dictionary.to_pylist(), None]
    return [texts[-1 if place is None else place] for place in column.indices.to_pylist()]


@contextmanager
def damages(arrow: Any, kind: str) -> Iterator[None]:
    """Says that a file is damaged, and not how: what pyarrow says tells how many values it has read."""
    try:
        yield
    except MemoryError:
        raise
    except (arrow.ArrowException, UnicodeDecodeError, OSError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk, not of the content
            raise
        raise InvalidValue(f"it is damaged, or it is not {kind}") from None
