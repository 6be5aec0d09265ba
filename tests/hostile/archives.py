"""Archives (.npz) that hold pickles, swell, lie about what is in them, or are broken."""

import io
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.hostile.good import arrays, npy, save_npz
from tests.support import payload

Members = list[tuple[str, bytes]]


def _members(**changes: bytes) -> Members:
    return [(f"{name}.npy", changes.get(name, npy(array))) for name, array in arrays().items()]


def _zipped(members: Members, method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", method, compresslevel=1) as archive:
        warnings.simplefilter("ignore")  # names that occur twice
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


def _archive(members: Members, method: int = zipfile.ZIP_STORED) -> Callable[[Path], None]:
    return lambda file: _write(file, _zipped(members, method))


def _write(file: Path, content: bytes) -> None:
    file.write_bytes(content)


def _array(**changes: npt.NDArray) -> Callable[[Path], None]:
    return lambda file: save_npz(file, **changes)


def _header(text: str, numbers: bytes = b"", *, version: bytes = b"\1\0", length: int | None = None) -> bytes:
    """A member whose header says anything."""
    size = struct.pack("<H" if version == b"\1\0" else "<I", len(text) if length is None else length)
    return b"\x93NUMPY" + version + size + text.encode() + numbers


def _declares(shape: str, numbers: bytes = b"", kind: str = "'<f4'") -> Callable[[Path], None]:
    text = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}\n"
    return _archive(_members(x_train=_header(text, numbers)))


def _runs(file: Path) -> None:
    code = f"open({str(file.with_name(payload.MARKER))!r}, 'w').close()"
    _archive(_members(x_train=_header(f"{{'descr': exec({code!r}), 'fortran_order': False, 'shape': (1,), }}")))(file)


def _objects(name: str) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        holder = np.empty(1, dtype=object)
        holder[0] = payload.acting(file)
        buffer = io.BytesIO()
        np.save(buffer, holder, allow_pickle=True)
        _archive(_members(**{name: buffer.getvalue()}))(file)

    return write


def _pickle_as_member(file: Path) -> None:
    payload.pickled(file)
    _archive(_members(x_train=file.read_bytes()))(file)


def _changed(old: bytes, new: bytes, *, which: int = -1) -> Callable[[Path], None]:
    """A good archive in which some bytes were replaced, at every place or only at the last one."""
    content = _zipped(_members())
    assert old in content
    if which == -1:
        return lambda file: _write(file, content.replace(old, new))
    place = content.rindex(old)
    return lambda file: _write(file, content[:place] + new + content[place + len(old) :])


def _directory(offset: int, value: bytes) -> Callable[[Path], None]:
    """A good archive of which every entry in the directory says something else at a place."""
    content, place = bytearray(_zipped(_members())), 0
    while (place := content.find(b"PK\1\2", place)) >= 0:
        content[place + offset : place + offset + len(value)] = value
        place += 4
    return lambda file: _write(file, bytes(content))


def _crowd(count: int) -> Callable[[Path], None]:
    """The same empty member in the directory over and over: what lists it is longer than what it lists."""
    name = b"crowd"
    local = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 0, 0, 0, 0, len(name), 0) + name
    entry = struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, 0, 0, len(name), 0, 0, 0, 0, 0, 0) + name
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 65535, 65535, count * len(entry), len(local), 0)
    return lambda file: _write(file, local + entry * count + end)


def _swelling(file: Path) -> None:
    """Honest in every way: ninety megabytes of zeros in half a megabyte."""
    x = np.zeros((6, 1_450_000))
    _archive(_members(x_train=npy(x), x_test=npy(x[:2])), zipfile.ZIP_DEFLATED)(file)


def _sparse(file: Path) -> None:
    with open(file, "wb") as opened:
        opened.truncate(1 << 40)


GOOD = _zipped(_members())
ONES = b"\0\0\x80?"

