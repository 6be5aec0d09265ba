"""Raw files of MNIST and CIFAR-10 that are cut, swell, lie about their sizes, or point elsewhere."""

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

from tests.support import payload

HEADER = bytes.fromhex("00000803 0000ea60 0000001c 0000001c")  # 60,000 images of 28 x 28 bytes
IMAGES = 60_000 * 28 * 28
BATCH = "cifar-10-batches-bin/data_batch_1.bin"


def _bytes(*content: bytes) -> Callable[[Path], None]:
    return lambda file: _write(file, b"".join(content))


def _zipped(*content: bytes) -> Callable[[Path], None]:
    return lambda file: _write(file, gzip.compress(b"".join(content), 1))


def _bomb(start: bytes, zeros: int, layers: int = 1) -> Callable[[Path], None]:
    """So many zeros after the start, packed, and packed again; made only when they are asked for."""

    def write(file: Path) -> None:
        content = start + bytes(zeros)
        for _ in range(layers):
            content = gzip.compress(content, 1)
        file.write_bytes(content)

    return write


def _write(file: Path, content: bytes) -> None:
    file.write_bytes(content)


def _sparse(size: int) -> Callable[[Path], None]:
    """A file that takes no room on the disk."""

    def write(file: Path) -> None:
        file.write_bytes(HEADER)
        os.truncate(file, size)

    return write


def member(name: str, content: bytes = b"", **fields: object) -> bytes:
    """A member of a tar file, its header changed."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


def _pax(file: Path) -> None:
    """A tar file whose member has a name of megabytes, the way that Python writes it."""
    with tarfile.open(file, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("n" * (8 << 20)), io.BytesIO())


IDX: dict[str, Callable[[Path], None]] = {
    "idx-empty": _bytes(),
    "idx-header-only": _bytes(HEADER),
    "idx-cut-in-the-header": _bytes(HEADER[:9]),
    "idx-cut": _bytes(HEADER, bytes(1000)),
    "idx-a-byte-too-many": _sparse(len(HEADER) + IMAGES + 1),
    "idx-of-doubles": _bytes(b"\0\0\x0e\3", HEADER[4:], bytes(1000)),
    "idx-of-255-dimensions": _bytes(b"\0\0\x08\xff", b"\xff" * 1020),
    "idx-of-2-to-32": _bytes(HEADER[:4], b"\xff" * 12),
    "idx-terabyte": _sparse(1 << 40),
    "idx-pickle": payload.pickled,
    "idx-bomb.gz": _bomb(HEADER, IMAGES + (64 << 20)),
    "idx-bomb-in-a-bomb.gz": _bomb(b"", 64 << 20, layers=2),
    "idx-cut.gz": _bytes(gzip.compress(HEADER + bytes(1000))[:-9]),
    "idx-of-noise.gz": _bytes(b"\x1f\x8b\x08\0", b"\x99" * 1000),
    "idx-many-empty-pieces.gz": _bytes(gzip.compress(b"") * 10_000),
    "idx-page": _bytes(b"<!DOCTYPE html>\n<title>\x1b[2JNot here</title>"),
}

CIFAR: dict[str, Callable[[Path], None]] = {
    "cifar-empty.tar": _bytes(),
    "cifar-pickle.tar": payload.pickled,
    "cifar-nothing-inside.tar": _bytes(bytes(1024)),
    "cifar-upwards.tar.gz": _zipped(member("../../../tmp/evil", b"mine"), bytes(1024)),
    "cifar-upwards-within.tar.gz": _zipped(member(f"a/../../{BATCH}", b"mine"), bytes(1024)),
    "cifar-from-the-root.tar.gz": _zipped(member("/tmp/evil", b"mine"), bytes(1024)),
    "cifar-name-with-escape.tar": _bytes(member("../\x1b[2J\n"), bytes(1024)),
    "cifar-link.tar": _bytes(member(BATCH, type=tarfile.SYMTYPE, linkname="/etc/passwd"), bytes(1024)),
    "cifar-device.tar": _bytes(member(BATCH, type=tarfile.CHRTYPE, devmajor=1, devminor=5), bytes(1024)),
    "cifar-short-batch.tar": _bytes(member(BATCH, b"1234"), bytes(1024)),
    "cifar-cut-batch.tar": _bytes(member(BATCH, size=30_730_000), bytes(1024)),
    "cifar-eight-gigabytes.tar": _bytes(member("much", size=0o77777777777), bytes(1024)),
    "cifar-beyond-octal.tar": _bytes(member("much", size=1 << 62), bytes(1024)),
    "cifar-negative.tar": _bytes(member("less", size=-(1 << 40)), bytes(1024)),
    "cifar-long-name.tar.gz": _pax,
    "cifar-many-members.tar.gz": _zipped(member("nothing") * 10_000),
    "cifar-bomb.tar.gz": _bomb(member("zeros", size=128 << 20), 129 << 20),
    "cifar-terabyte.tar": _sparse(1 << 40),
}
