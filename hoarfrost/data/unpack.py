"""Raw files from elsewhere, unzipped as they are read, and never by a byte more than the data set has."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from hoarfrost.data.files import in_a_line
from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import size_of

Bytes = npt.NDArray[np.uint8]

SIP = 1 << 18  # bytes that are read at a time
SLACK = 1 << 20  # bytes that a file may have beside the data: headers, a read-me, what packing adds


class Unpacked:
    """A file's bytes, from the first to the last, unzipped if it is a .gz, whatever its name."""

    def __init__(self, file: BinaryIO, most: int) -> None:
        zipped = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        self._file = gzip.GzipFile(fileobj=file) if zipped else file
        self._left = most

    def take(self, count: int) -> Bytes:
        """The next bytes, all of them: fewer are refused."""
        self._count(count)
        content = np.empty(count, np.uint8)
        filled = 0
        while filled < count:
            piece = self._file.read(min(SIP, count - filled))
            if not piece:
                raise InvalidValue("it ends too early")
            content[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
            filled += len(piece)
        return content

    def skip(self, count: int) -> None:
        """Leaves the next bytes out."""
        self._count(count)
        while count > 0:
            piece = self._file.read(min(SIP, count))
            if not piece:
                raise InvalidValue("it ends too early")
            count -= len(piece)

    def end(self) -> None:
        """Refuses anything that follows."""
        if self._file.read(1):
            raise InvalidValue("it goes on after the end of its data")

    def _count(self, count: int) -> None:
        if count > self._left:  # a bomb, or a size that lies
            raise InvalidValue("it holds more than the data set has")
        self._left -= count


@contextmanager
def unpacked(path: Path, most: int) -> Iterator[Unpacked]:
    """Opens a file of at most so many bytes, once unzipped; whatever is wrong with it is told in one line."""
    size = size_of(path, "data file")
    with in_a_line(path, "a data file"), open(path, "rb") as file:
        if size > most + SLACK:  # zipping makes nothing larger by more than that
            raise InvalidValue("it is larger than the data set")
        yield Unpacked(file, most)
