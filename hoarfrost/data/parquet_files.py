"""Tables from .parquet files, by pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hoarfrost.data.cells import MAX_COLUMNS, ROWS, Batch, Cell, OpenTable
from hoarfrost.errors import InvalidValue, MissingExtra
from hoarfrost.untrusted import free_memory, shown

MAX_METADATA = 16 << 20  # bytes of one text, and entries of one list, in a file's own description


@contextmanager
def open_parquet(path: Path) -> Iterator[OpenTable]:
    """A table whose columns hold numbers, text, or true and false."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet, types
    except ImportError as error:
        raise MissingExtra(
            "Parquet files need pyarrow, which is not installed: pip install 'hoarfrost[parquet]'"
        ) from error

    def readable(kind: Any) -> bool:
        plain = (types.is_boolean, types.is_integer, types.is_floating, types.is_null)
        return _is_text(types, kind) or any(is_it(kind) for is_it in plain)

    def opened(texts: Sequence[str] = ()) -> Any:
        limits = {"thrift_string_size_limit": MAX_METADATA, "thrift_container_size_limit": MAX_METADATA}
        # Texts stay in the file's dictionaries: written out, a long one that is used often would fill the memory.
        return parquet.ParquetFile(path, read_dictionary=list(texts), pre_buffer=False, **limits)

    with _damages(arrow), opened() as file:
        schema = file.schema_arrow
        names = tuple(schema.names)
        if len(names) > MAX_COLUMNS:
            raise InvalidValue(f"it has more than {MAX_COLUMNS} columns")
        groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
        if max((group.total_byte_size for group in groups), default=0) > free_memory():
            raise InvalidValue("it needs more memory than is free")

    def read(wanted: Sequence[str]) -> Iterator[Batch]:
        for name in wanted:
            kind = schema.field(name).type
            if not readable(kind):
                raise InvalidValue(
                    f"its column {shown(name)} holds {shown(str(kind))}: numbers, text, true and false can be used"
                )
        texts = [name for name in wanted if _is_text(types, schema.field(name).type)]
        with _damages(arrow), opened(texts) as file:
            for batch in file.iter_batches(batch_size=ROWS, columns=list(wanted), use_threads=False):
                yield [_cells(batch.column(name)) for name in wanted]

    yield OpenTable(names, read)


def _is_text(types: Any, kind: Any) -> bool:
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _cells(column: Any) -> Sequence[Cell]:
    if not hasattr(column, "dictionary"):
        cells: list[Cell] = column.to_pylist()
        return cells
    texts = [*column.dictionary.to_pylist(), None]
    return [texts[-1 if place is None else place] for place in column.indices.to_pylist()]


@contextmanager
def _damages(arrow: Any) -> Iterator[None]:
    """Says that a file is damaged, and not how: what pyarrow says tells how many values it has read."""
    try:
        yield
    except MemoryError:
        raise
    except (arrow.ArrowException, UnicodeDecodeError, OSError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk, not of the content
            raise
        raise InvalidValue("it is damaged, or it is not a Parquet file") from None
