"""CIFAR-10's binary version: six files of rows, each a label and an image. (The Python version is a pickle.)"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hoarfrost.data.bounded_reader import SLACK, BoundedReader, Bytes, open_bounded
from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import shown, shown_path

ARCHIVE, FOLDER = "cifar-10-binary.tar.gz", "cifar-10-batches-bin"
TRAIN, TEST = tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"

MAX_MEMBERS = 100  # CIFAR-10 has nine

_BLOCK = 512  # bytes of a tar block


@dataclass(frozen=True)
class CifarBinary:
    """Images [C, H, W]: five training batches and one test batch."""

    train: int
    test: int
    shape: tuple[int, int, int]

    @property
    def files(self) -> Mapping[str, int]:
        """The file to download, and its maximum size in bytes."""
        return {ARCHIVE: sum(self._sizes.values()) + SLACK}

    def read(self, path: Path) -> dict[str, Tensor]:
        """The four arrays, from the archive, the folder with it, or the folder with the batches."""
        batches = self._batches(path)
        row = 1 + torch.Size(self.shape).numel()
        parts = {}
        for split, names in (("train", TRAIN), ("test", (TEST,))):
            rows = torch.from_numpy(np.concatenate([batches.pop(name) for name in names]).reshape(-1, row))
            parts[f"x_{split}"] = rows[:, 1:].reshape(-1, *self.shape)
            parts[f"y_{split}"] = rows[:, 0].to(torch.int64)
        return parts

    @property
    def _sizes(self) -> dict[str, int]:
        row = 1 + torch.Size(self.shape).numel()
        return {**dict.fromkeys(TRAIN, self.train // len(TRAIN) * row), TEST: self.test * row}

    def _batches(self, path: Path) -> dict[str, Bytes]:
        for folder in (path, path / FOLDER):
            if os.path.exists(folder / TRAIN[0]):
                return {name: _whole(folder / name, size) for name, size in self._sizes.items()}
        inside = os.path.isdir(path)
        if inside and not os.path.exists(path / ARCHIVE):
            raise InvalidValue(f"there is neither {TRAIN[0]} nor {ARCHIVE} in {shown_path(path)}")
        with open_bounded(path / ARCHIVE if inside else path, max_bytes=self.files[ARCHIVE]) as file:
            return _from_archive(file, self._sizes)


def _whole(path: Path, size: int) -> Bytes:
    with open_bounded(path, max_bytes=size) as file:
        content = file.take(size)
        file.expect_end()
        return content


def _from_archive(file: BoundedReader, sizes: Mapping[str, int]) -> dict[str, Bytes]:
    """The wanted members, by name. Nothing is extracted to the disk, and other members are skipped."""
    found: dict[str, Bytes] = {}
    for name, size in _members(file):
        wanted = name.removeprefix(f"{FOLDER}/")
        padding = -size % _BLOCK
        if wanted not in sizes:
            file.skip(size + padding)
            continue
        if size != sizes[wanted] or wanted in found:
            raise InvalidValue(f"its {wanted} has the wrong size, or occurs twice")
        found[wanted] = file.take(size)
        file.skip(padding)
    missing = [name for name in sizes if name not in found]
    if missing:
        raise InvalidValue(f"it does not contain {', '.join(missing)}")
    return found


def _members(file: BoundedReader) -> Iterator[tuple[str, int]]:
    """The names and sizes of a tar file's members; the caller takes or skips the content of each.

    Python's tarfile trusts headers: it reads names of any length, and seeks where they say.
    """
    for _ in range(MAX_MEMBERS):
        header = file.take(_BLOCK).tobytes()
        if not any(header):  # the end of the archive
            return
        stated = re.fullmatch(rb" *([0-7]{1,11})[ \0]*", header[124:136])
        if stated is None or header[257:262] not in (b"ustar", b"\0" * 5):
            raise InvalidValue("it is not a tar file")
        name = header[:100].split(b"\0")[0].decode("utf-8", "replace").removeprefix("./")
        if name.startswith("/") or ".." in name.split("/"):
            raise InvalidValue(f"its member {shown(name)} points out of the archive")
        yield name, int(stated[1], 8)
    raise InvalidValue(f"it has more than {MAX_MEMBERS} members")
