"""The cache of fetched data sets: one .safetensors file each, with the pixels as uint8."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from hoarfrost.data.catalog import CATALOG, CatalogEntry
from hoarfrost.data.splits import Splits
from hoarfrost.data.user_files import file_errors, read_safetensors
from hoarfrost.errors import HoarfrostError, InvalidValue
from hoarfrost.files import replace_file
from hoarfrost.untrusted import shown_path, size_of


def folder() -> Path:
    """$HOARFROST_CACHE, or hoarfrost/ in the user's cache directory."""
    own = os.environ.get("HOARFROST_CACHE")
    if own:
        return Path(own)
    everyone = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(everyone):  # its specification: a relative path is to be ignored
        return Path(everyone) / "hoarfrost"
    return Path(os.path.expanduser("~"), ".cache", "hoarfrost")


def path_of(entry: CatalogEntry) -> Path:
    """The path of a data set's file, whether it exists or not."""
    return folder() / f"{entry.name}.safetensors"


def read(entry: CatalogEntry) -> dict[str, Tensor]:
    """A data set's four arrays, as uint8 pixels; any other content is refused."""
    path = path_of(entry)
    if not os.path.exists(path):
        raise InvalidValue(
            f"the data set {entry.name} is not in {shown_path(folder())}: run `hoarfrost data get {entry.name}`"
        )
    size_of(path, "data file")
    with file_errors(path, "a safetensors file"):
        parts = read_safetensors(path)
        try:
            entry.check(parts)
        except InvalidValue as error:
            raise InvalidValue(f"{error}; run `hoarfrost data get {entry.name}` to replace the file") from error
    return parts


def load(name: str) -> Splits:
    """A data set from the cache."""
    entry = CATALOG[name]
    parts = read(entry)
    return Splits.of(parts["x_train"], parts["y_train"], parts["x_test"], parts["y_test"], entry.classes)


def store(entry: CatalogEntry, parts: Mapping[str, Tensor]) -> Path:
    """Writes a data set. If the process is killed, its file is complete or not there."""
    path = path_of(entry)
    facts = {"name": entry.name, "train-sha256": entry.train_sha256, "test-sha256": entry.test_sha256}
    # One entry only: safetensors writes several in an order that differs between processes.
    header = {"hoarfrost-data": json.dumps(facts)}
    content = save({name: part.contiguous() for name, part in parts.items()}, metadata=header)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HoarfrostError(f"cannot write {shown_path(path)}: {error.strerror or error}") from error
    replace_file(path, lambda draft: draft.write_bytes(content))
    return path
