"""Downloads files into a folder. Their content is not looked at here."""

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import line

Progress = Callable[[str, int, int | None], None]  # file name, bytes done, total bytes if known

TIMEOUT = 30  # seconds without an answer
PIECE = 1 << 16  # bytes between two reports of progress


def download(mirror: str, files: Mapping[str, int], folder: Path, progress: Progress) -> None:
    """Downloads files from a mirror into a folder; ``files`` gives the maximum size of each in bytes."""
    for name, max_bytes in files.items():
        try:
            _copy(f"{mirror}{name}", folder / name, max_bytes, progress)
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: not a URL
            raise InvalidValue(line(f"{mirror}{name}: {_reason(error)}")) from error


def _copy(url: str, path: Path, max_bytes: int, progress: Progress) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "hoarfrost"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer, open(path, "wb") as file:
        stated = answer.headers.get("Content-Length", "")
        total = int(stated) if stated.isascii() and stated.isdigit() and len(stated) < 19 else None
        done = 0
        progress(path.name, done, total)
        while piece := answer.read(PIECE):
            done += len(piece)
            if max(done, total or 0) > max_bytes:
                raise InvalidValue("the file there is larger than the data set")
            file.write(piece)
            progress(path.name, done, total)
        if total is not None and done < total:  # Python treats a lost connection as the end of the file
            raise InvalidValue("the connection was lost")


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, OSError):
        error = error.reason
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
