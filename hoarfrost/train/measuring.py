"""What a recipe measures on the way, and the one file that it is written to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from hoarfrost.budget import Statement
from hoarfrost.data import Splits
from hoarfrost.errors import InvalidValue
from hoarfrost.measure import Measurement, Outside
from hoarfrost.models import outputs_of
from hoarfrost.recipes import schema
from hoarfrost.recipes.losses import Loss
from hoarfrost.recipes.schema import Recipe
from hoarfrost.run import Private
from hoarfrost.train.folder import RunFolder

FILE = "not-private/measure.jsonl"
NOT_COVERED = f"not covered: {FILE}, which was measured on the training data without noise and must not be released"


def measurements(recipe: Recipe, splits: Splits, loss: Loss, private: Private) -> tuple[Measurement, ...]:
    """What the recipe wants to be measured."""
    outside = Outside(
        private.model,
        splits.train,
        lambda model, batch: loss.of_each(outputs_of(model, batch[0]), batch[1]),
        collate=getattr(splits.train, "collate", None),
    )
    found: list[Measurement] = []
    for number, wanted in enumerate(recipe.measure or ()):
        if splits.people is not None and "outside" in wanted._component.given:
            raise InvalidValue(
                f"measure: {wanted.kind} computes gradients of single rows, and this recipe trains on people, who may "
                "have several. Leave it out"
            )
        found.append(schema.build(wanted, f"measure[{number}]", outside=outside))
    return tuple(found)


def begin(found: Sequence[Measurement], private: Private, folder: RunFolder) -> None:
    """Has the run measured, into the run folder.

    Guarantees:
        What is measured goes below ``not-private/`` and nowhere else.
    """
    for each in found:
        each.write = partial(folder.append, FILE)
        private.observe(each)


def with_note(statement: Statement, found: Sequence[Measurement]) -> Statement:
    """The statement, which says that what was measured is not covered."""
    return replace(statement, notes=(*statement.notes, NOT_COVERED)) if found else statement
