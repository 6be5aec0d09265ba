"""Data sets by name, and your own from a file."""

from collections.abc import Callable
from functools import partial

from hoarfrost.data import cache
from hoarfrost.data.augment import Augmented as Augmented
from hoarfrost.data.catalog import CATALOG
from hoarfrost.data.digits import digits as digits
from hoarfrost.data.fetch import fetch as fetch
from hoarfrost.data.splits import Splits as Splits
from hoarfrost.data.user_files import from_file as from_file
from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import shown

NAMED: dict[str, Callable[[], Splits]] = {
    "digits": digits,
    **{name: partial(cache.load, name) for name in CATALOG},
}


def load(name: str) -> Splits:
    """The data set of that name. Fetch it first with `fetch` or `hoarfrost data get`, unless it is digits.

    >>> load("digits").classes
    10
    """
    if name not in NAMED:
        raise InvalidValue(f"no data set named {shown(name)}; available: {', '.join(NAMED)}")
    return NAMED[name]()
