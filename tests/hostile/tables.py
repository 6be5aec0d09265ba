"""Tables that are cut, ragged, endless, swollen, or no tables at all."""

import gzip
import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as arrow
from pyarrow import parquet

from tests.support import payload

HEADER = "a,b,y\n"
ROWS = "1,red,0\n2,blue,1\n" * 3
RULES = """target = "y"
classes = 2
test_share = 0.5
bounds = { a = [0, 9] }
categories = { b = ["red", "blue"] }"""


def _bytes(content: bytes) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        file.write_bytes(content)

    return write


def _text(text: str) -> Callable[[Path], None]:
    return _bytes(text.encode())


def _sparse(size: int, start: bytes = b"") -> Callable[[Path], None]:
    def write(file: Path) -> None:
        with open(file, "wb") as opened:
            opened.write(start)
            opened.truncate(size)

    return write


def _parquet(**columns: object) -> bytes:
    given = {"a": [1.0, 2.0] * 3, "b": ["red", "blue"] * 3, "y": [0, 1] * 3}
    buffer = io.BytesIO()
    parquet.write_table(arrow.table(given | columns), buffer)
    return buffer.getvalue()


def _same_name_twice() -> bytes:
    buffer = io.BytesIO()
    column = arrow.array([1.0, 2.0])
    parquet.write_table(arrow.Table.from_arrays([column, column, column], ["a", "a", "y"]), buffer)
    return buffer.getvalue()


def _folder(folder: Path, name: str, content: bytes | None = None, size: int = 0, link: str = "") -> None:
    """As `datasets` writes it, with a file of that name."""
    folder.mkdir()
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    if link:
        (folder / name).symlink_to(link)
    elif content is not None:
        _sparse(max(size, len(content)), content)(folder / name)


def _stream() -> bytes:
    buffer = io.BytesIO()
    table = arrow.table({"a": [1.0, 2.0] * 3, "b": ["red", "blue"] * 3, "y": [0, 1] * 3})
    with arrow.ipc.new_stream(buffer, table.schema) as stream:
        stream.write_table(table)
    return buffer.getvalue()


def _with_far_offset() -> bytes:
    """The last text ends a gigabyte behind the others."""
    offsets = b"".join(n.to_bytes(4, "little") for n in (0, 3, 7, 10, 14, 17, 21))
    assert _stream().count(offsets) == 1
    return _stream().replace(offsets, offsets[:-4] + (1 << 30).to_bytes(4, "little"))


GOOD_PARQUET = _parquet()

