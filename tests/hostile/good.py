"""Data that is as it should be: what hostile files are made from."""

import io
import json
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

Arrays = dict[str, npt.NDArray]


def arrays(**changes: npt.NDArray) -> Arrays:
    """Four parts that fit together, but for the changes."""
    return {
        "x_train": np.zeros((6, 3), np.float32),
        "y_train": np.array([0, 1, 0, 1, 0, 1]),
        "x_test": np.ones((2, 3), np.float32),
        "y_test": np.array([0, 1]),
        **changes,
    }


def save_npz(file: Path, **changes: npt.NDArray) -> None:
    """As an archive."""
    buffer = io.BytesIO()  # NumPy would append a suffix to a path
    np.savez(buffer, **arrays(**changes))
    file.write_bytes(buffer.getvalue())


def npy(array: npt.NDArray) -> bytes:
    """A member of an archive."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


TYPES = {"float32": "F32", "float64": "F64", "int64": "I64", "uint8": "U8"}


def entries(given: Arrays) -> tuple[dict[str, dict[str, object]], bytes]:
    """A .safetensors file's header and its numbers."""
    header, numbers = {}, b""
    for name, array in given.items():
        begin, numbers = len(numbers), numbers + array.tobytes()
        kind = TYPES[str(array.dtype)]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [begin, len(numbers)]}
    return header, numbers


def safetensors(header: object, numbers: bytes) -> bytes:
    """The file's bytes; a header in bytes is taken as it is."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + numbers
