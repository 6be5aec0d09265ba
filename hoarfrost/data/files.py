"""A user's own arrays, from a .safetensors or .npz file. Neither is ever unpickled: a data file cannot run code."""

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import BadZipFile

from safetensors import SafetensorError, safe_open
from torch import Tensor

from hoarfrost.data.declared import PARTS, Declared, check_names, check_sizes, not_a_number_type
from hoarfrost.data.npz import read_npz
from hoarfrost.data.splits import Splits
from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import line, shown_path, size_of

LONGEST_HEADER = 1 << 20  # bytes of a .safetensors file; one with four tensors has a few hundred

_NUMBERS = {"F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8"}
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


def from_file(path: str | Path, classes: int | None = None) -> Splits:
    """The data set in a file that holds the tensors x_train, y_train, x_test and y_test.

    Args:
        path: ends in .safetensors or .npz.
        classes: how many there are; by default the largest label decides (see `Splits.of`).

    Guarantees:
        A file runs nothing, whatever it holds. One that lies about its sizes is refused before its numbers are read,
        and so is one that does not fit into memory. Messages tell names, types and the shape of one example, but
        neither values nor the number of examples.

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
        raise InvalidValue(f"{shown_path(path)} is neither a .safetensors nor a .npz file")
    size_of(path, "data file")
    with in_a_line(path, f"a {path.suffix[1:]} file"):
        tensors = readers[path.suffix](path)
        x_train, y_train, x_test, y_test = (tensors[part] for part in PARTS)
        return Splits.of(x_train, y_train, x_test, y_test, classes)


@contextmanager
def in_a_line(path: Path, kind: str) -> Iterator[None]:
    """Whatever is wrong with a file, by one line that names it."""
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
        # Not in torch's words, which tell how many bytes there are.
        raise InvalidValue(f"{shown_path(path)}: its arrays take more memory than is free") from None


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The four parts. What the header declares is checked before a number is read."""
    with open(path, "rb") as file:
        if int.from_bytes(file.read(8), "little") > LONGEST_HEADER:
            raise InvalidValue("it begins with a header that is far too long, or is not a safetensors file at all")
    with safe_open(path, framework="pt") as tensors:  # compares the header with the file's length
        check_names(tensors.keys())
        parts = {}
        for part in PARTS:
            declared = tensors.get_slice(part)
            kind = declared.get_dtype()
            if kind not in _NUMBERS:
                raise not_a_number_type(part, kind)
            parts[part] = Declared(kind, int(kind.lstrip("BFIU")) // 8, tuple(declared.get_shape()))
        check_sizes(parts)
        return {part: tensors.get_tensor(part) for part in PARTS}
