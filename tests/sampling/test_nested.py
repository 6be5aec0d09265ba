"""Structures are walked, not guessed at."""

from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import pytest
import torch

from hoarfrost.nested import map_tensors


class Pair(NamedTuple):
    x: object
    y: object


@dataclass(frozen=True)
class Record:
    x: object
    y: object = None


class Needy(dict):
    """A dictionary that wants something of its own when it is made."""

    def __init__(self, data, needed):
        super().__init__(data)
        self.needed = needed


ONE = torch.ones(2)

STRUCTURES = {
    "tensor": ONE,
    "dict": {"x": ONE, "y": ONE},
    "nested": {"x": [ONE, (ONE, {"z": ONE})], "y": None},
    "tuple": (ONE, 3, "text"),
    "list": [ONE, ONE],
    "namedtuple": Pair(ONE, [ONE]),
    "dataclass": Record(ONE, (ONE,)),
    "ordered": OrderedDict(x=ONE),
    "defaultdict": defaultdict(list, x=ONE),
    "needy": Needy({"x": ONE}, needed="kept"),
    "read-only": MappingProxyType({"x": ONE}),
    "nothing": [],
    "text": "text",
    "none": None,
}


def doubled(structure):
    """The same by hand: an independent little walk that knows the test's structures only."""
    if isinstance(structure, torch.Tensor):
        return 2 * structure
    if isinstance(structure, Pair):
        return [doubled(structure.x), doubled(structure.y)]
    if isinstance(structure, Record):
        return [doubled(structure.x), doubled(structure.y)]
    if hasattr(structure, "items"):
        return {k: doubled(v) for k, v in structure.items()}
    if isinstance(structure, list | tuple):
        return [doubled(v) for v in structure]
    return structure


def plain(structure):
    """Types and tensors as things that can be compared."""
    if isinstance(structure, torch.Tensor):
        return structure.tolist()
    if isinstance(structure, Record):
        return [plain(structure.x), plain(structure.y)]
    if hasattr(structure, "items"):
        return {k: plain(v) for k, v in structure.items()}
    if isinstance(structure, list | tuple):
        return [plain(v) for v in structure]
    return structure


@pytest.mark.parametrize("name", STRUCTURES)
def test_every_tensor_is_mapped_and_every_type_is_kept(name):
    structure = STRUCTURES[name]
    mapped = map_tensors(lambda t: 2 * t, structure)
    assert type(mapped) is type(structure)
    assert plain(mapped) == plain(doubled(structure))
    assert ONE.tolist() == [1, 1]


def test_attributes_of_a_mapping_are_kept():
    assert map_tensors(torch.neg, STRUCTURES["needy"]).needed == "kept"


def test_the_original_is_not_changed():
    original = {"x": [ONE]}
    mapped = map_tensors(torch.neg, original)
    mapped["x"].append("more")
    mapped["z"] = 1
    assert original == {"x": [ONE]}


def test_a_tokenizers_encoding_stays_an_encoding():
    transformers = pytest.importorskip("transformers")
    encoding = transformers.BatchEncoding({"input_ids": torch.ones(2, 3, dtype=torch.int64)})
    mapped = map_tensors(lambda t: t[:1], encoding)
    assert isinstance(mapped, transformers.BatchEncoding)
    assert mapped.input_ids.shape == (1, 3)
    assert encoding.input_ids.shape == (2, 3)
