"""Files that are whole, or not there, whenever the process that writes them is killed."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hoarfrost.errors import HoarfrostError
from hoarfrost.untrusted import shown_path


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Has ``write`` make a draft beside the file, which then takes its place in one move."""
    # Of this process alone: two that write the same file must not write into one draft.
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(draft)
        with open(draft, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        raise HoarfrostError(f"cannot write {shown_path(path)}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
