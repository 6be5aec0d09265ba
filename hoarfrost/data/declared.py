"""What a data file says it holds. It is judged by that before any of its numbers are read."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import free_memory, line, shown

PARTS = ("x_train", "y_train", "x_test", "y_test")
DIMENSIONS = 16  # at most


@dataclass(frozen=True)
class Declared:
    """An array's number type and shape, as its file states them."""

    kind: str
    itemsize: int
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """What it takes in the file, once decompressed."""
        return self.itemsize * math.prod(self.shape)


def check_names(names: Collection[str]) -> None:
    """All four parts are there. Others may be, and are not read."""
    missing = [part for part in PARTS if part not in names]
    if missing:
        found = ", ".join(line(name, 40) for name in sorted(names)[:4]) or "nothing"
        raise InvalidValue(f"it lacks {', '.join(missing)}; it holds {found}{', …' if len(names) > 4 else ''}")


def check_sizes(parts: Mapping[str, Declared]) -> None:
    """The parts have shapes that tensors can have, and fit into memory together.

    >>> check_sizes({"x_train": Declared("F32", 4, (10**9, 10**9))})
    Traceback (most recent call last):
        ...
    hoarfrost.errors.InvalidValue: its arrays take more memory than is free
    """
    for name, part in parts.items():
        if len(part.shape) > DIMENSIONS:
            raise InvalidValue(f"{name} has {len(part.shape)} dimensions; at most {DIMENSIONS} make sense")
        if 0 in part.shape:
            raise InvalidValue(f"{name} is empty: there is no number in it")
    # As they are in the file, and as the float32 or int64 that training uses.
    if sum(part.bytes + 4 * math.prod(part.shape) for part in parts.values()) > free_memory():
        raise InvalidValue("its arrays take more memory than is free")


def not_a_number_type(name: str, kind: str) -> InvalidValue:
    """What to answer to an array of anything else."""
    return InvalidValue(f"{name} holds {shown(kind)}; give it real numbers such as float32, uint8 or int64")
