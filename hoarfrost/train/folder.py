"""The run folder: every file in it is whole, whenever the run ends."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import nn

from hoarfrost.budget._journal import lock
from hoarfrost.errors import HoarfrostError, InvalidValue
from hoarfrost.files import replace_file
from hoarfrost.untrusted import size_of

MAX_BYTES = 1 << 24  # of a JSON file in a run folder
NOT_PRIVATE = """\
The figures in this folder were computed on the private training data without noise.
No epsilon covers them: they must not be released. Delete the folder before you share the run.
"""


class RunFolder:
    """Where a run writes. Nothing exists before `create`; later files replace earlier ones in one move.

    Guarantees:
        A reader never meets half a file: each is written beside its place and then renamed. Lines of metrics are
        appended with a single write each. Figures about private data go below ``not-private/`` and nowhere else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.new = True
        self._owned = False  # nobody else had put anything into it when it was made
        self._made: list[Path] = []  # from the outermost folder inwards
        if path.exists() and not path.is_dir():
            raise InvalidValue(f"the run folder {path} is a file; choose another --out")
        if path.exists() and _entries(path):
            raise InvalidValue(f"the run folder {path} is not empty; choose another --out, or remove it first")

    @classmethod
    def named(cls, name: str, parent: Path = Path("runs")) -> RunFolder:
        """A folder that does not exist yet, by the recipe's name and the time."""
        base = parent / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
        path, count = base, 1
        while path.exists():
            count += 1
            path = base.with_name(f"{base.name}-{count}")
        return cls(path)

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """A folder that an earlier run left, to go on in."""
        if not (path / "recipe.toml").is_file():
            raise InvalidValue(f"{path} is not a run folder: there is no recipe.toml in it")
        folder = cls.__new__(cls)
        folder.path, folder._made, folder.new, folder._owned = path, [], False, False
        return folder

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from training in the same folder."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            if not lock(folder):
                raise InvalidValue(f"another process is training in {self.path}")
            yield
        finally:
            os.close(folder)

    def create(self) -> None:
        """Makes the folder."""
        missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            for folder in (*reversed(missing), self.path / "not-private", self.path / "checkpoints"):
                folder.mkdir()
                self._made.append(folder)
        except OSError as error:
            self._unmake()
            raise InvalidValue(f"cannot make the run folder {self.path}: {error.strerror}") from error
        self._owned = True
        self.text("not-private/README.txt", NOT_PRIVATE)

    def remove(self) -> None:
        """Takes back what was made, if the run came to nothing. What another process made stays."""
        if self._owned:
            for entry in self.path.iterdir() if self.path.is_dir() else ():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        self._unmake()

    def _unmake(self) -> None:
        for folder in reversed(self._made):
            with suppress(OSError):  # somebody else has put something into it
                folder.rmdir()
        self._made, self._owned = [], False

    def text(self, name: str, text: str) -> None:
        """Writes a text file."""
        self._replace(name, lambda path: path.write_text(text, "utf-8"))

    def json(self, name: str, facts: Mapping[str, Any]) -> None:
        """Writes a JSON file."""
        self.text(name, json.dumps(_finite(facts), indent=2, allow_nan=False) + "\n")

    def weights(self, model: nn.Module, facts: Mapping[str, Any]) -> None:
        """Writes model.safetensors; ``facts`` travel in its header: the weights never part from their budget."""
        # Copies: tied weights share memory, which the format refuses.
        tensors = {name: value.detach().cpu().clone().contiguous() for name, value in model.state_dict().items()}
        header = {"format": "pt", "hoarfrost": json.dumps(_finite(facts), allow_nan=False)}
        # Not the library's own writing of files, which makes them unreadable for anyone else.
        self._replace("model.safetensors", lambda path: path.write_bytes(save(tensors, metadata=header)))

    def append(self, name: str, facts: Mapping[str, Any]) -> None:
        """Adds a line to a .jsonl file."""
        line = json.dumps(_finite(facts), allow_nan=False) + "\n"
        path = self.path / name
        try:
            with open(path, "ab", buffering=0) as file:
                file.write(line.encode())
        except OSError as error:
            raise HoarfrostError(f"cannot write {path}: {error.strerror}") from error

    def _replace(self, name: str, write: Callable[[Path], object]) -> None:
        replace_file(self.path / name, write)


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """The object in a JSON file of a run folder."""
    path = folder / name
    if size_of(path, "file") > MAX_BYTES:
        raise InvalidValue(f"{path} is larger than {MAX_BYTES >> 20} MiB: it is not a file of a run folder")
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidValue(f"cannot read {path} as JSON") from error
    if not isinstance(found, dict):
        raise InvalidValue(f"{path} does not hold a JSON object: it is not a file of a run folder")
    return found


def _finite(value: Any) -> Any:
    """JSON knows neither infinity nor NaN: null stands for both (an epsilon without noise, a loss that diverged)."""
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _entries(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError as error:
        raise InvalidValue(f"cannot look into {folder}: {error.strerror}") from error
