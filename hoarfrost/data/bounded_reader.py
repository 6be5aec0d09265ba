"""Reads downloaded files, unzipping as it reads, and never more bytes than the data set has."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from hoarfrost.data.user_files import file_errors
from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import size_of

Bytes = npt.NDArray[np.uint8]

READ_SIZE = 1 << 18  # bytes per read
SLACK = 1 << 20  # bytes that a file may have besides the data: headers, a readme, compression overhead


class BoundedReader:
    """A file's bytes in order, unzipped if it is a .gz file, whatever its name."""

    def __init__(self, file: BinaryIO, max_bytes: int) -> None:
        zipped = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        self._file = gzip.GzipFile(fileobj=file) if zipped else file
        self._left = max_bytes

    def take(self, count: int) -> Bytes:
        """The next ``count`` bytes; a file with fewer is refused."""
        self._count(count)
        content = np.empty(count, np.uint8)
        filled = 0
        while filled < count:
            piece = self._file.read(min(READ_SIZE, count - filled))
            if not piece:
                raise InvalidValue("it ends too early")
            content[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
            filled += len(piece)
        return content

    def skip(self, count: int) -> None:
        """Skips the next ``count`` bytes."""
        self._count(count)
        while count > 0:
            piece = self._file.read(min(READ_SIZE, count))
            if not piece:
                raise InvalidValue("it ends too early")
            count -= len(piece)

    def expect_end(self) -> None:
        """Refuses a file with more bytes."""
        if self._file.read(1):
            raise InvalidValue("there are bytes after the end of its data")

    def _count(self, count: int) -> None:
        if count > self._left:  # a zip bomb, or a false size
            raise InvalidValue("its content is larger than the data set")
        self._left -= count


@contextmanager
def open_bounded(path: Path, max_bytes: int) -> Iterator[BoundedReader]:
    """Opens a file of at most ``max_bytes``, unzipped. Any error is one line that names the file."""
    size = size_of(path, "data file")
    with file_errors(path, "a data file"), open(path, "rb") as file:
        if size > max_bytes + SLACK:  # compression adds no more than that
            raise InvalidValue("it is larger than the data set")
        yield BoundedReader(file, max_bytes)
