"""Tiny data sets in the form in which the real ones are handed out."""

import gzip
import io
import tarfile
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from hoarfrost.data.catalog import CATALOG, CatalogEntry, checksum
from hoarfrost.data.cifar import FOLDER, TEST, TRAIN, CifarBinary
from hoarfrost.data.idx import IdxFormat

Parts = dict[str, Tensor]

SIZES = {
    "mnist": IdxFormat(train=20, test=6, shape=(1, 4, 5)),
    "fashion-mnist": IdxFormat(train=20, test=6, shape=(1, 4, 5)),
    "cifar10": CifarBinary(train=20, test=6, shape=(3, 4, 5)),
}


def parts(name: str, seed: int = 0) -> Parts:
    """Made-up images and labels."""
    raw, random = SIZES[name], torch.Generator().manual_seed(seed)
    made = {}
    for split, count in (("train", raw.train), ("test", raw.test)):
        made[f"x_{split}"] = torch.randint(256, (count, *raw.shape), dtype=torch.uint8, generator=random)
        made[f"y_{split}"] = torch.randint(10, (count,), generator=random)
    return made


def tiny(name: str, mirrors: tuple[str, ...] = ()) -> CatalogEntry:
    """The data set of that name, were it made of `parts`."""
    made = parts(name)
    return replace(
        CATALOG[name],
        raw=SIZES[name],
        mirrors=mirrors,
        train_sha256=checksum(made["x_train"], made["y_train"]),
        test_sha256=checksum(made["x_test"], made["y_test"]),
    )


def idx(array: Tensor) -> bytes:
    """An idx file of bytes."""
    header = bytes([0, 0, 8, array.dim()]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return header + array.to(torch.uint8).numpy().tobytes()


def idx_files(made: Parts) -> dict[str, bytes]:
    """The four files, by name."""
    return {
        f"{prefix}-{kind}-ubyte": idx(array)
        for split, prefix in (("train", "train"), ("test", "t10k"))
        for kind, array in (("images-idx3", made[f"x_{split}"].squeeze(1)), ("labels-idx1", made[f"y_{split}"]))
    }


def batches(made: Parts) -> dict[str, bytes]:
    """The six files of CIFAR-10's binary version, by name."""
    train, test = (
        torch.cat([made[f"y_{split}"].to(torch.uint8).unsqueeze(1), made[f"x_{split}"].flatten(1)], 1)
        for split in ("train", "test")
    )
    pieces = zip((*TRAIN, TEST), (*train.chunk(5), test), strict=True)
    return {name: rows.numpy().tobytes() for name, rows in pieces}


def tar(members: dict[str, bytes], kind: int = tarfile.GNU_FORMAT) -> bytes:
    """An archive, not zipped."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def archive(made: Parts) -> bytes:
    """CIFAR-10's binary version, as it is downloaded."""
    inside = {f"{FOLDER}/readme.html": b"<p>", **{f"{FOLDER}/{name}": rows for name, rows in batches(made).items()}}
    return gzip.compress(tar(inside))


def written(folder: Path, files: dict[str, bytes], zipped: bool = False) -> Path:
    """A folder with these files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)
    return folder
