"""Cryptographic random bytes: AES-256 in counter mode. No block is used twice."""

import hashlib
import os
import threading
from typing import NoReturn

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from hoarfrost.errors import InvalidValue, NotPrivate

MAX_BYTES = 1 << 21
"""Maximum size of a chunk. (The address has room for 2^36.)"""

SPARE = 15
"""Extra bytes that a buffer needs: the cipher requires room for all but one byte of a block."""

_ZEROS = memoryview(bytes(MAX_BYTES))  # encrypting zeros gives the bare keystream


class Keystream:
    """An endless stream of random bytes under one secret key.

    A stream is a sequence of *draws*; a draw is split into *chunks* that can be made in any order, by any
    thread. The 16 bytes that go into the cipher are the address of 16 bytes of output:

    | draw number | chunk  | block within the chunk |
    |-------------|--------|------------------------|
    | 64 bit      | 32 bit | 32 bit                 |

    Args:
        purpose: what the bits are for. Streams of one seed with different purposes are independent.
        seed: makes the stream repeatable, for experiments. By default the key comes from the operating
            system.

    Guarantees:
        Draw numbers only go up, so no block is used twice. The key leaves this object only through `subkey`:
        it is not printed and it cannot be pickled or copied, because a copy would give out the same bits a
        second time, and noise that is used twice can be subtracted. For the same reason an unseeded stream
        takes a new key in a forked child. A seeded stream is private only while the seed is secret,
        and every stream of that seed repeats it: publish nothing that was trained with a seed.

    >>> stream = Keystream("example", seed=7)
    >>> draw = stream.next_draw()
    >>> stream.read(8, draw, chunk=0) == Keystream("example", seed=7).read(8, draw, chunk=0)
    True
    >>> stream.read(8, draw, chunk=0) == stream.read(8, draw, chunk=1)
    False
    """

    def __init__(self, purpose: str, seed: int | None = None) -> None:
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise InvalidValue(f"seed must be a whole number or None, got {seed!r}")
        self.seeded = seed is not None
        self._key = os.urandom(32) if seed is None else _hash(f"hoarfrost {purpose} seed {seed}".encode())
        self._next = 0
        self._owner = os.getpid()
        self._lock = threading.Lock()

    @property
    def draws(self) -> int:
        """The number of draws so far, made or skipped."""
        return self._next

    def next_draw(self) -> int:
        """Reserve the next draw's number. Only the caller may read under it."""
        with self._lock:
            if not self.seeded and self._owner != os.getpid():
                self._key = os.urandom(32)
                self._owner = os.getpid()
            draw = self._next
            self._next += 1
        return draw

    def skip_to(self, draw: int) -> None:
        """Let the next draw be number `draw`. Going back is refused, since it would repeat bits."""
        with self._lock:
            if not self._next <= draw < 1 << 64:
                raise InvalidValue(f"draw must lie from {self._next} (the next one) to 2^64 - 1, got {draw}")
            self._next = draw

    def fill(self, out: bytearray, size: int, draw: int, chunk: int) -> None:
        """Write the chunk's first `size` bytes to the start of `out`; it must be `SPARE` bytes longer."""
        if size > MAX_BYTES:  # or the rest would silently stay unfilled
            raise ValueError(f"a chunk holds up to {MAX_BYTES} bytes, got {size}")
        address = draw.to_bytes(8, "big") + chunk.to_bytes(4, "big") + bytes(4)
        Cipher(algorithms.AES(self._key), modes.CTR(address)).encryptor().update_into(_ZEROS[:size], out)

    def read(self, size: int, draw: int, chunk: int) -> bytearray:
        """The chunk's first `size` bytes."""
        out = bytearray(size + SPARE)
        self.fill(out, size, draw, chunk)
        del out[size:]
        return out

    def subkey(self, purpose: str) -> bytes:
        """A separate 32-byte key for another cipher; this stream's key cannot be derived from it."""
        return _hash(f"hoarfrost subkey {purpose} ".encode() + self._key)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise NotPrivate(
            "a keystream cannot be copied or pickled: the copy would repeat the same noise, and noise "
            "that is used twice can be subtracted. Leave it out of the copy, and create a new one there"
        )


def _hash(message: bytes) -> bytes:
    return hashlib.sha256(message).digest()
