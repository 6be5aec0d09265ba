"""A data set from its home on the web, or from raw files at hand, into the cache."""

import tempfile
from pathlib import Path

from torch import Tensor

from hoarfrost.data import cache
from hoarfrost.data.download import Progress, download
from hoarfrost.data.known import KNOWN, Known
from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import line, shown, shown_path


def _silent(name: str, done: int, total: int | None) -> None:
    pass


def fetch(name: str, source: str | Path | None = None, progress: Progress = _silent) -> Path:
    """Brings a data set into the cache, unless it is there, and hands back the path of its file.

    Args:
        source: a folder or an archive with the raw files; by default they are downloaded.
        progress: told of every piece that was downloaded.

    Guarantees:
        What arrives in the cache is the data set, to the last pixel: its content is compared with a checksum. Raw files
        run nothing, are not extracted, and are never read further than the data set is long.
    """
    if name not in KNOWN:
        raise InvalidValue(f"there is no data set {shown(name)} to fetch; there are {', '.join(KNOWN)}")
    known = KNOWN[name]
    try:
        cache.read(known)
    except InvalidValue:  # not there, or not what it should be
        parts = _downloaded(known, progress) if source is None else _checked(known, Path(source))
        return cache.store(known, parts)
    return cache.place(known)


def _checked(known: Known, path: Path) -> dict[str, Tensor]:
    parts = known.raw.read(path)
    try:
        known.check(parts)
    except InvalidValue as error:
        raise InvalidValue(line(f"{shown_path(path)}: {error}")) from error
    return parts


def _downloaded(known: Known, progress: Progress) -> dict[str, Tensor]:
    """From the first home that has it, whole and right."""
    reasons = []
    for home in known.homes:
        with tempfile.TemporaryDirectory(prefix="hoarfrost-") as folder:
            try:
                download(home, known.raw.files, Path(folder), progress)
                return _checked(known, Path(folder))
            except InvalidValue as error:
                reasons.append(str(error).replace(folder, home.rstrip("/")))
    raise InvalidValue(
        f"cannot download {known.name} from any of {len(reasons)} places; at the first: {reasons[0]}; "
        f"if you have its files, `hoarfrost data get {known.name} --from FOLDER` takes them"
    )
