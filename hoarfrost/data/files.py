"""A user's own arrays, from a .safetensors or .npz file. Neither is ever unpickled: a data file cannot run code."""

from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from hoarfrost.data.splits import Splits
from hoarfrost.errors import InvalidValue

PARTS = ("x_train", "y_train", "x_test", "y_test")


def from_file(path: str | Path, classes: int | None = None) -> Splits:
    """The data set in a file that holds the tensors x_train, y_train, x_test and y_test.

    Args:
        path: ends in .safetensors or .npz.
        classes: how many there are; by default the largest label decides (see `Splits.of`).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     x, y = np.zeros((5, 3)), np.array([0, 1, 0, 1, 2])
    ...     np.savez(f"{folder}/mine.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    ...     len(from_file(f"{folder}/mine.npz").train)
    5
    """
    path = Path(path)
    readers = {".safetensors": _safetensors, ".npz": _npz}
    if path.suffix not in readers:
        raise InvalidValue(f"{path} is neither a .safetensors nor a .npz file")
    if not path.exists():
        raise InvalidValue(f"no data file at {path}")
    try:
        tensors = readers[path.suffix](path)
    except (OSError, SafetensorError, BadZipFile, EOFError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise InvalidValue(f"cannot read {path} as a {path.suffix[1:]} file: {reason}") from error
    missing = [part for part in PARTS if part not in tensors]
    if missing:
        found = ", ".join(sorted(tensors)) or "nothing"
        raise InvalidValue(f"{path} lacks {', '.join(missing)}; it holds {found}")
    try:
        x_train, y_train, x_test, y_test = (tensors[part] for part in PARTS)
        return Splits.of(x_train, y_train, x_test, y_test, classes)
    except InvalidValue as error:
        raise InvalidValue(f"{path}: {error}") from error


def _safetensors(path: Path) -> dict[str, Tensor]:
    return load_file(path)


def _npz(path: Path) -> dict[str, Tensor]:
    with np.load(path, allow_pickle=False) as arrays:
        if not hasattr(arrays, "files"):
            raise ValueError("it is a single array, not an archive of named ones")
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files if name in PARTS}
