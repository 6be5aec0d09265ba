"""What a piece of code does to the world, as Python itself reports it."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
ACTS = {
    "pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect",
    "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.truncate",
    "shutil.rmtree", "ctypes.dlopen",
}  # fmt: skip

_acts: list[str] | None = None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _acts is None:
        return
    if event in ACTS or (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES):
        _acts.append(f"{event} {arguments!r:.200}")


@contextmanager
def watched() -> Iterator[list[str]]:
    """The list fills with every file that is opened for writing, every process, connection and unpickled class."""
    global _acts
    _install()
    _acts = acts = []
    try:
        yield acts
    finally:
        _acts = None


def _install() -> None:
    # A hook stays for the life of the process, so there must be only one.
    global _install
    sys.addaudithook(_hook)
    _install = lambda: None  # noqa: E731
