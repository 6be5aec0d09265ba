"""Training from a recipe: the loop, what is seen of it, and the run folder that it leaves."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hoarfrost.recipes.loading import read_recipe as read_recipe
    from hoarfrost.recipes.loading import recipes as recipes
    from hoarfrost.recipes.loading import to_toml as to_toml
    from hoarfrost.recipes.schema import Recipe as Recipe
    from hoarfrost.train.loading import load_model as load_model
    from hoarfrost.train.progress import Progress as Progress
    from hoarfrost.train.progress import progress_for as progress_for
    from hoarfrost.train.running import RunResult as RunResult
    from hoarfrost.train.running import resume as resume
    from hoarfrost.train.running import run as run

__all__ = [
    "Progress", "Recipe", "RunResult", "load_model", "progress_for", "read_recipe", "recipes", "resume", "run",
    "to_toml",
]  # fmt: skip

# Torch takes seconds to import: it waits until something is trained, so that a wrong recipe is refused at once.
_WHERE = {
    "Progress": "hoarfrost.train.progress",
    "Recipe": "hoarfrost.recipes.schema",
    "RunResult": "hoarfrost.train.running",
    "load_model": "hoarfrost.train.loading",
    "progress_for": "hoarfrost.train.progress",
    "read_recipe": "hoarfrost.recipes.loading",
    "recipes": "hoarfrost.recipes.loading",
    "resume": "hoarfrost.train.running",
    "run": "hoarfrost.train.running",
    "to_toml": "hoarfrost.recipes.loading",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_WHERE[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
