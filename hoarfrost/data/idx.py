"""The IDX format of MNIST and Fashion-MNIST: four files, each a short header and then bytes."""

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hoarfrost.data.bounded_reader import SLACK, open_bounded
from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import shown_path

BYTES = 0x800  # in the header's first number: the data are bytes. Its last digit is the number of dimensions.

_PREFIXES = {"train": "train", "test": "t10k"}


@dataclass(frozen=True)
class IdxFormat:
    """Training and test images [1, H, W] and their labels in IDX files, plain or .gz."""

    train: int
    test: int
    shape: tuple[int, int, int]

    @property
    def files(self) -> Mapping[str, int]:
        """The files to download, and the maximum size of each in bytes."""
        return {
            f"{name}.gz": _header_and_data(dimensions) + SLACK
            for images, labels in map(self._arrays, _PREFIXES)
            for name, dimensions in (images, labels)
        }

    def read(self, folder: Path) -> dict[str, Tensor]:
        """The four arrays, from the folder with the files."""
        if not os.path.isdir(folder):
            raise InvalidValue(f"{shown_path(folder)} is not a folder; give the folder with {', '.join(self.files)}")
        parts = {}
        for split in _PREFIXES:
            (images, sizes), (labels, count) = self._arrays(split)
            parts[f"x_{split}"] = _read(folder, images, sizes).unsqueeze(1)
            parts[f"y_{split}"] = _read(folder, labels, count).to(torch.int64)
        return parts

    def _arrays(self, split: str) -> tuple[tuple[str, tuple[int, ...]], tuple[str, tuple[int, ...]]]:
        """The names and dimensions of a split's images and labels."""
        prefix, count = _PREFIXES[split], self.train if split == "train" else self.test
        return (f"{prefix}-images-idx3-ubyte", (count, *self.shape[1:])), (f"{prefix}-labels-idx1-ubyte", (count,))


def _read(folder: Path, name: str, dimensions: tuple[int, ...]) -> Tensor:
    path = next((folder / each for each in (name, f"{name}.gz") if os.path.exists(folder / each)), None)
    if path is None:
        raise InvalidValue(f"there is neither {name} nor {name}.gz in {shown_path(folder)}")
    expected = _header(dimensions)
    size = _header_and_data(dimensions)
    with open_bounded(path, max_bytes=size) as file:
        # The whole header is known beforehand: compare, do not parse.
        if file.take(len(expected)).tobytes() != expected:
            raise InvalidValue(f"it does not start with the header of an IDX file of bytes {list(dimensions)}")
        content = file.take(size - len(expected))
        file.expect_end()
    return torch.from_numpy(content.reshape(dimensions))


def _header(dimensions: tuple[int, ...]) -> bytes:
    return struct.pack(f">{1 + len(dimensions)}I", BYTES + len(dimensions), *dimensions)


def _header_and_data(dimensions: tuple[int, ...]) -> int:
    return len(_header(dimensions)) + torch.Size(dimensions).numel()
