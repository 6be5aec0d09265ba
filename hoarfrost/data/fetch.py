"""Fetches a data set into the cache, from the web or from raw files on this machine."""

import tempfile
from pathlib import Path

from torch import Tensor

from hoarfrost.data import cache
from hoarfrost.data.catalog import CATALOG, CatalogEntry
from hoarfrost.data.download import Progress, download
from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import line, shown, shown_path


def _silent(name: str, done: int, total: int | None) -> None:
    pass


def fetch(name: str, source: str | Path | None = None, progress: Progress = _silent) -> Path:
    """Puts a data set into the cache, unless it is there, and returns the path of its file.

    Args:
        source: a folder or an archive with the raw files; by default they are downloaded.
        progress: called for every piece that was downloaded.

    Guarantees:
        The cached content is compared with a checksum. Raw files run no code, are not extracted to the disk, and are
        never read beyond the size of the data set.
    """
    if name not in CATALOG:
        raise InvalidValue(f"no data set named {shown(name)}; available: {', '.join(CATALOG)}")
    entry = CATALOG[name]
    try:
        cache.read(entry)
    except InvalidValue:  # not there, or damaged
        parts = _downloaded(entry, progress) if source is None else _checked(entry, Path(source))
        return cache.store(entry, parts)
    return cache.path_of(entry)


def _checked(entry: CatalogEntry, path: Path) -> dict[str, Tensor]:
    parts = entry.raw.read(path)
    try:
        entry.check(parts)
    except InvalidValue as error:
        raise InvalidValue(line(f"{shown_path(path)}: {error}")) from error
    return parts


def _downloaded(entry: CatalogEntry, progress: Progress) -> dict[str, Tensor]:
    """From the first mirror whose files pass the checksum."""
    reasons = []
    for mirror in entry.mirrors:
        with tempfile.TemporaryDirectory(prefix="hoarfrost-") as folder:
            try:
                download(mirror, entry.raw.files, Path(folder), progress)
                return _checked(entry, Path(folder))
            except InvalidValue as error:
                reasons.append(str(error).replace(folder, mirror.rstrip("/")))
    raise InvalidValue(
        f"cannot download {entry.name} from any of its {len(reasons)} mirrors; the first says: {reasons[0]}; "
        f"if you have the files, run `hoarfrost data get {entry.name} --from FOLDER`"
    )
