"""Finished rows in a JSON file, written as they come: what is there is not computed again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hoarfrost.files import replace_file

RESULTS = Path(__file__).parents[1] / "results" / "measure"
FIGURES = Path("runs-measure") / "not-private"


class Rows:
    """The rows of one script. A quick run has a file of its own, so that it never stands for a whole one."""

    def __init__(self, name: str, *, quick: bool = False, folder: Path = RESULTS) -> None:
        self.path = (FIGURES if quick else folder) / f"{name}.json"

    def __call__(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.path.read_text()) if self.path.exists() else []
        return found

    def once(self, key: Mapping[str, Any], compute: Callable[[], Mapping[str, Any]]) -> None:
        """Adds the row of this key, if it is not there yet."""
        if any(all(row.get(name) == value for name, value in key.items()) for row in self()):
            return
        row = {**key, **compute()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = "[\n" + ",\n".join(json.dumps(each) for each in [*self(), row]) + "\n]\n"
        replace_file(self.path, lambda draft: draft.write_text(text))
        print(", ".join(f"{name} {value}" for name, value in key.items()), flush=True)


def figures() -> Path:
    """Where figures go: below a folder that git ignores."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    return FIGURES
