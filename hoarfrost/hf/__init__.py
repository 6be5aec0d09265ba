"""Hugging Face: `PrivateTrainer`, a `transformers.Trainer` whose step is private, and `add_adapters`.

Needs ``hoarfrost[hf]``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hoarfrost.hf.adapters import add_adapters as add_adapters
    from hoarfrost.hf.trainer import PrivateTrainer as PrivateTrainer

__all__ = ["PrivateTrainer", "add_adapters"]

# transformers takes seconds to import: it waits until a name is used that needs it.
_WHERE = {"PrivateTrainer": "hoarfrost.hf.trainer", "add_adapters": "hoarfrost.hf.adapters"}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_WHERE[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
