"""Data sets by name, and a user's own from a file.

What has a name is registered: a function without arguments that gives `Splits`, with ``@component("data", NAME)``.
"""

from collections.abc import Callable

from hoarfrost.data import cache
from hoarfrost.data.augment import Augmented as Augmented
from hoarfrost.data.digits import digits as digits
from hoarfrost.data.fetch import fetch as fetch
from hoarfrost.data.files import from_file as from_file
from hoarfrost.data.known import KNOWN, Known
from hoarfrost.data.splits import Splits as Splits
from hoarfrost.errors import InvalidValue
from hoarfrost.registry import component, components
from hoarfrost.untrusted import shown


def _fetched(known: Known) -> Callable[[], Splits]:
    def load() -> Splits:
        return cache.load(known.name)

    size = "x".join(map(str, known.raw.shape))
    load.__doc__ = (
        f"{known.raw.train} images {size} to train on and {known.raw.test} to test on, in {known.classes} classes; "
        f"`hoarfrost data get {known.name}` brings them."
    )
    return load


for _known in KNOWN.values():
    component("data", _known.name)(_fetched(_known))


def load(name: str) -> Splits:
    """The data set of that name; all but digits are fetched first, with `fetch` or `hoarfrost data get`.

    >>> load("digits").classes
    10
    """
    named = components("data")
    if name not in named:
        raise InvalidValue(f"there is no data set named {shown(name)}; known by name: {', '.join(named)}")
    splits: Splits = named[name].build("data", {})
    return splits
