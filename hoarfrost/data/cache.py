"""Where data sets that were fetched are kept: one .safetensors file each, as pixels, which is what they are."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from hoarfrost.data.files import in_a_line, read_safetensors
from hoarfrost.data.known import KNOWN, Known
from hoarfrost.data.splits import Splits
from hoarfrost.errors import HoarfrostError, InvalidValue
from hoarfrost.files import replace_file
from hoarfrost.untrusted import shown_path, size_of


def folder() -> Path:
    """$HOARFROST_CACHE, or hoarfrost/ where this user's programs keep such things."""
    own = os.environ.get("HOARFROST_CACHE")
    if own:
        return Path(own)
    everyone = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(everyone):  # its specification: a relative path is to be ignored
        return Path(everyone) / "hoarfrost"
    return Path(os.path.expanduser("~"), ".cache", "hoarfrost")


def place(known: Known) -> Path:
    """The file of a data set, whether it is there or not."""
    return folder() / f"{known.name}.safetensors"


def read(known: Known) -> dict[str, Tensor]:
    """A data set's four parts, as pixels; any other content is refused."""
    path = place(known)
    if not os.path.exists(path):
        raise InvalidValue(
            f"the data set {known.name} is not in {shown_path(folder())}: run `hoarfrost data get {known.name}`"
        )
    size_of(path, "data file")
    with in_a_line(path, "a safetensors file"):
        parts = read_safetensors(path)
        try:
            known.check(parts)
        except InvalidValue as error:
            raise InvalidValue(f"{error}; `hoarfrost data get {known.name}` replaces the file") from error
    return parts


def load(name: str) -> Splits:
    """A data set that was fetched before."""
    known = KNOWN[name]
    parts = read(known)
    return Splits.of(parts["x_train"], parts["y_train"], parts["x_test"], parts["y_test"], known.classes)


def store(known: Known, parts: Mapping[str, Tensor]) -> Path:
    """Keeps a data set. Its file is whole or not there, whenever the process is killed."""
    path = place(known)
    facts = {"name": known.name, "train-sha256": known.train_sha256, "test-sha256": known.test_sha256}
    # One entry only: the library writes several in an order that changes from process to process.
    header = {"hoarfrost-data": json.dumps(facts)}
    content = save({name: part.contiguous() for name, part in parts.items()}, metadata=header)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HoarfrostError(f"cannot write {shown_path(path)}: {error.strerror or error}") from error
    replace_file(path, lambda draft: draft.write_bytes(content))
    return path
