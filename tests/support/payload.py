"""Pickles that act when they are loaded: they leave a marker behind."""

import io
import pickle
from pathlib import Path

import torch

MARKER = "EXECUTED"


class _Acts:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return (exec, (f"open({str(self.marker)!r}, 'w').close()",))


def acting(file: Path) -> object:
    """An object whose pickle, once loaded, makes a marker beside the file."""
    return _Acts(file.with_name(MARKER))


def pickled(file: Path) -> None:
    """The bare pickle."""
    file.write_bytes(pickle.dumps(acting(file)))


def torch_saved(file: Path) -> None:
    """As torch.save writes it: a zip archive with a pickle inside."""
    buffer = io.BytesIO()
    torch.save({"x_train": acting(file)}, buffer)
    file.write_bytes(buffer.getvalue())


def torch_saved_the_old_way(file: Path) -> None:
    """As torch.save wrote it long ago: pickles in a row."""
    buffer = io.BytesIO()
    torch.save({"x_train": acting(file)}, buffer, _use_new_zipfile_serialization=False)
    file.write_bytes(buffer.getvalue())
