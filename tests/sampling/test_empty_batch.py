"""A batch of nobody has the structure of any other batch, and no rows."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

from hoarfrost.nested import map_tensors
from hoarfrost.sampling.empty import empty_batch


class Pair(NamedTuple):
    x: torch.Tensor
    y: int


IMAGE = torch.ones(3, 8, 8)


def shapes(batch):
    return map_tensors(lambda t: tuple(t.shape), batch)


@pytest.mark.parametrize(
    ("example", "expected"),
    [
        (IMAGE, (0, 3, 8, 8)),
        ((IMAGE, 3), [(0, 3, 8, 8), (0,)]),
        ([IMAGE], [(0, 3, 8, 8)]),
        ({"image": IMAGE, "label": 1.5}, {"image": (0, 3, 8, 8), "label": (0,)}),
        ({"a": (IMAGE, {"b": 1})}, {"a": [(0, 3, 8, 8), {"b": (0,)}]}),
        (Pair(IMAGE, 1), Pair((0, 3, 8, 8), (0,))),
        ({"name": "cat", "x": 1}, {"name": [], "x": (0,)}),
        (("cat", 1), [(), (0,)]),
    ],
    ids=["tensor", "pair", "list", "dict", "nested", "namedtuple", "named", "named pair"],
)
def test_default_collation(example, expected):
    assert shapes(empty_batch(default_collate, example)) == expected


def test_types_of_numbers_are_those_of_a_full_batch():
    batch = empty_batch(default_collate, (torch.ones(2, dtype=torch.float16), 1, 1.0))
    assert [t.dtype for t in batch] == [torch.float16, torch.int64, torch.float64]


def sequence_first(examples):
    """[time, batch, features], labels [batch], soft labels [batch, classes]."""
    xs, ys, soft = zip(*examples, strict=True)
    return pad_sequence(list(xs)), torch.tensor(ys), torch.stack(soft)


@pytest.mark.parametrize("batch_first", [True, False])
def test_the_example_dimension_is_found_wherever_it_is(batch_first):
    example = (torch.ones(7, 4), 2, torch.ones(5))
    assert shapes(empty_batch(sequence_first, example, batch_first)) == ((7, 0, 4), (0,), (0, 5))


def test_the_example_dimension_is_found_where_all_sizes_are_one():
    assert empty_batch(lambda rows: torch.stack(rows, dim=1), torch.ones(1, 1)).shape == (1, 0, 1)


def padded_to_eight(examples):
    """A collate function whose output has one size, whatever comes in."""
    return {"x": torch.zeros(8, 8, 2), "y": torch.zeros(8)}


def test_where_sizes_tell_nothing_batch_first_says_it():
    assert shapes(empty_batch(padded_to_eight, None, True)) == {"x": (0, 8, 2), "y": (0,)}
    assert shapes(empty_batch(padded_to_eight, None, False)) == {"x": (8, 0, 2), "y": (0,)}


def test_lists_with_an_entry_per_example_become_empty():
    batch = empty_batch(lambda rows: tuple(zip(*rows, strict=True)), (IMAGE, {"boxes": IMAGE}))
    assert batch == ((), ())


def test_numpy_arrays_are_cut_too():
    batch = empty_batch(lambda rows: {"x": np.stack(rows), "n": 3}, np.ones((2, 5), dtype=np.float32))
    assert batch["x"].shape == (0, 2, 5)
    assert batch["x"].dtype == np.float32
    assert batch["n"] == 3


def test_a_collate_function_that_takes_its_input_apart_is_no_trouble():
    example = {"x": torch.ones(2), "label": 1}
    batch = empty_batch(lambda rows: (torch.tensor([r.pop("label") for r in rows]), default_collate(rows)), example)
    assert shapes(batch) == ((0,), {"x": (0, 2)})
    assert set(example) == {"x", "label"}


def test_the_example_itself_is_not_kept():
    batch = empty_batch(default_collate, torch.ones(1000))
    assert batch.untyped_storage().size() == 0


def test_a_tokenizers_encoding_stays_an_encoding():
    transformers = pytest.importorskip("transformers")

    def collate(rows):
        return transformers.BatchEncoding({key: torch.tensor([row[key] for row in rows]) for key in rows[0]})

    batch = empty_batch(collate, {"input_ids": [1, 2, 3], "label": 0})
    assert isinstance(batch, transformers.BatchEncoding)
    assert batch.input_ids.shape == (0, 3)
    assert batch["label"].shape == (0,)
