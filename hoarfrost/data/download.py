"""Raw files from the web into a folder. What is in them is somebody else's question: nothing here looks inside."""

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import line

Progress = Callable[[str, int, int | None], None]  # a file's name, how many bytes of it are there, of how many if known

TIMEOUT = 30  # seconds without a sign of life
PIECE = 1 << 16  # bytes between two reports of progress


def download(home: str, files: Mapping[str, int], folder: Path, progress: Progress) -> None:
    """Copies files from their home into a folder; one that is larger than the number beside it is given up."""
    for name, most in files.items():
        try:
            _copy(f"{home}{name}", folder / name, most, progress)
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: an address that is none
            raise InvalidValue(line(f"{home}{name}: {_reason(error)}")) from error


def _copy(url: str, path: Path, most: int, progress: Progress) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "hoarfrost"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer, open(path, "wb") as file:
        stated = answer.headers.get("Content-Length", "")
        total = int(stated) if stated.isascii() and stated.isdigit() and len(stated) < 19 else None
        done = 0
        progress(path.name, done, total)
        while piece := answer.read(PIECE):
            done += len(piece)
            if max(done, total or 0) > most:
                raise InvalidValue("the file there is larger than the data set")
            file.write(piece)
            progress(path.name, done, total)
        if total is not None and done < total:  # Python takes a lost connection for the end of the file
            raise InvalidValue("the connection was lost")


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, OSError):
        error = error.reason
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
