"""Tensors (.safetensors) whose header lies or is broken, and data that no model can be trained on."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.hostile.good import arrays, entries, safetensors, save_npz
from tests.support import payload


def _bytes(content: bytes) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        file.write_bytes(content)

    return write


def _header(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """A good file whose header was changed in place."""
    header, numbers = entries(arrays())
    change(header)
    return _bytes(safetensors(header, numbers))


def _entry(**changes: object) -> Callable[[Path], None]:
    return _header(lambda header: header["x_train"].update(changes))


def _arrays(**changes: npt.NDArray) -> Callable[[Path], None]:
    return _bytes(safetensors(*entries(arrays(**changes))))


def _npz(**changes: npt.NDArray) -> Callable[[Path], None]:
    return lambda file: save_npz(file, **changes)


def _sparse(declared: int, size: int) -> Callable[[Path], None]:
    """A file that takes no room on the disk, with a header of the declared length."""

    def write(file: Path) -> None:
        with open(file, "wb") as opened:
            opened.write(struct.pack("<Q", declared))
            opened.truncate(size)

    return write


def _terabyte(file: Path) -> None:
    """Honest in every way, and more than any memory holds."""
    header, numbers = entries(arrays(x_train=np.zeros(0, np.float32)))
    header["x_train"] = {"dtype": "F32", "shape": [1 << 38], "data_offsets": [len(numbers), len(numbers) + (1 << 40)]}
    content = safetensors(header, numbers)
    with open(file, "wb") as opened:
        opened.write(content)
        opened.truncate(len(content) + (1 << 40))


GOOD = safetensors(*entries(arrays()))
HEADER, NUMBERS = entries(arrays())
FIRST = arrays()["x_train"].nbytes

FILES: dict[str, Callable[[Path], None]] = {
    # Pickles.
    "pickle.safetensors": payload.pickled,
    "torch-save.safetensors": payload.torch_saved,
    "torch-save-old.safetensors": payload.torch_saved_the_old_way,
    # Cut, and lying about lengths.
    "empty.safetensors": _bytes(b""),
    "seven-bytes.safetensors": _bytes(GOOD[:7]),
    "header-only.safetensors": _bytes(GOOD[: -len(NUMBERS)]),
    "cut-in-the-header.safetensors": _bytes(GOOD[:50]),
    "cut-by-a-byte.safetensors": _bytes(GOOD[:-1]),
    "a-byte-too-many.safetensors": _bytes(GOOD + b"\0"),
    "header-longer-than-the-file.safetensors": _bytes(struct.pack("<Q", 100_000) + GOOD[8:]),
    "header-2-to-63.safetensors": _bytes(struct.pack("<Q", 1 << 63) + GOOD[8:]),
    "header-2-to-64.safetensors": _bytes(b"\xff" * 8 + GOOD[8:]),
    "header-of-99-megabytes.safetensors": _sparse(99_000_000, 100_000_000),
    "header-of-zeros.safetensors": _sparse(1 << 20, 1 << 21),
    "no-header.safetensors": _bytes(safetensors(b"", b"")),
    "terabyte.safetensors": _terabyte,
    # Headers that are no headers.
    "header-not-json.safetensors": _bytes(safetensors(b"{not json}", NUMBERS)),
    "header-not-utf-8.safetensors": _bytes(safetensors(b'{"\xff": 1}', NUMBERS)),
    "header-a-list.safetensors": _bytes(safetensors([], NUMBERS)),
    "header-deep.safetensors": _bytes(safetensors(b'{"x_train":' + b"[" * 200_000, NUMBERS)),
    "header-deep-tables.safetensors": _bytes(safetensors(b'{"a":' * 100_000, NUMBERS)),
    "header-of-many.safetensors": _bytes(safetensors(
        {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(10_000)}, b""
    )),
    "metadata-of-numbers.safetensors": _header(lambda header: header.update(__metadata__={"a": 1})),
    "metadata-only.safetensors": _bytes(safetensors({"__metadata__": {"format": "pt"}}, b"")),
    "name-with-escape.safetensors": _bytes(safetensors(
        {"\x1b[2J\n": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4
    )),
    # Entries that do not fit the numbers.
    "overlapping.safetensors": _header(lambda header: header["y_train"].update(data_offsets=[8, 56])),
    "all-the-same.safetensors": _header(
        lambda header: [entry.update(HEADER["y_train"]) for entry in header.values()]
    ),
    "with-a-hole.safetensors": _header(lambda header: header.pop("y_train")),
    "backwards.safetensors": _entry(data_offsets=[FIRST, 0]),
    "negative-offset.safetensors": _entry(data_offsets=[-FIRST, 0]),
    "offset-beyond-the-end.safetensors": _entry(data_offsets=[1 << 40, (1 << 40) + FIRST]),
    "offset-a-fraction.safetensors": _entry(data_offsets=[0, FIRST + 0.5]),
    "offset-2-to-64.safetensors": _entry(data_offsets=[0, 1 << 64]),
    "shape-too-large.safetensors": _entry(shape=[6, 1000]),
    "shape-overflows-to-zero.safetensors": _entry(shape=[1 << 32, 1 << 32], data_offsets=[0, 0]),
    "shape-negative.safetensors": _entry(shape=[-6, -3]),
    "shape-text.safetensors": _entry(shape="six"),
    "type-unknown.safetensors": _entry(dtype="PICKLE"),
    "type-truth.safetensors": _entry(dtype="BOOL", shape=[6, 12]),
    "type-float8.safetensors": _entry(dtype="F8_E4M3", shape=[6, 12]),
    "type-complex.safetensors": _entry(dtype="C64", shape=[9]),
    # Data that fits its file, and nothing else.
    "nothing-to-train-on.safetensors": _arrays(x_train=np.zeros((0, 3), np.float32), y_train=np.zeros(0, np.int64)),
    "examples-of-nothing.safetensors": _arrays(x_train=np.zeros((6, 0), np.float32)),
    "no-dimension.safetensors": _arrays(x_train=np.zeros((), np.float32)),
    "lengths-differ.safetensors": _arrays(y_train=np.zeros(5, np.int64)),
    "shapes-differ.safetensors": _arrays(x_test=np.zeros((2, 4), np.float32)),
    "labels-negative.safetensors": _arrays(y_train=np.full(6, -3)),
    "labels-2-to-62.safetensors": _arrays(y_train=np.full(6, 1 << 62)),
    "labels-largest.safetensors": _arrays(y_test=np.full(2, (1 << 63) - 1)),
    "labels-fractions.safetensors": _arrays(y_train=np.zeros(6, np.float32)),
    "labels-one-hot.safetensors": _arrays(y_train=np.zeros((6, 2), np.int64)),
    "labels-2-to-64.npz": _npz(y_train=np.full(6, (1 << 64) - 1, np.uint64)),
    "token-ids-for-a-perceptron.npz": _npz(x_train=np.zeros((6, 3), np.uint16), x_test=np.zeros((2, 3), np.uint16)),
}  # fmt: skip

TOKENS: dict[str, Callable[[Path], None]] = {
    "token-ids-beyond-the-vocabulary.npz": _npz(
        x_train=np.full((6, 3), 1 << 40), x_test=np.zeros((2, 3), np.int64)
    ),
    "token-ids-negative.npz": _npz(x_train=np.zeros((6, 3), np.int64), x_test=np.full((2, 3), -1)),
    "text-longer-than-positions.npz": _npz(x_train=np.zeros((6, 600), np.int64), x_test=np.zeros((2, 600), np.int64)),
}  # fmt: skip
