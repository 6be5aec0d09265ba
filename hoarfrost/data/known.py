"""The data sets that can be fetched by name: what is in them, where they are at home, and how to be sure of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from hoarfrost.data.cifar import CifarBinary
from hoarfrost.data.idx import Idx
from hoarfrost.errors import InvalidValue


class Raw(Protocol):
    """The form in which a data set is handed out."""

    @property
    def train(self) -> int:
        """How many examples there are to train on."""

    @property
    def test(self) -> int:
        """How many there are to test on."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """An image's channels, height and width."""

    @property
    def files(self) -> Mapping[str, int]:
        """What there is to download, and the most bytes that each may have."""

    def read(self, path: Path) -> dict[str, Tensor]:
        """x_train, y_train, x_test and y_test; anything that does not look like this data set is refused."""


@dataclass(frozen=True)
class Known:
    """A data set of images."""

    name: str
    classes: int
    raw: Raw
    homes: tuple[str, ...]  # folders on the web that hold the raw files
    train_sha256: str  # see `checksum`
    test_sha256: str

    def check(self, parts: Mapping[str, Tensor]) -> None:
        """Whether these are the data set's examples, all of them, in whatever order."""
        splits = (("train", self.raw.train, self.train_sha256), ("test", self.raw.test, self.test_sha256))
        for split, count, expected in splits:
            x, y = parts[f"x_{split}"], parts[f"y_{split}"]
            shapes = (x.dtype, tuple(x.shape), y.dtype, tuple(y.shape))
            if shapes != (torch.uint8, (count, *self.raw.shape), torch.int64, (count,)):
                raise InvalidValue(f"x_{split} and y_{split} are not the arrays that {self.name} consists of")
            found = checksum(x, y)
            if found != expected:
                raise InvalidValue(
                    f"these are not the images and labels of {self.name}: the checksum of {split} is {found[:16]}…, "
                    f"not {expected[:16]}…"
                )


def checksum(x: Tensor, y: Tensor) -> str:
    """SHA-256 over the sorted SHA-256 of every image with its label: the same however files are packed or ordered.

    >>> x, y = torch.arange(8, dtype=torch.uint8).reshape(2, 1, 2, 2), torch.tensor([3, 4])
    >>> checksum(x, y) == checksum(x.flip(0), y.flip(0)) != checksum(x, y.flip(0))
    True
    """
    pairs = zip(x.flatten(1).numpy(), y.numpy().astype("<i8"), strict=True)
    each = (hashlib.sha256(image.tobytes() + label.tobytes()).digest() for image, label in pairs)
    return hashlib.sha256(b"".join(sorted(each))).hexdigest()


KNOWN = {
    known.name: known
    for known in (
        Known(
            name="mnist",
            classes=10,
            raw=Idx(train=60_000, test=10_000, shape=(1, 28, 28)),
            homes=(
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
                "https://sagemaker-sample-files.s3.amazonaws.com/datasets/image/MNIST/",
            ),
            train_sha256="ceb7dae35f33b78023fdd631afb40f55178e62cdc2ffb9a9914d62cf00c16f13",
            test_sha256="4be5dbf3279c06a13f5ec5886b40e9a0b86af9449a6194a03782ddd01e20fd11",
        ),
        Known(
            name="fashion-mnist",
            classes=10,
            raw=Idx(train=60_000, test=10_000, shape=(1, 28, 28)),
            homes=(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
                "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
            ),
            train_sha256="9b59105b0403efb11e8b880a02c46894ebc04265c845ebcbb781b324c4fdd377",
            test_sha256="42d9ee570837aba1cd0b32741e8c1a09f099a3abe1ff438da2b17208614d12f5",
        ),
        Known(
            name="cifar10",
            classes=10,
            raw=CifarBinary(train=50_000, test=10_000, shape=(3, 32, 32)),
            homes=(
                "https://www.cs.toronto.edu/~kriz/",
                "https://cave.cs.toronto.edu/kriz/",
                "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/",
            ),
            train_sha256="1195f442362167ebcd5a35e348aaaabb4065dcf0abe432f959be61d70d4968f2",
            test_sha256="77607e1cd43d23381060104a0e869a7ff871ec37fee871f4e3b3ac800f4c3cfd",
        ),
    )
}
