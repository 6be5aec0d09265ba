"""Arrays from a .npz archive. NumPy's own reader is not used: it can unpickle, and trusts declared sizes."""

import io
import re
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hoarfrost.data.array_header import ARRAYS, ArrayHeader, check_names, check_sizes, unsupported_dtype
from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import shown

READ_SIZE = 1 << 18  # bytes that are read at a time
BOMB_SIZE, BOMB_RATIO = 64 << 20, 200  # above this size, no data compresses by this ratio; a zip bomb does by 1000

# NumPy's header of an array of plain numbers. That of a pickle ("|O") or a structure does not match.
_HEADER = re.compile(
    r"\{\s*'descr'\s*:\s*'([^']*)'\s*,\s*'fortran_order'\s*:\s*(True|False)\s*,"
    r"\s*'shape'\s*:\s*\(([0-9L, ]*)\)(?:\s*,)?\s*\}\s*"
)
_MAX_HEADER = 4096
_DTYPES = {"|i1", "|u1", "<f2", "<f4", "<f8", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8"}


def read_npz(path: Path) -> dict[str, Tensor]:
    """The four arrays. All that the archive declares is checked before an array is decompressed."""
    with _LimitedReads(path) as file, zipfile.ZipFile(file) as archive:
        members = _members(archive)
        check_names(members)
        arrays = {name: _Array.of(archive, name, members[name]) for name in ARRAYS}
        check_sizes({name: array.header for name, array in arrays.items()})
        return {name: array.read(archive) for name, array in arrays.items()}


class _LimitedReads(io.FileIO):
    """A file that refuses large reads. (zipfile reads an archive's whole directory at once, whatever its size.)"""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > READ_SIZE:
            raise InvalidValue("its zip directory is too long for an archive of four arrays")
        return super().read(-1 if size is None else size)


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The archive's members, by the names of their arrays."""
    members: dict[str, zipfile.ZipInfo] = {}
    names = set()
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if not re.fullmatch(r"\w[\w. -]{0,99}", name):
            raise InvalidValue(f"its member {shown(info.filename)} is not a valid array name; save with numpy.savez")
        if name in names:
            raise InvalidValue(f"it holds {shown(name)} twice")
        names.add(name)
        if info.flag_bits & 1:
            raise InvalidValue(f"its member {shown(name)} is encrypted")
        if info.file_size > max(BOMB_SIZE, BOMB_RATIO * info.compress_size):
            raise InvalidValue(
                f"its member {shown(name)} decompresses to more than {BOMB_RATIO} times its size; if that is "
                "intended, save it uncompressed (numpy.savez)"
            )
        if info.filename.endswith(".npy"):
            members[name] = info
    return members


class _Array:
    """One member of an archive. Only its header was read."""

    def __init__(self, name: str, info: zipfile.ZipInfo, header: ArrayHeader, offset: int, fortran: bool) -> None:
        self.name, self.info, self.header, self.offset, self.fortran = name, info, header, offset, fortran

    @classmethod
    def of(cls, archive: zipfile.ZipFile, name: str, info: zipfile.ZipInfo) -> "_Array":
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InvalidValue(f"{name} has an unsupported compression; save with numpy.savez")
        with archive.open(info) as member:
            start = member.read(8)
            if start[:6] != b"\x93NUMPY" or start[6:] not in (b"\1\0", b"\2\0", b"\3\0"):
                raise InvalidValue(f"{name} is not a NumPy array")
            prefix = 2 if start[6] == 1 else 4  # bytes of the header's length
            length = int.from_bytes(member.read(prefix), "little")
            if length > _MAX_HEADER:
                raise InvalidValue(f"{name} has a header that is too long for an array of numbers")
            match = _HEADER.fullmatch(member.read(length).decode("latin-1"))
        if match is None:
            raise InvalidValue(f"{name} is not a plain array of numbers")
        dtype, fortran, dimensions = match.groups()
        if dtype == "|O":
            raise InvalidValue(f"{name} holds Python objects: a pickle could run code; save plain numbers")
        if dtype not in _DTYPES:
            raise unsupported_dtype(name, dtype)
        sizes = [size.strip(" L") for size in dimensions.split(",")]
        if any(len(size) > 19 for size in sizes):
            raise InvalidValue(f"{name} declares an impossible size")
        shape = tuple(int(size) for size in sizes if size)
        declared, offset = ArrayHeader(dtype, np.dtype(dtype).itemsize, shape), len(start) + prefix + length
        if info.file_size != offset + declared.bytes:
            raise InvalidValue(f"{name} declares a shape and a dtype that do not match its length")
        return cls(name, info, declared, offset, fortran == "True")

    def read(self, archive: zipfile.ZipFile) -> Tensor:
        """The values."""
        content = np.empty(self.header.bytes, dtype=np.uint8)
        filled = 0
        with archive.open(self.info) as member:
            member.read(self.offset)
            while filled < len(content):
                piece = member.read(min(READ_SIZE, len(content) - filled))
                if not piece:
                    raise InvalidValue(f"{self.name} ends too early")
                content[filled : filled + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
                filled += len(piece)
        numbers: np.ndarray = content.view(self.header.dtype)
        return torch.from_numpy(numbers.reshape(self.header.shape, order="F" if self.fortran else "C"))