FILES: dict[str, Callable[[Path], None]] = {
    # Pickles.
    "pickle.npz": payload.pickled,
    "torch-save.npz": payload.torch_saved,
    "torch-save-old.npz": payload.torch_saved_the_old_way,
    "pickle-as-member.npz": _pickle_as_member,
    **{f"objects-in-{name}.npz": _objects(name) for name in arrays()},
    "header-is-code.npz": _runs,
    # Bombs.
    "bomb.npz": _swelling,
    "bomb-declared-only.npz": _directory(24, struct.pack("<L", 0xFFFFFFF0)),
    "sparse-terabyte.npz": _sparse,
    "crowded-directory.npz": _crowd(300_000),
    "crowd.npz": _crowd(4_000),
    # Lies.
    "shape-too-large.npz": _declares("(6, 1000)", ONES * 18),
    "shape-too-small.npz": _declares("(6, 1)", ONES * 18),
    "shape-enormous.npz": _declares("(1000000, 1000000, 1000000)", ONES * 18),
    "shape-overflows-to-zero.npz": _declares("(4294967296, 4294967296)"),
    "shape-thousand-digits.npz": _declares(f"({'9' * 1000},)"),
    "shape-negative.npz": _declares("(-6, -3)", ONES * 18),
    "shape-of-nothing.npz": _declares("(6, 0)"),
    "shape-endless-of-nothing.npz": _declares("(4611686018427387904, 0)"),
    "shape-hundred-dimensions.npz": _declares("(6, " + "1, " * 98 + "3)", ONES * 18),
    "shape-a-product.npz": _declares("(6*3,)", ONES * 18),
    "shape-nested.npz": _declares("(" * 1000 + "6" + ")" * 1000, ONES * 18),
    "header-of-brackets.npz": _archive(_members(x_train=_header("[" * 60000))),
    "header-of-spaces.npz": _archive(_members(x_train=_header("{" + " " * 4000 + "'"))),
    "header-of-minuses.npz": _archive(_members(x_train=_header("-" * 4000 + "1"))),
    "header-four-gigabytes.npz": _archive(_members(x_train=_header("{", version=b"\2\0", length=0xFFFFFFFF))),
    "header-beyond-the-end.npz": _archive(_members(x_train=_header("{'descr'", length=4000))),
    "header-unknown-version.npz": _archive(_members(x_train=_header("{}", version=b"\x09\0"))),
    "local-names-differ.npz": _directory(42, struct.pack("<L", 0)),
    "checksum-wrong.npz": _directory(16, b"\1\2\3\4"),
    # Kinds of numbers that are none.
    "type-text.npz": _array(x_train=np.array(["a", "b"])),
    "type-structure.npz": _array(x_train=np.zeros(6, dtype=[("a", "f4"), ("b", "O")])),
    "type-date.npz": _array(x_train=np.zeros(6, dtype="M8[s]")),
    "type-complex.npz": _array(x_train=np.zeros((6, 3), dtype=np.complex64)),
    "type-truth.npz": _array(y_train=np.zeros(6, dtype=bool)),
    "type-big-endian.npz": _array(x_train=np.zeros((6, 3), dtype=">f4")),
    "type-of-a-gigabyte.npz": _declares("(6,)", kind="'|V1000000000'"),
    "type-escape.npz": _declares("(6,)", kind="'\x1b[2J'"),
    # Names.
    "member-twice.npz": _archive([*_members(), ("x_train.npy", npy(np.zeros((6, 3))))]),
    "member-leads-out.npz": _archive([*_members(), ("../../x_train.npy", b"out")]),
    "member-is-absolute.npz": _archive([*_members(), ("/tmp/x_train.npy", b"out")]),
    "member-with-backslash.npz": _archive([*_members(), ("..\\x_train.npy", b"out")]),
    "member-with-escape.npz": _archive([*_members(), ("\x1b[2J.npy", b"out")]),
    "member-with-newline.npz": _archive([*_members(), ("a\nhoarfrost: all is well", b"out")]),
    "member-name-of-64-kib.npz": _archive([*_members(), ("a" * 65000, b"out")]),
    "other-names.npz": _archive([(f"\u200bother{i}.npy", b"") for i in range(1000)]),
    "nothing-but-others.npz": _archive([(f"other{i}.npy", b"") for i in range(1000)]),
    # Broken.
    "empty.npz": lambda file: _write(file, b""),
    "empty-archive.npz": _archive([]),
    "one-array.npz": lambda file: _write(file, npy(np.zeros(3))),
    "cut-in-half.npz": lambda file: _write(file, GOOD[: len(GOOD) // 2]),
    "cut-by-a-byte.npz": lambda file: _write(file, GOOD[:-1]),
    "beginning-cut-off.npz": lambda file: _write(file, GOOD[100:]),
    "encrypted.npz": _directory(8, struct.pack("<H", 1)),
    "patched.npz": _directory(8, struct.pack("<H", 0x20)),
    "lzma.npz": _archive(_members(), zipfile.ZIP_LZMA),
    "bzip2.npz": _archive(_members(), zipfile.ZIP_BZIP2),
    "unknown-compression.npz": _directory(10, struct.pack("<H", 77)),
    "stored-called-deflated.npz": _directory(10, struct.pack("<H", 8)),
    "needs-version-99.npz": _directory(6, struct.pack("<H", 99)),
    "starts-beyond-the-end.npz": _directory(42, struct.pack("<L", 0xFFFFFF)),
    "directory-before-the-start.npz": _changed(GOOD[-10:-6], struct.pack("<L", 0xFFFFFF), which=0),
}  # fmt: skip
