"""Tables from folders that `datasets.Dataset.save_to_disk` has written, read by pyarrow.

Not by `datasets` itself: its description of the columns may name code that decodes them, and its list of files any
file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hoarfrost.data.arrow_columns import cells_of, check_number, check_type, damages, pyarrow_for
from hoarfrost.data.cells import ROWS, Batch, OpenTable
from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import line, shown, size_of

MOST_STATE = 1 << 20  # bytes of state.json, which lists a few files
KIND = "a folder that datasets has saved"


@contextmanager
def open_folder(folder: Path) -> Iterator[OpenTable]:
    """A table whose columns hold numbers, text, or true and false. A `ClassLabel` is a number."""
    arrow = pyarrow_for("folders of datasets")
    files = _files(folder)
    with damages(arrow, KIND):
        schemas = [_schema(arrow, file) for file in files]
        names, *others = (tuple(schema.names) for schema in schemas)
    check_number(names)
    if any(other != names for other in others):
        raise InvalidValue("its files differ in their columns")

    def read(wanted: Sequence[str]) -> Iterator[Batch]:
        for file, schema in zip(files, schemas, strict=True):
            for name in wanted:
                check_type(arrow, name, schema.field(name).type)
            with damages(arrow, KIND), arrow.memory_map(str(file)) as opened:
                for batch in arrow.ipc.open_stream(opened):
                    # What an Arrow file says of itself is believed by whoever reads it: offsets could lie anywhere.
                    batch.validate(full=True)
                    for first in range(0, batch.num_rows, ROWS):
                        part = batch.slice(first, ROWS)
                        yield [cells_of(part.column(name)) for name in wanted]

    yield OpenTable(names, read)


def _files(folder: Path) -> list[Path]:
    """The Arrow files that a folder lists. All of them are in it."""
    splits = _json(folder / "dataset_dict.json", "splits")
    if splits is not None:
        known = ", ".join(line(str(name), 30) for name in splits[:5])
        raise InvalidValue(f"it holds several data sets: name one of the folders in it, such as {known}")
    listed = _json(folder / "state.json", "_data_files")
    if listed is None:
        raise InvalidValue(
            "it is a folder without a state.json, not one that datasets.Dataset.save_to_disk has written; a file ends "
            "in .csv, .tsv, .jsonl or .parquet"
        )
    names = [each.get("filename") if isinstance(each, dict) else None for each in listed]
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".arrow"):
            raise InvalidValue(f"its state.json lists {shown(name)}, which is no .arrow file in the same folder")
    if not names:
        raise InvalidValue("its state.json lists no files: it is empty")
    files = [folder / str(name) for name in names]
    for file in files:
        if file.is_symlink():
            raise InvalidValue(f"{shown(file.name)} in it is a link; copy the file there")
        size_of(file, "data file")
    return files


def _json(path: Path, key: str) -> list[Any] | None:
    """The list that stands under a key of a JSON file; None if there is no such file."""
    if not path.exists():
        return None
    try:
        if size_of(path, "data file") > MOST_STATE:
            raise ValueError
        found = json.loads(path.read_text("utf-8"))[key]
        if not isinstance(found, list):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, InvalidValue):
            raise
        raise InvalidValue(f"its {path.name} is damaged: it should list {key}") from None
    return found


def _schema(arrow: Any, file: Path) -> Any:
    with arrow.memory_map(str(file)) as opened, arrow.ipc.open_stream(opened) as stream:
        return stream.schema
