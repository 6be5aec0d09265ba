"""Your own arrays, from a .safetensors or .npz file. Nothing is unpickled: a data file cannot run code."""

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import BadZipFile

from safetensors import SafetensorError, safe_open
from torch import Tensor

from hoarfrost.data.array_header import ARRAYS, ArrayHeader, check_names, check_sizes, unsupported_dtype
from hoarfrost.data.npz import read_npz
from hoarfrost.data.splits import Splits
from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import line, shown_path, size_of

MAX_HEADER = 1 << 20  # bytes of a .safetensors header; one with four tensors has a few hundred

_DTYPES = {"F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8"}
_UNREADABLE = (
    OSError,
    SafetensorError,
    BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    ValueError,
)


def from_file(path: str | Path, classes: int | None = None, *, real_targets: bool = False) -> Splits:
    """The data set in a file that holds the tensors x_train, y_train, x_test and y_test.

    Args:
        path: ends in .safetensors or .npz.
        classes, real_targets: what the targets are (see `Splits.of`).

    Guarantees:
        No file can run code. A file that declares wrong sizes, or does not fit into memory, is refused before its
        values are read. Messages contain names, types and the shape of one example, but neither values nor the
        number of examples.

    >>> import tempfile
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     x, y = np.zeros((5, 3)), np.array([0, 1, 0, 1, 2])
    ...     np.savez(f"{folder}/mine.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    ...     len(from_file(f"{folder}/mine.npz").train)
    5
    """
    path = Path(path)
    readers = {".safetensors": read_safetensors, ".npz": read_npz}
    if path.suffix not in readers:
        raise InvalidValue(
            f"{shown_path(path)} is neither a .safetensors nor a .npz file, nor a table (.csv, .csv.gz, .parquet)"
        )
    size_of(path, "data file")
    with file_errors(path, f"a {path.suffix[1:]} file"):
        tensors = readers[path.suffix](path)
        x_train, y_train, x_test, y_test = (tensors[name] for name in ARRAYS)
        return Splits.of(x_train, y_train, x_test, y_test, classes, real_targets=real_targets)


@contextmanager
def file_errors(path: Path, kind: str) -> Iterator[None]:
    """Turns any error in reading a file into one line that names the file."""
    try:
        yield
    except InvalidValue as error:
        raise InvalidValue(line(f"{shown_path(path)}: {error}")) from error
    except _UNREADABLE as error:
        reason = error.strerror or error if isinstance(error, OSError) else error
        raise InvalidValue(line(f"cannot read {shown_path(path)} as {kind}: {reason}")) from error
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "allocate" not in str(error):  # as torch says it
            raise
        # Not torch's message, which contains the number of bytes.
        raise InvalidValue(f"{shown_path(path)}: its arrays need more memory than is free") from None


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The four arrays. The header is checked before any values are read."""
    with open(path, "rb") as file:
        if int.from_bytes(file.read(8), "little") > MAX_HEADER:
            raise InvalidValue("its header is too long, or it is not a safetensors file")
    with safe_open(path, framework="pt") as tensors:  # compares the header with the file's length
        check_names(tensors.keys())
        headers = {}
        for name in ARRAYS:
            declared = tensors.get_slice(name)
            dtype = declared.get_dtype()
            if dtype not in _DTYPES:
                raise unsupported_dtype(name, dtype)
            headers[name] = ArrayHeader(dtype, int(dtype.lstrip("BFIU")) // 8, tuple(declared.get_shape()))
        check_sizes(headers)
        return {name: tensors.get_tensor(name) for name in ARRAYS}
