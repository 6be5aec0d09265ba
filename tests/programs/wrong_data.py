"""Wrong programs: data that hold an example twice, or mix examples before the model sees them."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, default_collate

from tests.programs.collating import Words, readable, told_of_the_loss
from tests.programs.corpus import Rows, refused, told, wrong
from tests.programs.examples import texts_of_any_length, vectors
from tests.programs.loops import fit, padded, two_layers
from tests.programs.running import MakePrivate

# One record is several examples.

TWICE = told("more than once", "person=")


@wrong(vectors, TWICE)
def a_subset_with_repeated_indices(rows: Rows, make_private: MakePrivate) -> None:
    """Oversampling of a rare class."""
    fit(two_layers(), Subset(rows, [*range(len(rows)), 0, 0, 0]), make_private)


@wrong(vectors, TWICE)
def a_part_of_a_subset_with_repeated_indices(rows: Rows, make_private: MakePrivate) -> None:
    fit(two_layers(), DataLoader(Subset(Subset(rows, [0, 1, 0, 2, 3]), range(4)), batch_size=2), make_private)


@wrong(vectors, TWICE)
def one_data_set_twice_in_a_row(rows: Rows, make_private: MakePrivate) -> None:
    fit(two_layers(), ConcatDataset([rows, rows]), make_private)


class Flipped(Dataset):
    """Each example of another data set, in another form."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.data[index]
        return x.flip(-1), y


class Examples(Dataset):
    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


@wrong(vectors, TWICE)
def a_data_set_and_its_mirror_image(rows: Rows, make_private: MakePrivate) -> None:
    """`views=2` is the way."""
    data = Examples(rows)
    fit(two_layers(), ConcatDataset([data, Flipped(data)]), make_private)


@wrong(vectors, TWICE)
def a_list_several_times(rows: Rows, make_private: MakePrivate) -> None:
    fit(two_layers(), rows * 4, make_private)


# Collate functions that mix examples.


def cut_mix(rows: list[Any]) -> tuple[Tensor, Tensor]:
    x, y = default_collate(rows)
    return torch.cat([x[:, :3], x[torch.randperm(len(x))][:, 3:]], 1), y


def centred(rows: list[Any]) -> tuple[Tensor, Tensor]:
    x, y = default_collate(rows)
    return x - x.mean(0), y


COLLATE = refused("collate function", "padding")


@wrong(texts_of_any_length, COLLATE)
def padding_that_the_model_sees(rows: Rows, make_private: MakePrivate) -> None:
    told_of_the_loss(Words(masked=False), rows, padded, make_private)


@wrong(texts_of_any_length, COLLATE)
def padding_that_the_model_sees_in_two_views(rows: Rows, make_private: MakePrivate) -> None:
    told_of_the_loss(Words(masked=False), rows, padded, make_private, views=2)


@wrong(texts_of_any_length, COLLATE)
def padding_that_the_model_sees_of_people_s_texts(rows: Rows, make_private: MakePrivate) -> None:
    people = [k // 2 for k in range(len(rows))]
    told_of_the_loss(Words(masked=False), rows, padded, make_private, person=people, per_person=2)


@wrong(vectors, COLLATE)
def parts_of_other_examples_put_in_while_collating(rows: Rows, make_private: MakePrivate) -> None:
    told_of_the_loss(two_layers(), rows, cut_mix, make_private)


@wrong(vectors, COLLATE)
def a_batch_s_mean_subtracted_while_collating(rows: Rows, make_private: MakePrivate) -> None:
    told_of_the_loss(two_layers(), rows, centred, make_private)


# Collate functions that drop examples because of others.


def in_threes(rows: list[Any]) -> Any:
    """As many as can be divided by three."""
    return default_collate(rows[: len(rows) // 3 * 3])


def at_most_five(rows: list[Any]) -> Any:
    return default_collate(rows[:5])


def no_two_alike(rows: list[Any]) -> Any:
    """One for each class."""
    return default_collate(list({int(y): (x, y) for x, y in rows}.values()))


DROPS = refused("collate function", "a say in whether others", "weigh")


@wrong(vectors, DROPS)
def what_is_left_over_of_threes_is_dropped(rows: Rows, make_private: MakePrivate) -> None:
    fit(two_layers(), DataLoader(rows, batch_size=4, collate_fn=in_threes), make_private)


@wrong(vectors, DROPS)
def no_more_than_fit_are_collated(rows: Rows, make_private: MakePrivate) -> None:
    fit(two_layers(), DataLoader(rows, batch_size=4, collate_fn=at_most_five), make_private)


@wrong(vectors, DROPS)
def one_example_of_each_class_is_collated(rows: Rows, make_private: MakePrivate) -> None:
    fit(two_layers(), DataLoader(rows, batch_size=4, collate_fn=no_two_alike), make_private)


@wrong(vectors, refused("collate function", "drop", "views"))
def unreadable_examples_are_dropped_from_views(rows: Rows, make_private: MakePrivate) -> None:
    fit(two_layers(), DataLoader(rows, batch_size=4, collate_fn=readable), make_private, views=2)


@wrong(vectors, refused("one loss per example"))
def a_mixing_loss_where_unreadable_examples_are_dropped(rows: Rows, make_private: MakePrivate) -> None:
    def mixing(output: Tensor, batch: Any) -> Tensor:
        return F.cross_entropy(output / output.detach().std(), batch[1])

    data = DataLoader(rows, batch_size=4, collate_fn=readable)
    made_private = functools.partial(make_private, loss=mixing)
    fit(two_layers(), data, made_private, lambda output, y: mixing(output, (None, y)))


# Loops that leave out rows by their place.


@wrong(vectors, refused("left out", "max_physical_batch="))
def a_batch_cut_to_what_fits(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x[:5]), y[:5]).backward()
        optimizer.step()


@wrong(vectors, refused("left out"))
def slices_of_three_and_no_smaller_ones(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4, loss_reduction="sum")
    for x, y in loader:
        optimizer.zero_grad()
        for some, targets in zip(x.split(3), y.split(3), strict=True):
            if len(some) == 3:
                F.cross_entropy(model(some), targets, reduction="sum").backward()
        optimizer.step()
