"""Right programs: data sets made of others, and collate functions that leave each example its own."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset, default_collate, random_split

from tests.programs.collating import Words, readable, told_of_the_loss
from tests.programs.corpus import Rows, right
from tests.programs.examples import texts_of_any_length, vectors
from tests.programs.loops import fit, padded, two_layers
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


# Collate functions.


@right(texts_of_any_length)
def padding_that_the_model_masks(rows: Rows, make_private: MakePrivate) -> None:
    told_of_the_loss(Words(masked=True), rows, padded, make_private)


@right(texts_of_any_length)
def padding_that_the_model_masks_in_two_views(rows: Rows, make_private: MakePrivate) -> None:
    told_of_the_loss(Words(masked=True), rows, padded, make_private, views=2)


@right(texts_of_any_length, oracle=False)
def padding_that_the_model_masks_of_people_s_texts(rows: Rows, make_private: MakePrivate) -> None:
    people = [k // 2 for k in range(len(rows))]
    told_of_the_loss(Words(masked=True), rows, padded, make_private, person=people, per_person=2)


def noisy(rows: list[Any]) -> tuple[Tensor, Tensor]:
    """Augmentation of each example, with numbers of Python's."""
    return torch.stack([x + random.random() for x, _ in rows]), torch.stack([y for _, y in rows])


@right(vectors, oracle=False, random=True)
def augmentation_while_collating(rows: Rows, make_private: MakePrivate) -> None:
    random.seed(1)
    told_of_the_loss(two_layers(), rows, noisy, make_private)


def turned(rows: list[Any]) -> tuple[Tensor, Tensor]:
    x, y = default_collate(rows)
    return torch.where(torch.rand(len(x), 1) < 0.5, x, x.flip(-1)), y


@right(vectors, oracle=False, random=True)
def a_coin_for_each_example_while_collating(rows: Rows, make_private: MakePrivate) -> None:
    told_of_the_loss(two_layers(), rows, turned, make_private)


def longest_first(rows: list[Any]) -> tuple[Tensor, Tensor]:
    return padded(sorted(rows, key=lambda row: -len(row[0])))


@right(texts_of_any_length)
def texts_sorted_by_their_length(rows: Rows, make_private: MakePrivate) -> None:
    told_of_the_loss(Words(masked=True), rows, longest_first, make_private)


@right(vectors, oracle=False)
def unreadable_examples_are_dropped(rows: Rows, make_private: MakePrivate) -> None:
    """One that drops itself contributes nothing, and changes nothing for others."""
    fit(two_layers(), DataLoader(rows, batch_size=4, collate_fn=readable), make_private)


@right(vectors, oracle=False)
def unreadable_examples_are_dropped_in_chunks(rows: Rows, make_private: MakePrivate) -> None:
    data = DataLoader([*rows, *vectors(3)[1:]], batch_size=4, collate_fn=readable)
    fit(two_layers(), data, make_private, max_physical_batch=6)


@right(vectors, oracle=False)
def unreadable_examples_are_dropped_and_the_loss_is_told(rows: Rows, make_private: MakePrivate) -> None:
    told_of_the_loss(two_layers(), rows, readable, make_private)


@right(vectors, oracle=False)
def rows_without_a_label_are_left_out_by_the_loop(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x[y != 1]), y[y != 1]).backward()
        optimizer.step()


@right(vectors)
def lists_of_examples_that_the_loop_stacks(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    data = DataLoader(rows, batch_size=4, collate_fn=lambda batch: tuple(zip(*batch, strict=True)))
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), data)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(torch.stack(x)), torch.as_tensor(y)).backward()
        optimizer.step()
