"""Another checkout of this library beside the one that is imported, so that both can be timed in one run."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

NAME = "hoarfrost"


def load(folder: Path) -> ModuleType:
    """The package in another checkout. Its modules know each other, and the imported package stays what it was."""
    mine = _take_out()
    sys.path.insert(0, str(folder))
    try:
        other = import_module(NAME)
        if Path(other.__file__ or "").resolve().parent != (folder / NAME).resolve():
            raise SystemExit(f"there is no package {NAME} in {folder}")
        # What a step needs is imported now: later it would be looked for among the modules of the other version.
        for name in ("make_private", "clip", "freeze"):
            getattr(other, name)
        return other
    finally:
        sys.path.remove(str(folder))
        _take_out()
        sys.modules.update(mine)


def _take_out() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name == NAME or name.startswith(f"{NAME}.")]
    return {name: sys.modules.pop(name) for name in names}
