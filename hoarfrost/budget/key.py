"""The owner's key to a ledger, in a file of its own."""

import os
import secrets
from pathlib import Path

from hoarfrost.errors import InvalidValue


def make_key(path: str | Path) -> bytes:
    """Makes a key and writes it to a new file that only its owner can read."""
    key = secrets.token_bytes(32)
    try:
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        raise InvalidValue(f"there is a file at {path} already; a new key goes into a new file") from None
    except OSError as error:
        raise InvalidValue(f"cannot write the key {path}: {error.strerror}") from error
    with os.fdopen(file, "w", encoding="ascii") as out:
        out.write(key.hex() + "\n")
    return key


def read_key(path: str | Path) -> bytes:
    """The key that `make_key` wrote.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "owner.key"
    >>> make_key(path) == read_key(path)
    True
    """
    try:
        with open(path, "rb") as file:
            text = file.read(100)
        key = bytes.fromhex(text.decode("ascii"))
    except OSError as error:
        raise InvalidValue(f"cannot read the key {path}: {error.strerror}") from error
    except ValueError:
        key = b""
    if len(key) != 32:
        raise InvalidValue(f"{path} is not a ledger's key: 64 hexadecimal digits")
    return key
