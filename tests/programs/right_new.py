"""Right programs: ways of writing a loop that were made for this library, where plain PyTorch invites mistakes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

import hoarfrost
from tests.programs.corpus import Rows, right
from tests.programs.examples import tagged, texts_of_any_length, vectors
from tests.programs.loops import padded, two_layers
from tests.programs.running import MakePrivate


def each(model: nn.Module, data: Any, make_private: MakePrivate, losses: Any, **options: Any) -> None:
    """A loop that hands one loss for each example to the optimizer."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, data, batch_size=4, **options)
    for x, y in loader:
        optimizer.zero_grad()
        optimizer.backward(losses(model(x), y))
        optimizer.step()


@right(vectors)
def one_loss_for_each_example(rows: Rows, make_private: MakePrivate) -> None:
    each(two_layers(), rows, make_private, nn.CrossEntropyLoss(reduction="none"))


@right(vectors)
def weighted_classes_with_one_loss_for_each_example(rows: Rows, make_private: MakePrivate) -> None:
    def losses(logits: Tensor, y: Tensor) -> Tensor:
        return hoarfrost.losses.cross_entropy(logits, y, weight=[1.0, 100.0, 10.0])

    each(two_layers(), rows, make_private, losses)


@right(tagged)
def several_labels_with_one_loss_for_each_example(rows: Rows, make_private: MakePrivate) -> None:
    each(two_layers(outputs=4), rows, make_private, lambda out, y: hoarfrost.losses.binary_cross_entropy(out, y))


@right(texts_of_any_length)
def padded_words_with_one_loss_for_each_text(rows: Rows, make_private: MakePrivate) -> None:
    model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, DataLoader(rows, batch_size=4, collate_fn=padded))
    for words, _ in loader:
        optimizer.zero_grad()
        target = words[:, 1:].masked_fill(words[:, 1:] == 0, -100)
        optimizer.backward(hoarfrost.losses.token_cross_entropy(model(words[:, :-1]), target))
        optimizer.step()


@right(vectors)
def one_loss_for_each_example_in_chunks(rows: Rows, make_private: MakePrivate) -> None:
    each(two_layers(), rows, make_private, nn.CrossEntropyLoss(reduction="none"), max_physical_batch=3)


@right(vectors)
def a_loss_that_make_private_is_told_of(rows: Rows, make_private: MakePrivate) -> None:
    def loss(output: Tensor, batch: Any) -> Tensor:
        return F.cross_entropy(output, batch[1])

    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4, loss=loss)
    for x, y in loader:
        optimizer.zero_grad()
        loss(model(x), (x, y)).backward()
        optimizer.step()


@right(vectors)
def a_scheduler_that_asks_whether_a_step_was_taken(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = make_private(model, optimizer, rows, batch_size=4, max_physical_batch=3)
    scheduler = lr_scheduler.ExponentialLR(private.optimizer, 0.5)
    for _ in range(2):
        for x, y in private.loader:
            private.optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            private.optimizer.step()
            if private.stepped:
                scheduler.step()
    assert scheduler.last_epoch == 2
