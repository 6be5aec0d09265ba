"""Arrays from a .npz archive, without NumPy's own reader: that one can unpickle, and trusts what is declared."""

import io
import re
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hoarfrost.data.declared import PARTS, Declared, check_names, check_sizes, not_a_number_type
from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import shown

SIP = 1 << 18  # bytes that are read at a time
BOMB_SIZE, BOMB_RATIO = 64 << 20, 200  # no data of that size shrinks by so much; a bomb shrinks by a thousand

# What NumPy writes before an array of plain numbers. A pickle ("|O") or a structure does not look like it.
_HEADER = re.compile(
    r"\{\s*'descr'\s*:\s*'([^']*)'\s*,\s*'fortran_order'\s*:\s*(True|False)\s*,"
    r"\s*'shape'\s*:\s*\(([0-9L, ]*)\)(?:\s*,)?\s*\}\s*"
)
_LONGEST_HEADER = 4096
_NUMBERS = {"|i1", "|u1", "<f2", "<f4", "<f8", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8"}


def read_npz(path: Path) -> dict[str, Tensor]:
    """The four parts. Everything that the archive declares is checked before an array is decompressed."""
    with _Sips(path) as file, zipfile.ZipFile(file) as archive:
        members = _members(archive)
        check_names(members)
        arrays = {part: _Array.of(archive, part, members[part]) for part in PARTS}
        check_sizes({part: array.declared for part, array in arrays.items()})
        return {part: array.read(archive) for part, array in arrays.items()}


class _Sips(io.FileIO):
    """A file of which a large piece is never read at once: an archive's whole directory is, whatever its size."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > SIP:
            raise InvalidValue("its directory is too long for an archive of four arrays")
        return super().read(-1 if size is None else size)


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The archive's members, by the names of their arrays."""
    members: dict[str, zipfile.ZipInfo] = {}
    seen = set()
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if not re.fullmatch(r"\w[\w. -]{0,99}", name):
            raise InvalidValue(f"its member {shown(info.filename)} is not an array's name; numpy.savez makes none such")
        if name in seen:
            raise InvalidValue(f"it holds {shown(name)} twice")
        seen.add(name)
        if info.flag_bits & 1:
            raise InvalidValue(f"its member {shown(name)} is encrypted")
        if info.file_size > max(BOMB_SIZE, BOMB_RATIO * info.compress_size):
            raise InvalidValue(
                f"its member {shown(name)} would swell to more than {BOMB_RATIO} times its size; if it is meant to, "
                "save it uncompressed (numpy.savez)"
            )
        if info.filename.endswith(".npy"):
            members[name] = info
    return members


class _Array:
    """One member of an archive, of which only the header was read."""

    def __init__(self, name: str, info: zipfile.ZipInfo, declared: Declared, offset: int, fortran: bool) -> None:
        self.name, self.info, self.declared, self.offset, self.fortran = name, info, declared, offset, fortran

    @classmethod
    def of(cls, archive: zipfile.ZipFile, name: str, info: zipfile.ZipInfo) -> "_Array":
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InvalidValue(f"{name} is compressed in a way that NumPy never uses")
        with archive.open(info) as member:
            start = member.read(8)
            if start[:6] != b"\x93NUMPY" or start[6:] not in (b"\1\0", b"\2\0", b"\3\0"):
                raise InvalidValue(f"{name} is not a NumPy array")
            prefix = 2 if start[6] == 1 else 4  # bytes that say how long the header is
            length = int.from_bytes(member.read(prefix), "little")
            if length > _LONGEST_HEADER:
                raise InvalidValue(f"{name} has a header that is far too long for an array of numbers")
            header = _HEADER.fullmatch(member.read(length).decode("latin-1"))
        if header is None:
            raise InvalidValue(f"{name} is not a plain array of numbers")
        kind, fortran, dimensions = header.groups()
        if kind == "|O":
            raise InvalidValue(f"{name} holds Python objects: that is a pickle, which could run code; save numbers")
        if kind not in _NUMBERS:
            raise not_a_number_type(name, kind)
        sizes = [size.strip(" L") for size in dimensions.split(",")]
        if any(len(size) > 19 for size in sizes):
            raise InvalidValue(f"{name} declares a size that no array has")
        shape = tuple(int(size) for size in sizes if size)
        declared, offset = Declared(kind, np.dtype(kind).itemsize, shape), len(start) + prefix + length
        if info.file_size != offset + declared.bytes:
            raise InvalidValue(f"{name} declares a shape and a type that its length does not fit")
        return cls(name, info, declared, offset, fortran == "True")

    def read(self, archive: zipfile.ZipFile) -> Tensor:
        """The numbers."""
        content = np.empty(self.declared.bytes, dtype=np.uint8)
        filled = 0
        with archive.open(self.info) as member:
            member.read(self.offset)
            while filled < len(content):
                piece = member.read(min(SIP, len(content) - filled))
                if not piece:
                    raise InvalidValue(f"{self.name} ends too early")
                content[filled : filled + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
                filled += len(piece)
        numbers: np.ndarray = content.view(self.declared.kind)
        return torch.from_numpy(numbers.reshape(self.declared.shape, order="F" if self.fortran else "C"))
