"""Wrong programs: data that hold an example twice, or mix examples before the model sees them."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from tests.programs.corpus import Rows, told, wrong
from tests.programs.examples import vectors
from tests.programs.loops import fit, two_layers
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
