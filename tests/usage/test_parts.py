"""What cannot be used by itself: parts of a private model before it ran, copies of its optimizer."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hoarfrost
from hoarfrost.errors import NotPrivate


def private() -> hoarfrost.Private:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    data = TensorDataset(torch.randn(20, 3), torch.randint(2, (20,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return hoarfrost.make_private(model, optimizer, data, batch_size=5, noise_multiplier=1.0, delta=1e-5)


def test_a_part_that_is_called_by_itself_is_told_to_call_the_whole() -> None:
    model, _, loader = private()
    x, _ = next(iter(loader))
    with pytest.raises(NotPrivate, match=r"0 \(Linear\) is called by itself.*Call the model itself"):
        model[2](torch.tanh(model[0](x)))


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps], ids=["deepcopy", "pickle"])
def test_an_optimizer_cannot_be_copied(copied: object) -> None:
    with pytest.raises(NotPrivate, match=r"copied or pickled.*state_dict\(\)"):
        copied(private().optimizer)  # type: ignore[operator]
