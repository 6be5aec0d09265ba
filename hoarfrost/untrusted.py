"""What comes from outside, a recipe or a data file, may be built to do harm: how it is shown, opened and weighed."""

import os
import reprlib
import stat
from pathlib import Path

from hoarfrost.errors import InvalidValue

LINE = 320  # characters of a whole message
PATH = 100  # of a path in it: two of them and the advice must fit
VALUE = 60  # of any other value

_PLENTY = 64 << 30  # bytes, where the system does not say how much memory it has


def line(text: str, most: int = LINE) -> str:
    r"""The text as one line that is safe to print: what a terminal would obey is spelled out, what is long is cut.

    >>> print(line("a\nb \x1b[31m red"))
    a b \x1b[31m red
    >>> line("0123456789", most=5)
    '0123…'
    """
    text = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in " ".join(text.split())
    )
    return text if len(text) <= most else text[: most - 1] + "…"


def shown(value: object) -> str:
    r"""A value as a message quotes it.

    >>> print(shown("\x1b[31m"), shown(1.5), len(shown(16**9999)) < 70)
    '\x1b[31m' 1.5 True
    """
    try:
        return line(_REPR.repr(value), VALUE + 2)
    except (ValueError, RecursionError):  # an integer with more digits than Python writes out; a nest without a bottom
        return f"an enormous {type(value).__name__}"


def shown_path(path: str | Path) -> str:
    """A path as a message names it; of a long one both ends.

    >>> len(shown_path("/data/" + "deep/" * 100 + "mine.npz"))
    100
    """
    text = line(str(path), 100_000)
    tail = PATH * 2 // 3
    return text if len(text) <= PATH else f"{text[: PATH - tail - 1]}…{text[-tail:]}"


def size_of(path: Path, what: str) -> int:
    """How many bytes a file has. Only a regular one is ever opened: a device has no end, a pipe may never begin."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InvalidValue(f"no {what} at {shown_path(path)}") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidValue(f"cannot read the {what} {shown_path(path)}: {reason}") from error
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a device or a pipe"
        raise InvalidValue(f"the {what} {shown_path(path)} is {kind}, not a file")
    return status.st_size


def free_memory() -> int:
    """How many bytes may be taken without driving the machine into the ground; where it does not say, plenty."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            facts = dict(entry.split(":", 1) for entry in file)
        return int(facts["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return _PLENTY


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = VALUE
_REPR.maxlevel, _REPR.maxlist, _REPR.maxdict = 2, 4, 4
_REPR.fillvalue = "…"
