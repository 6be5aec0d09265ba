"""The data sets that can be fetched by name: their sizes, mirrors and checksums."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from hoarfrost.data.cifar import CifarBinary
from hoarfrost.data.idx import IdxFormat
from hoarfrost.errors import InvalidValue


class RawFormat(Protocol):
    """The file format in which a data set is distributed."""

    @property
    def train(self) -> int:
        """The number of training examples."""

    @property
    def test(self) -> int:
        """The number of test examples."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """An image's channels, height and width."""

    @property
    def files(self) -> Mapping[str, int]:
        """The files to download, and the maximum size of each in bytes."""

    def read(self, path: Path) -> dict[str, Tensor]:
        """x_train, y_train, x_test and y_test; files of another format or size are refused."""


@dataclass(frozen=True)
class CatalogEntry:
    """A data set of images that can be fetched."""

    name: str
    classes: int
    raw: RawFormat
    mirrors: tuple[str, ...]  # URLs of folders with the raw files
    train_sha256: str  # see `checksum`
    test_sha256: str

    def check(self, parts: Mapping[str, Tensor]) -> None:
        """Refuses arrays other than the data set's examples; their order does not matter."""
        splits = (("train", self.raw.train, self.train_sha256), ("test", self.raw.test, self.test_sha256))
        for split, count, expected in splits:
            x, y = parts[f"x_{split}"], parts[f"y_{split}"]
            shapes = (x.dtype, tuple(x.shape), y.dtype, tuple(y.shape))
            if shapes != (torch.uint8, (count, *self.raw.shape), torch.int64, (count,)):
                raise InvalidValue(f"x_{split} and y_{split} are not the arrays of {self.name}: wrong type or shape")
            found = checksum(x, y)
            if found != expected:
                raise InvalidValue(
                    f"these are not the images and labels of {self.name}: the checksum of {split} is {found[:16]}…, "
                    f"not {expected[:16]}…"
                )


def checksum(x: Tensor, y: Tensor) -> str:
    """SHA-256 over the sorted SHA-256 of every image with its label: independent of packing and order.

    >>> x, y = torch.arange(8, dtype=torch.uint8).reshape(2, 1, 2, 2), torch.tensor([3, 4])
    >>> checksum(x, y) == checksum(x.flip(0), y.flip(0)) != checksum(x, y.flip(0))
    True
    """
    pairs = zip(x.flatten(1).numpy(), y.numpy().astype("<i8"), strict=True)
    each = (hashlib.sha256(image.tobytes() + label.tobytes()).digest() for image, label in pairs)
    return hashlib.sha256(b"".join(sorted(each))).hexdigest()


CATALOG = {
    entry.name: entry
    for entry in (
        CatalogEntry(
            name="mnist",
            classes=10,
            raw=IdxFormat(train=60_000, test=10_000, shape=(1, 28, 28)),
            mirrors=(
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
                "https://sagemaker-sample-files.s3.amazonaws.com/datasets/image/MNIST/",
            ),
            train_sha256="ceb7dae35f33b78023fdd631afb40f55178e62cdc2ffb9a9914d62cf00c16f13",
            test_sha256="4be5dbf3279c06a13f5ec5886b40e9a0b86af9449a6194a03782ddd01e20fd11",
        ),
        CatalogEntry(
            name="fashion-mnist",
            classes=10,
            raw=IdxFormat(train=60_000, test=10_000, shape=(1, 28, 28)),
            mirrors=(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
                "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
            ),
            train_sha256="9b59105b0403efb11e8b880a02c46894ebc04265c845ebcbb781b324c4fdd377",
            test_sha256="42d9ee570837aba1cd0b32741e8c1a09f099a3abe1ff438da2b17208614d12f5",
        ),
        CatalogEntry(
            name="cifar10",
            classes=10,
            raw=CifarBinary(train=50_000, test=10_000, shape=(3, 32, 32)),
            mirrors=(
                "https://www.cs.toronto.edu/~kriz/",
                "https://cave.cs.toronto.edu/kriz/",
                "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/",
            ),
            train_sha256="1195f442362167ebcd5a35e348aaaabb4065dcf0abe432f959be61d70d4968f2",
            test_sha256="77607e1cd43d23381060104a0e869a7ff871ec37fee871f4e3b3ac800f4c3cfd",
        ),
    )
}
