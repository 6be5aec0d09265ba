"""Hostile files, each under a name that says what it is, and the command line that meets it.

A row of `CORPUS` is a name, a function that writes the file, and a function that makes the command line. Anything that
reads files joins by adding rows. ``python -m tests.hostile.corpus FOLDER`` writes all of them, to be looked at.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.hostile import archives, checkpoints, downloads, ledgers, models, recipes, tables, tensors

Write = Callable[[Path], None]
Command = Callable[[Path, Path], list[str]]


@dataclass(frozen=True)
class Hostile:
    """How a file is written, and the arguments of `hoarfrost` that have it read: from its path and the run folder's."""

    write: Write
    command: Command


def as_recipe(file: Path, out: Path) -> list[str]:
    """The file is the recipe."""
    return ["train", str(file), "--out", str(out)]


def as_data(file: Path, out: Path) -> list[str]:
    """The file is named by a recipe beside it, which is as it should be."""
    recipe = file.with_name("reads-it.toml")
    recipe.write_text(recipes.changed(data=f'path = "{file.name}"'))
    return ["train", str(recipe), "--out", str(out)]


def as_table(file: Path, out: Path) -> list[str]:
    """The file is a table, by rules that are as they should be."""
    recipe = file.with_name("reads-it.toml")
    recipe.write_text(recipes.changed(data=f'path = "{file.name}"\n{tables.RULES}'))
    return ["train", str(recipe), "--out", str(out)]


def as_model(file: Path, out: Path) -> list[str]:
    """The file is the folder of a pretrained model."""
    return ["train", str(models.write_recipe(file.parent, file.name)), "--out", str(out)]


def as_tokens(file: Path, out: Path) -> list[str]:
    """The file is data for a language model."""
    return [*as_data(file, out), "--set", 'model={name = "encoder"}']


def as_checkpoint(file: Path, out: Path) -> list[str]:
    """The file is the only checkpoint of a run folder."""
    run = file.with_name("run")
    (run / "checkpoints").mkdir(parents=True)
    (run / "recipe.toml").write_text(recipes.changed())
    file.rename(run / "checkpoints" / "step-00000001.safetensors")
    return ["train", "--resume", str(run)]


def as_ledger_shown(file: Path, out: Path) -> list[str]:
    """The file is a ledger to look at."""
    return ["ledger", "show", str(file)]


def as_ledger_used(file: Path, out: Path) -> list[str]:
    """The file is a ledger to train with."""
    return ["train", "digits", "--out", str(out), "--ledger", str(file)]


def as_idx(file: Path, out: Path) -> list[str]:
    """The file holds MNIST's images."""
    file.with_name("raw").mkdir()
    file.rename(file.with_name("raw") / "train-images-idx3-ubyte")
    return ["data", "get", "mnist", "--from", str(file.with_name("raw"))]


def as_cifar(file: Path, out: Path) -> list[str]:
    """The file is the archive with CIFAR-10."""
    return ["data", "get", "cifar10", "--from", str(file)]


CORPUS: dict[str, Hostile] = {
    **{name: Hostile(write, as_recipe) for name, write in recipes.FILES.items()},
    **{name: Hostile(write, as_data) for name, write in {**archives.FILES, **tensors.FILES}.items()},
    **{name: Hostile(write, as_table) for name, write in tables.FILES.items()},
    **{name: Hostile(write, as_model) for name, write in models.FILES.items()},
    **{name: Hostile(write, as_tokens) for name, write in tensors.TOKENS.items()},
    **{name: Hostile(write, as_checkpoint) for name, write in checkpoints.FILES.items()},
    **{name: Hostile(write, as_ledger_shown) for name, write in ledgers.FILES.items()},
    **{f"used-{name}": Hostile(write, as_ledger_used) for name, write in ledgers.FILES.items()},
    **{name: Hostile(write, as_idx) for name, write in downloads.IDX.items()},
    **{name: Hostile(write, as_cifar) for name, write in downloads.CIFAR.items()},
}


def write_all(folder: Path) -> None:
    """Each file in a folder of its own, for some bring company."""
    for name, hostile in CORPUS.items():
        (folder / name).mkdir(parents=True)
        hostile.write(folder / name / name)


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
