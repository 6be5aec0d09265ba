"""Data sets by name, and your own from a file: arrays, a table, or texts.

What has a name is registered: a function without arguments that gives `Splits`, with ``@component("data", NAME)``.
"""

from collections.abc import Callable

from hoarfrost.data import cache
from hoarfrost.data.augment import Augmented as Augmented
from hoarfrost.data.catalog import CATALOG, CatalogEntry
from hoarfrost.data.digits import digits as digits
from hoarfrost.data.fetch import fetch as fetch
from hoarfrost.data.splits import Splits as Splits
from hoarfrost.data.splits import batches as batches
from hoarfrost.data.table import from_table as from_table
from hoarfrost.data.text_table import from_texts as from_texts
from hoarfrost.data.text_table import no_texts as no_texts
from hoarfrost.data.texts import Texts as Texts
from hoarfrost.data.texts import Tokenizer as Tokenizer
from hoarfrost.data.user_files import from_file as from_file
from hoarfrost.errors import InvalidValue
from hoarfrost.registry import component, components
from hoarfrost.untrusted import shown


def _fetched(entry: CatalogEntry) -> Callable[[], Splits]:
    def load() -> Splits:
        return cache.load(entry.name)

    size = "x".join(map(str, entry.raw.shape))
    load.__doc__ = (
        f"{entry.raw.train} images {size} to train on and {entry.raw.test} to test on, in {entry.classes} classes; "
        f"`hoarfrost data get {entry.name}` brings them."
    )
    return load


for _entry in CATALOG.values():
    component("data", _entry.name)(_fetched(_entry))


def load(name: str) -> Splits:
    """The data set of that name. Fetch it first with `fetch` or `hoarfrost data get`, unless it is digits.

    >>> load("digits").classes
    10
    """
    named = components("data")
    if name not in named:
        raise InvalidValue(f"no data set named {shown(name)}; available: {', '.join(named)}")
    splits: Splits = named[name].build("data", {})
    return splits
