"""Data sets by name, and a user's own from a file."""

from collections.abc import Callable
from functools import partial

from hoarfrost.data import cache
from hoarfrost.data.augment import Augmented as Augmented
from hoarfrost.data.digits import digits as digits
from hoarfrost.data.fetch import fetch as fetch
from hoarfrost.data.files import from_file as from_file
from hoarfrost.data.known import KNOWN
from hoarfrost.data.splits import Splits as Splits
from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import shown

NAMED: dict[str, Callable[[], Splits]] = {
    "digits": digits,
    **{name: partial(cache.load, name) for name in KNOWN},
}


def load(name: str) -> Splits:
    """The data set of that name; all but digits are fetched first, with `fetch` or `hoarfrost data get`.

    >>> load("digits").classes
    10
    """
    if name not in NAMED:
        raise InvalidValue(f"there is no data set named {shown(name)}; known by name: {', '.join(NAMED)}")
    return NAMED[name]()
