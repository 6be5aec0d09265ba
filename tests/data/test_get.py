"""Data sets from raw files or the web into the cache: the right ones, whole, and nothing else."""

from __future__ import annotations

import gzip
import json
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from hoarfrost import data
from hoarfrost.data import cache
from hoarfrost.data.catalog import CATALOG, checksum
from hoarfrost.data.cifar import ARCHIVE, FOLDER
from hoarfrost.errors import HoarfrostError, InvalidValue
from tests.support import raw_datasets as raw


@pytest.fixture(autouse=True)
def _tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data sets are tiny, and the cache is empty."""
    for name in raw.SIZES:
        monkeypatch.setitem(CATALOG, name, raw.tiny(name))
    monkeypatch.setenv("HOARFROST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def files(name: str, seed: int = 0) -> dict[str, bytes]:
    return raw.batches(raw.parts(name, seed)) if name == "cifar10" else raw.idx_files(raw.parts(name, seed))


def there() -> list[str]:
    folder = cache.folder()
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def check(name: str, splits: data.Splits) -> None:
    made = raw.parts(name)
    for part, got in (("train", splits.train), ("test", splits.test)):
        assert torch.equal(got.tensors[0], made[f"x_{part}"].float() / 255)
        assert torch.equal(got.tensors[1], made[f"y_{part}"])
    assert splits.classes == 10


# From raw files at hand.


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", raw.SIZES)
def test_raw_files_become_the_data_set_that_is_loaded(tmp_path: Path, name: str, zipped: bool) -> None:
    zipped = zipped and name != "cifar10"
    path = data.fetch(name, raw.written(tmp_path / "raw", files(name), zipped))
    assert path == tmp_path / "cache" / f"{name}.safetensors"
    assert there() == [path.name]
    check(name, data.load(name))


PACKED: dict[str, Callable[[Path, dict[str, bytes]], Path]] = {
    "a folder in the folder": lambda here, rows: raw.written(here / FOLDER, rows).parent,
    "the archive": lambda here, rows: here / ARCHIVE,
    "the archive's folder": lambda here, rows: here,
    "an archive that is not zipped": lambda here, rows: here / "plain.tar",
    "an archive of the newest kind": lambda here, rows: here / "pax.tar",
}


@pytest.mark.parametrize("packed", PACKED)
def test_cifar10_may_be_packed_as_it_comes(tmp_path: Path, packed: str) -> None:
    rows = files("cifar10")
    (tmp_path / ARCHIVE).write_bytes(raw.archive(raw.parts("cifar10")))
    (tmp_path / "plain.tar").write_bytes(raw.tar({f"./{name}": content for name, content in rows.items()}))
    long = {"é" * 120: b"", **{f"{FOLDER}/{name}": content for name, content in rows.items()}}
    (tmp_path / "pax.tar").write_bytes(raw.tar(long, tarfile.PAX_FORMAT))
    data.fetch("cifar10", PACKED[packed](tmp_path, rows))
    check("cifar10", data.load("cifar10"))


def test_the_file_says_what_it_is_and_others_may_read_it(tmp_path: Path) -> None:
    path = data.fetch("mnist", raw.written(tmp_path / "raw", files("mnist")))
    with safe_open(path, "pt") as file:
        facts = json.loads(file.metadata()["hoarfrost-data"])
        assert (facts["name"], facts["train-sha256"]) == ("mnist", CATALOG["mnist"].train_sha256)
        assert file.get_tensor("x_train").dtype == torch.uint8
    (tmp_path / "any").touch()
    assert path.stat().st_mode == (tmp_path / "any").stat().st_mode


def test_the_order_of_examples_does_not_matter_but_nothing_else_is_overlooked() -> None:
    made = raw.parts("cifar10")
    x, y = made["x_train"], made["y_train"]
    order = torch.randperm(len(y))
    assert checksum(x[order], y[order]) == checksum(x, y)
    pixel, label = x.clone(), y.clone()
    pixel[3, 0, 1, 1] ^= 1
    label[3] += 1
    assert len({checksum(*each) for each in ((x, y), (pixel, y), (x, label), (x[1:], y[1:]))}) == 4


def test_another_data_set_of_the_same_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="not the images and labels of mnist: the checksum of train is "):
        data.fetch("mnist", raw.written(tmp_path / "raw", files("mnist", seed=1)))
    assert there() == []


# The cache.


@pytest.mark.parametrize("name", raw.SIZES)
def test_what_is_not_there_is_told_with_the_command_that_brings_it(name: str) -> None:
    with pytest.raises(InvalidValue, match=f"run `hoarfrost data get {name}`$"):
        data.load(name)


def test_the_cache_is_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "/fast")
    assert cache.folder() == tmp_path / "cache"
    monkeypatch.delenv("HOARFROST_CACHE")
    assert cache.folder() == Path("/fast/hoarfrost")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.folder() == Path("/home/me/.cache/hoarfrost")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.folder() == Path("/home/me/.cache/hoarfrost")


def test_a_damaged_file_is_noticed_and_replaced(tmp_path: Path) -> None:
    source = raw.written(tmp_path / "raw", files("mnist"))
    path = data.fetch("mnist", source)
    whole = path.read_bytes()
    for damaged in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:-8], b""):
        path.write_bytes(damaged)
        with pytest.raises(InvalidValue, match=r"mnist\.safetensors"):
            data.load("mnist")
        data.fetch("mnist", source)
        assert path.read_bytes() == whole


def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    path = data.fetch("mnist", raw.written(tmp_path / "raw", files("mnist")))
    before = path.stat().st_mtime_ns
    assert data.fetch("mnist", tmp_path / "absent") == path
    assert path.stat().st_mtime_ns == before


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(HoarfrostError, match=r"cannot write .*: No space left on device"):
        data.fetch("mnist", raw.written(tmp_path / "raw", files("mnist")))
    assert there() == []


# Files that are not what they should be.


IMAGES = "train-images-idx3-ubyte"
WRONG: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut": (lambda whole: whole[:-1], "it ends too early"),
    "empty": (lambda whole: b"", "it ends too early"),
    "a byte too many": (lambda whole: whole + b"\0", "there are bytes after the end of its data"),
    "another magic": (lambda whole: b"\0\0\x0d" + whole[3:], "does not start with the header of an IDX file"),
    "more than there is": (
        lambda whole: whole[:4] + b"\xff" * 4 + whole[8:],
        "does not start with the header of an IDX file",
    ),
    "a bomb": (lambda whole: gzip.compress(whole + bytes(1 << 24)), "there are bytes after the end of its data"),
    "cut and zipped": (lambda whole: gzip.compress(whole)[:-20], "cannot read .* as a data file"),
    "not zipped after all": (lambda whole: b"\x1f\x8b" + whole, "cannot read .* as a data file"),
    "far too large": (lambda whole: whole + bytes(1 << 21), "it is larger than the data set"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_idx_file_that_is_wrong_is_refused_by_name(tmp_path: Path, wrong: str) -> None:
    change, message = WRONG[wrong]
    made = files("mnist")
    with pytest.raises(InvalidValue, match=message) as refusal:
        data.fetch("mnist", raw.written(tmp_path / "raw", {**made, IMAGES: change(made[IMAGES])}))
    assert IMAGES in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert there() == []


Members = dict[str, bytes]
BAD_ARCHIVES: dict[str, tuple[Callable[[Members], bytes], str]] = {
    "no archive": (lambda rows: b"x" * 2000, "it is not a tar file"),
    "empty": (lambda rows: raw.tar({}), "it does not contain data_batch_1.bin, "),
    "no test batch": (lambda rows: raw.tar(dict(list(rows.items())[:-1])), "it does not contain test_batch.bin"),
    "a path upwards": (lambda rows: raw.tar({"../../evil": b"", **rows}), "'../../evil' points out of the archive"),
    "a path from the root": (lambda rows: raw.tar({"/evil": b"", **rows}), "'/evil' points out of the archive"),
    "a batch too short": (lambda rows: raw.tar({**rows, "test_batch.bin": b"1"}), "test_batch.bin has the wrong size"),
    "a batch twice": (
        lambda rows: raw.tar({**rows, f"{FOLDER}/test_batch.bin": rows["test_batch.bin"]}),
        "or occurs twice",
    ),
    "a size that lies": (
        lambda rows: raw.tar({"much": b"1" * 0o1234, **rows}).replace(b"00000001234\0", b"77777777777\0"),
        "its content is larger than the data set",
    ),
    "a bomb": (
        lambda rows: gzip.compress(raw.tar({"zeros": bytes(1 << 24), **rows})),
        "its content is larger than the data set",
    ),
    "too many members": (lambda rows: raw.tar({str(n): b"" for n in range(200)}), "it has more than 100 members"),
    "cut": (lambda rows: raw.tar(rows)[:2000], "it ends too early"),
}


@pytest.mark.parametrize("bad", BAD_ARCHIVES)
def test_a_bad_archive_is_refused(tmp_path: Path, bad: str) -> None:
    make, message = BAD_ARCHIVES[bad]
    (tmp_path / "bad.tar").write_bytes(make(files("cifar10")))
    with pytest.raises(InvalidValue, match=message):
        data.fetch("cifar10", tmp_path / "bad.tar")
    assert there() == []
    assert [path.name for path in tmp_path.iterdir()] == ["bad.tar"]


MISSING: dict[str, tuple[str, str, str]] = {
    "a file for a folder": ("mnist", "file", "is not a folder; give the folder with train-images-idx3-ubyte.gz, "),
    "nothing at all": ("mnist", "absent", "is not a folder"),
    "an empty folder": ("mnist", "empty", "neither train-images-idx3-ubyte nor train-images-idx3-ubyte.gz in"),
    "no archive": ("cifar10", "absent", "no data file at"),
    "no batches": ("cifar10", "empty", "neither data_batch_1.bin nor cifar-10-binary.tar.gz in"),
    "an unknown name": (
        "imagenet",
        "empty",
        "no data set named 'imagenet'; available: mnist, ",
    ),
}


@pytest.mark.parametrize("missing", MISSING)
def test_what_is_missing_is_named(tmp_path: Path, missing: str) -> None:
    name, path, message = MISSING[missing]
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidValue, match=message):
        data.fetch(name, tmp_path / path)


# From the web.


@contextmanager
def served(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


class Folder(SimpleHTTPRequestHandler):
    """Serves files, without a word."""

    def log_message(self, *_: object) -> None:
        pass


class Answer(BaseHTTPRequestHandler):
    """Always the same answer, of which a header may lie."""

    def __init__(self, *arguments: object, content: bytes, length: int | None) -> None:
        self.content, self.length = content, length
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self.send_response(200)
        if self.length is not None:
            self.send_header("Content-Length", str(self.length))
        self.end_headers()
        self.wfile.write(self.content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Path:
    """A folder with the raw files of tiny data sets, as their mirrors have them."""
    raw.written(tmp_path / "web" / "mnist", files("mnist"), zipped=True)
    return raw.written(tmp_path / "web", {ARCHIVE: raw.archive(raw.parts("cifar10"))})


@pytest.mark.parametrize(("name", "below"), [("mnist", "mnist/"), ("cifar10", "")])
def test_a_data_set_is_downloaded_with_progress(
    web: Path, monkeypatch: pytest.MonkeyPatch, name: str, below: str
) -> None:
    told: list[tuple[str, int, int | None]] = []
    with served(partial(Folder, directory=str(web))) as mirror:
        monkeypatch.setitem(CATALOG, name, raw.tiny(name, (mirror + below,)))
        data.fetch(name, progress=lambda *each: told.append(each))
    check(name, data.load(name))
    sizes = {file: (web / below / file).stat().st_size for file in CATALOG[name].raw.files}
    assert list(dict.fromkeys(file for file, _, _ in told)) == list(sizes)
    for file, size in sizes.items():
        assert (file, 0, size) in told
        assert (file, size, size) in told


BAD_MIRRORS: dict[str, tuple[bytes, int | None, str]] = {
    "a page instead": (b"<html>", 6, "does not start with the header of an IDX file|ends too early"),
    "without an end": (bytes(1 << 21), None, "larger than the data set"),
    "more than can be": (bytes(1 << 17), 1 << 40, "larger than the data set"),
    "less than announced": (b"123", 400, "the connection was lost"),
}


@pytest.mark.parametrize("bad", BAD_MIRRORS)
def test_a_bad_mirror_is_named_and_the_next_one_is_tried(web: Path, monkeypatch: pytest.MonkeyPatch, bad: str) -> None:
    content, length, message = BAD_MIRRORS[bad]
    with (
        served(partial(Answer, content=content, length=length)) as first,
        served(partial(Folder, directory=str(web))) as second,
    ):
        monkeypatch.setitem(CATALOG, "mnist", raw.tiny("mnist", (first,)))
        with pytest.raises(InvalidValue, match=message) as refusal:
            data.fetch("mnist")
        assert first in str(refusal.value)
        assert there() == []
        monkeypatch.setitem(CATALOG, "mnist", raw.tiny("mnist", (first, f"{second}absent/", f"{second}mnist/")))
        data.fetch("mnist")
    check("mnist", data.load("mnist"))


def test_without_a_network_there_is_one_line_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(Folder) as gone:
        pass
    monkeypatch.setitem(CATALOG, "mnist", raw.tiny("mnist", (gone, gone)))
    with pytest.raises(InvalidValue) as refusal:
        data.fetch("mnist")
    assert str(refusal.value) == (
        f"cannot download mnist from any of its 2 mirrors; the first says: {gone}train-images-idx3-ubyte.gz: "
        "Connection refused; if you have the files, run `hoarfrost data get mnist --from FOLDER`"
    )


def test_a_file_that_is_not_there_is_told_by_its_number(web: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(partial(Folder, directory=str(web))) as mirror:
        monkeypatch.setitem(CATALOG, "mnist", raw.tiny("mnist", (f"{mirror}absent/",)))
        with pytest.raises(InvalidValue, match=r"absent/train-images-idx3-ubyte\.gz: HTTP 404 File not found"):
            data.fetch("mnist")