FILES: dict[str, Callable[[Path], None]] = {
    "empty.csv": _bytes(b""),
    "header-only.csv": _text(HEADER),
    "no-header.csv": _text(ROWS),
    "only-line-ends.csv": _bytes(b"\n" * 100_000),
    "ragged-short.csv": _text(HEADER + ROWS + "1,red\n"),
    "ragged-long.csv": _text(HEADER + ROWS + "1,red,0,9\n"),
    "one-field-names-it-all.csv": _text('"a,b,y"\n' + ROWS),
    "nul-bytes.csv": _bytes(HEADER.encode() + b"\0" * 1000),
    "nul-in-field.csv": _text(HEADER + ROWS + "1,r\0ed,0\n"),
    "not-utf-8.csv": _bytes(HEADER.encode() + b"1,r\xff,0\n"),
    "utf-16.csv": _bytes((HEADER + ROWS).encode("utf-16")),
    "pickle.csv": payload.pickled,
    "torch-save.csv": payload.torch_saved,
    "two-columns-of-a-name.csv": _text("a,a,y\n1,red,0\n"),
    "column-without-a-name.csv": _text("a,,y\n1,red,0\n"),
    "escape-in-column.csv": _text("a,b,y,\x1b[2J\x1b]0;owned\x07\n1,red,0,1\n"),
    "newline-in-column.csv": _text('a,b,y,"c\nhoarfrost: all is well"\n1,red,0,1\n'),
    "long-column.csv": _text(f"a,b,y,{'c' * 100_000}\n1,red,0,1\n"),
    "many-columns.csv": _text("a,b,y," + ",".join(f"c{n}" for n in range(9000)) + "\n"),
    "million-commas.csv": _bytes(b"," * 1_000_000),
    "huge-field.csv": _text(HEADER + f'1,"{"r" * 200_000}",0\n'),
    "endless-quote.csv": _text(HEADER + '1,"red,0\n' * 5),
    "endless-line.csv": _sparse(1 << 40, HEADER.encode() + b"1"),
    "terabyte-of-nothing.csv": _sparse(1 << 40),
    "formula.csv": _text("=cmd|' /C calc'!A0,b,y\n1,red,0\n"),
    "no-target.csv": _text(HEADER + "1,red,\n2,blue,x\n"),
    "pipe.csv": os.mkfifo,
    "folder.csv": lambda file: file.mkdir(),
    "device.csv": lambda file: file.symlink_to("/dev/zero"),
    "cut.csv.gz": _bytes(gzip.compress((HEADER + ROWS * 100).encode())[:-20]),
    "not-zipped-after-all.csv.gz": _bytes(b"\x1f\x8b" + b"x" * 1000),
    "zeros.csv.gz": _bytes(gzip.compress(bytes(50 << 20), 1)),
    "one-line-of-50-mib.csv.gz": _bytes(gzip.compress(HEADER.encode() + b"1" * (50 << 20), 1)),
    "list.jsonl": _text('{"a": 1, "b": "red", "y": 0}\n[1, "red", 0]\n'),
    "nested.jsonl": _bytes(b'{"a": ' + b"[" * 400_000 + b"\n"),
    "digits.jsonl": _bytes(b'{"a": ' + b"9" * 900_000 + b"}\n"),
    "object-in-cell.jsonl": _text('{"a": {"b": 1}, "b": "red", "y": 0}\n'),
    "escape-in-key.jsonl": _text('{"a": 1, "b": "red", "y": 0, "\\u001b[2J": 1, "": 2}\n'),
    "endless-line.jsonl": _sparse(1 << 40, b'{"a": 1'),
    "latin-1.jsonl": _bytes(b'{"a": 1, "b": "r\xe9d", "y": 0}\n'),
    "one-line-of-50-mib.jsonl.gz": _bytes(gzip.compress(b'{"a": "' + b"1" * (50 << 20), 1)),
    "pickle.jsonl": payload.pickled,
    "quotes-mean-nothing.tsv": _text('a\tb\ty\n"1\tred"\t0\n1\t0\n'),
    "no-state": lambda file: file.mkdir(),
    "state-leads-elsewhere": lambda file: _folder(file, "../secret.arrow"),
    "state-lists-a-pickle": lambda file: _folder(file, "data.pkl"),
    "state-lists-escapes": lambda file: _folder(file, "\x1b[2J"),
    "arrow-of-zeros": lambda file: _folder(file, "data.arrow", bytes(1000)),
    "arrow-of-ones": lambda file: _folder(file, "data.arrow", b"\xff" * 1000),
    "arrow-cut": lambda file: _folder(file, "data.arrow", _stream()[:-20]),
    "arrow-with-a-far-offset": lambda file: _folder(file, "data.arrow", _with_far_offset()),
    "arrow-sparse-terabyte": lambda file: _folder(file, "data.arrow", b"\xff\xff\xff\xff", size=1 << 40),
    "arrow-is-a-link": lambda file: _folder(file, "data.arrow", link="/etc/passwd"),
    "empty.parquet": _bytes(b""),
    "magic-only.parquet": _bytes(b"PAR1PAR1"),
    "text.parquet": _text(HEADER + ROWS),
    "pickle.parquet": payload.pickled,
    "cut.parquet": _bytes(GOOD_PARQUET[:-9]),
    "cut-at-the-start.parquet": _bytes(GOOD_PARQUET[50:]),
    "footer-of-4-gib.parquet": _bytes(GOOD_PARQUET[:-8] + b"\xff\xff\xff\xff" + b"PAR1"),
    "footer-of-zeros.parquet": _bytes(b"PAR1" + bytes(1000) + (500).to_bytes(4, "little") + b"PAR1"),
    "footer-of-ones.parquet": _bytes(b"PAR1" + b"\xff" * 1000 + (500).to_bytes(4, "little") + b"PAR1"),
    "sparse-terabyte.parquet": _sparse(1 << 40, b"PAR1"),
    "no-rows.parquet": _bytes(_parquet(a=arrow.array([], "f8"), b=arrow.array([], "string"), y=arrow.array([], "i8"))),
    "lists.parquet": _bytes(_parquet(a=[[1.0]] * 6)),
    "bytes.parquet": _bytes(_parquet(b=[b"\x80"] * 6)),
    "two-columns-of-a-name.parquet": _bytes(_same_name_twice()),
    "escape-in-column.parquet": _bytes(_parquet(**{"\x1b[2J": [1.0] * 6})),
    "pipe.parquet": os.mkfifo,
}  # fmt: skip
