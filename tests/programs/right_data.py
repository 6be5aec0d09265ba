"""Right programs: data sets made of others, and collate functions that leave each example its own."""

from __future__ import annotations

import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset, random_split

from tests.programs.corpus import Rows, right
from tests.programs.examples import vectors
from tests.programs.loops import fit, two_layers
from tests.programs.running import MakePrivate
from tests.programs.wrong_data import Examples, Flipped


@right(vectors)
def a_part_of_a_data_set_in_another_order(rows: Rows, make_private: MakePrivate) -> None:
    everything = Examples([*rows, *vectors(3)])
    order = list(reversed(range(len(rows))))
    fit(two_layers(), DataLoader(Flipped(Subset(everything, order)), batch_size=4), make_private)


@right(vectors)
def two_data_sets_one_after_the_other(rows: Rows, make_private: MakePrivate) -> None:
    half = len(rows) // 2
    parts = [Examples(part) for part in (rows[:half], rows[half:]) if part]
    fit(two_layers(), ConcatDataset([Flipped(part) for part in parts]), make_private)


@right(vectors)
def the_parts_of_a_split_put_together_again(rows: Rows, make_private: MakePrivate) -> None:
    half = len(rows) // 2
    fit(two_layers(), ConcatDataset(random_split(Examples(rows), [half, len(rows) - half])), make_private)


@right(vectors)
def rows_of_a_tensor_in_two_halves(rows: Rows, make_private: MakePrivate) -> None:
    x, y = torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])
    parts = [slice(0, 1), slice(1, None)] if len(rows) > 1 else [slice(None)]
    fit(two_layers(), ConcatDataset([TensorDataset(x[part], y[part]) for part in parts]), make_private)


@right(vectors, oracle=False)
def repeated_examples_that_are_one_person_s(rows: Rows, make_private: MakePrivate) -> None:
    indices = [*range(len(rows)), 0, 0, 0]
    fit(two_layers(), Subset(rows, indices), make_private, person=indices, per_person=2)


def equal_labels() -> Rows:
    return [(x, torch.tensor(0)) for x, _ in vectors()]


@right(equal_labels)
def examples_with_one_label_object(rows: Rows, make_private: MakePrivate) -> None:
    label = torch.tensor(0)
    fit(two_layers(), [(x, label) for x, _ in rows], make_private)
