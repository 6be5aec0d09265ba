"""Hoarfrost: differentially private PyTorch training that spends the noise only where it pays."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hoarfrost import audit as audit
    from hoarfrost import budget as budget
    from hoarfrost import clip as clip
    from hoarfrost import freeze as freeze
    from hoarfrost import hf as hf
    from hoarfrost import lightning as lightning
    from hoarfrost import losses as losses
    from hoarfrost import measure as measure
    from hoarfrost import testing as testing
    from hoarfrost.gradients import rules as rules
    from hoarfrost.gradients.compatible import make_compatible as make_compatible
    from hoarfrost.gradients.independence import check_independence as check_independence
    from hoarfrost.gradients.rules import register_rule as register_rule
    from hoarfrost.observers import Observer as Observer
    from hoarfrost.private import make_private as make_private
    from hoarfrost.run import Private as Private

    __version__: str

__all__ = [
    "Observer",
    "Private",
    "audit",
    "budget",
    "check_independence",
    "clip",
    "freeze",
    "hf",
    "lightning",
    "losses",
    "make_compatible",
    "make_private",
    "measure",
    "register_rule",
    "rules",
    "testing",
]

# Torch takes seconds to import: it waits until a name is used, so that the command line can show its help at once.
_WHERE = {
    "Observer": "hoarfrost.observers",
    "Private": "hoarfrost.run",
    "audit": "hoarfrost.audit",
    "budget": "hoarfrost.budget",
    "check_independence": "hoarfrost.gradients.independence",
    "clip": "hoarfrost.clip",
    "freeze": "hoarfrost.freeze",
    "hf": "hoarfrost.hf",
    "lightning": "hoarfrost.lightning",
    "losses": "hoarfrost.losses",
    "make_compatible": "hoarfrost.gradients.compatible",
    "make_private": "hoarfrost.private",
    "measure": "hoarfrost.measure",
    "register_rule": "hoarfrost.gradients.rules",
    "rules": "hoarfrost.gradients.rules",
    "testing": "hoarfrost.testing",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":  # stated in pyproject.toml alone
        from importlib import metadata

        return metadata.version("hoarfrost")
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_WHERE[name])
    rooms = ("audit", "budget", "clip", "freeze", "hf", "lightning", "losses", "measure", "rules", "testing")
    value = globals()[name] = module if name in rooms else getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
