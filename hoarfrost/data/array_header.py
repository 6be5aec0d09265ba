"""What a data file declares: names, types and shapes. They are checked before any values are read."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import free_memory, line, shown

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
MAX_DIMENSIONS = 16


@dataclass(frozen=True)
class ArrayHeader:
    """An array's dtype and shape, as its file declares them."""

    dtype: str
    itemsize: int
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Its size in the file, decompressed."""
        return self.itemsize * math.prod(self.shape)


def check_names(names: Collection[str]) -> None:
    """Refuses a file without all four arrays. Further arrays are not read."""
    missing = [name for name in ARRAYS if name not in names]
    if missing:
        found = ", ".join(line(name, 40) for name in sorted(names)[:4]) or "nothing"
        raise InvalidValue(
            f"it does not contain {', '.join(missing)}; it contains {found}{', …' if len(names) > 4 else ''}"
        )


def check_sizes(headers: Mapping[str, ArrayHeader]) -> None:
    """Refuses arrays that are empty, have too many dimensions, or do not fit into memory together.

    >>> check_sizes({"x_train": ArrayHeader("F32", 4, (10**9, 10**9))})
    Traceback (most recent call last):
        ...
    hoarfrost.errors.InvalidValue: its arrays need more memory than is free
    """
    for name, header in headers.items():
        if len(header.shape) > MAX_DIMENSIONS:
            raise InvalidValue(f"{name} has {len(header.shape)} dimensions; at most {MAX_DIMENSIONS} are supported")
        if 0 in header.shape:
            raise InvalidValue(f"{name} is empty")
    # As in the file, and as the float32 or int64 that training uses.
    if sum(header.bytes + 4 * math.prod(header.shape) for header in headers.values()) > free_memory():
        raise InvalidValue("its arrays need more memory than is free")


def unsupported_dtype(name: str, dtype: str) -> InvalidValue:
    """The error for an array that does not hold real numbers."""
    return InvalidValue(f"{name} has dtype {shown(dtype)}; use real numbers such as float32, uint8 or int64")
