"""Tables from .parquet files, by pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hoarfrost.data.arrow_columns import cells_of, check_number, check_type, damages, is_text, pyarrow_for
from hoarfrost.data.cells import ROWS, Batch, OpenTable
from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import free_memory

MAX_METADATA = 16 << 20  # bytes of one text, and entries of one list, in a file's own description
KIND = "a Parquet file"


@contextmanager
def open_parquet(path: Path) -> Iterator[OpenTable]:
    """A table whose columns hold numbers, text, or true and false."""
    arrow = pyarrow_for("Parquet files")
    from pyarrow import parquet

    def opened(texts: Sequence[str] = ()) -> Any:
        limits = {"thrift_string_size_limit": MAX_METADATA, "thrift_container_size_limit": MAX_METADATA}
        # Texts stay in the file's dictionaries: written out, a long one that is used often would fill the memory.
        return parquet.ParquetFile(path, read_dictionary=list(texts), pre_buffer=False, **limits)

    with damages(arrow, KIND), opened() as file:
        schema = file.schema_arrow
        names = tuple(schema.names)
        check_number(names)
        groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
        if max((group.total_byte_size for group in groups), default=0) > free_memory():
            raise InvalidValue("it needs more memory than is free")

    def read(wanted: Sequence[str]) -> Iterator[Batch]:
        for name in wanted:
            check_type(arrow, name, schema.field(name).type)
        texts = [name for name in wanted if is_text(arrow, schema.field(name).type)]
        with damages(arrow, KIND), opened(texts) as file:
            for batch in file.iter_batches(batch_size=ROWS, columns=list(wanted), use_threads=False):
                yield [cells_of(batch.column(name)) for name in wanted]

    yield OpenTable(names, read)
