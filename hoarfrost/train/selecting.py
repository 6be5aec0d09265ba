"""select(): a recipe's DP-FROST alone; what it chose can be trained later, as often as wanted, at no further cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from hoarfrost.budget import Ledger, Statement
from hoarfrost.errors import InvalidValue
from hoarfrost.freezing.frost import frost_in
from hoarfrost.freezing.report import Selection
from hoarfrost.recipes.schema import Recipe
from hoarfrost.train.prepare import device_for, prepare, surroundings
from hoarfrost.train.resuming import attach


@dataclass(frozen=True)
class Selected:
    """What was chosen, what that cost, and the file that says it."""

    selection: Selection
    statement: Statement
    path: Path


def select(
    recipe: Recipe,
    *,
    out: str | Path = "selection.json",
    device: str | torch.device | None = None,
    ledger: Ledger | str | Path | None = None,
    on_round: Callable[[int, int], None] = lambda done, of: None,
) -> Selected:
    """Makes the selection of a recipe with ``freeze.kind = "frost"``, and writes it. Nothing is trained.

    Args:
        out: the file, which must not exist.
        device: by default the GPU if there is one.
        ledger: the data set's; by default one beside the file, which has ``.ledger.jsonl`` for ``.json``.
        on_round: called after each round with its number and how many there are.

    Guarantees:
        Each round is in the ledger before the data is looked at. The file has what was released, and what that cost.
    """
    path = Path(out).expanduser()
    own = path.with_suffix(".ledger.jsonl")
    for file in (path, *([own] if ledger is None else [])):
        if file.exists():
            raise InvalidValue(f"{file} is there already: choose another --out, or remove it first")
    with surroundings(recipe):
        run = prepare(recipe, device_for(device))
        private, frost = run.private, frost_in(run.private.freezer)
        if frost is None:
            raise InvalidValue(f'{recipe.name} selects nothing: it needs freeze.kind = "frost"')
        if frost.selections > 1:
            raise InvalidValue("what is chosen anew during training is no selection of its own: set selections = 1")
        path.parent.mkdir(parents=True, exist_ok=True)
        books = ledger if ledger is not None else Ledger.create(
            own, epsilon=None, delta=private.delta, accountant=private.accountant, seeded=private.seeded,
            unit=private.plan.unit,
        )  # fmt: skip
        attach(run, books if isinstance(books, Ledger) else Ledger(books), what=f"selecting for {recipe.name}")
        try:
            rounds = iter(range(1, len(private.plan.releases) + 1))
            private.prepare(after_each=lambda: on_round(next(rounds), len(private.plan.releases)))
        finally:
            private.account.close()
        found = frost.selection
        assert found is not None  # it has been prepared
        found.save(path, private.account.snapshot())
        return Selected(found, private.statement(), path)
