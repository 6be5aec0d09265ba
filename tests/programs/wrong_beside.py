"""Wrong programs: batches of a private loader that train something else than the model it was made for."""

from __future__ import annotations

import copy
import io
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.programs.corpus import Rows, refused, told, wrong
from tests.programs.examples import vectors
from tests.programs.loops import EPOCHS, two_layers
from tests.programs.running import MakePrivate
from tests.programs.wrong_account import noisy, train
from tests.programs.wrong_loops import begin


def train_plainly(model: nn.Module, loader: Any, features: nn.Module | None = None) -> None:
    """A loop that knows nothing of privacy."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(EPOCHS):
        for x, y in loader:
            if features is not None:
                with torch.no_grad():
                    x = features(x)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


@wrong(vectors, told("plain optimizer", "without privacy"))
def a_copy_of_the_model_trained_plainly_on_the_private_loader(rows: Rows, make_private: MakePrivate) -> None:
    private = begin(rows, make_private)
    train_plainly(copy.deepcopy(private.model), private.loader)


@wrong(vectors, told("plain optimizer", "without privacy"))
def a_copy_of_a_trained_model_tuned_plainly_on_the_private_loader(rows: Rows, make_private: MakePrivate) -> None:
    private = begin(rows, make_private)
    train(private, 2)
    train_plainly(copy.deepcopy(private.model), private.loader)


@wrong(vectors, told("plain optimizer", "without privacy"))
def a_layer_on_top_trained_plainly_on_the_private_loader(rows: Rows, make_private: MakePrivate) -> None:
    private = begin(rows, make_private)
    train(private, 2)
    train_plainly(nn.Linear(3, 3), private.loader, private.model)


@wrong(vectors, told("account"))
def a_copy_of_a_copy_trained_further(rows: Rows, make_private: MakePrivate) -> None:
    first = noisy(two_layers(), rows)
    train(first, 2)
    train(noisy(copy.deepcopy(copy.deepcopy(first.model)), rows), 2)


@wrong(vectors, told("account"))
def a_model_that_was_pickled_trained_further(rows: Rows, make_private: MakePrivate) -> None:
    first = noisy(two_layers(), rows)
    train(first, 2)
    file = io.BytesIO()
    torch.save(first.model, file)
    file.seek(0)
    train(noisy(torch.load(file, weights_only=False), rows), 2)


# The loader of one run, and the model of another.

ANOTHER = refused("another private run", "one module")


@wrong(vectors, ANOTHER)
def a_model_on_batches_of_another_run(rows: Rows, make_private: MakePrivate) -> None:
    one, other = begin(rows, make_private), begin(rows, make_private)
    for x, y in one.loader:
        F.cross_entropy(other.model(x), y).backward()
        other.optimizer.step()


@wrong(vectors, ANOTHER)
def two_models_on_the_batches_of_one_of_them(rows: Rows, make_private: MakePrivate) -> None:
    one, other = begin(rows, make_private), begin(rows, make_private)
    for x, y in one.loader:
        (F.cross_entropy(one.model(x), y) + F.cross_entropy(other.model(x), y)).backward()
        one.optimizer.step()
        other.optimizer.step()


@wrong(vectors, ANOTHER)
def batches_of_two_runs_mixed_up(rows: Rows, make_private: MakePrivate) -> None:
    """Both loaders are asked, so that each step has a batch of its own; one of them trains both models."""
    one, other = begin(rows, make_private), begin(rows, make_private)
    for (x, y), _ in zip(one.loader, other.loader, strict=False):
        for private in (one, other):
            F.cross_entropy(private.model(x), y).backward()
            private.optimizer.step()


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x))


@wrong(vectors, ANOTHER)
def a_body_and_a_head_made_private_one_by_one(rows: Rows, make_private: MakePrivate) -> None:
    body = Body()
    first = make_private(body, torch.optim.SGD(body.parameters(), lr=0.1), rows, batch_size=4)
    head = begin(rows, make_private)
    for x, y in first.loader:
        F.cross_entropy(head.model(first.model(x)), y).backward()
        first.optimizer.step()
        head.optimizer.step()
