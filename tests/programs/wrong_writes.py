"""Wrong programs: loops that write what they saw of a batch into the model, where no noise is added to it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hoarfrost
from tests.programs.corpus import Rows, refused, wrong
from tests.programs.examples import vectors
from tests.programs.loops import EPOCHS
from tests.programs.running import MakePrivate


class Centred(nn.Module):
    """Subtracts a centre that somebody else sets."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.layer = nn.Linear(6, 6), nn.Linear(6, 3)
        self.register_buffer("centre", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.shift(x - self.centre)))


def begin(rows: Rows, make_private: MakePrivate, model: nn.Module, lr: float = 0.0, **options: Any) -> Any:
    """By default of steps that move nothing, so that what is written shows in the next one's sum."""
    return make_private(model, torch.optim.SGD(model.parameters(), lr=lr), rows, batch_size=4, **options)


def step(private: Any, x: Tensor, y: Tensor) -> None:
    private.optimizer.zero_grad()
    F.cross_entropy(private.model(x), y).backward()
    private.optimizer.step()


@torch.no_grad()
def write(t: Tensor, x: Tensor) -> None:
    """The batch's mean, whatever it is made of."""
    t.copy_(x.nan_to_num(7.0).mean(0))


# Parameters that the optimizer holds, and that it does not move.


@wrong(vectors, refused("shift.bias", "requires_grad", "first batch"))
def a_batch_mean_in_a_parameter_that_requires_no_gradient(rows: Rows, make_private: MakePrivate) -> None:
    model = Centred()
    model.shift.requires_grad_(False)  # the optimizer holds it all the same
    private = begin(rows, make_private, model)
    for x, y in private.loader:
        write(model.shift.bias, x)
        step(private, x, y)


@wrong(vectors, refused("shift.bias"))
def a_batch_mean_in_a_layer_that_the_loop_has_frozen(rows: Rows, make_private: MakePrivate) -> None:
    model = Centred()
    private = begin(rows, make_private, model)
    for epoch in range(EPOCHS):
        for x, y in private.loader:
            step(private, x, y)
            if epoch:
                write(model.shift.bias, x)
        model.shift.requires_grad_(False)


@wrong(vectors, refused("shift.bias"))
def a_batch_mean_through_data_in_a_layer_that_the_loop_has_frozen(rows: Rows, make_private: MakePrivate) -> None:
    model = Centred()
    private = begin(rows, make_private, model)
    for epoch in range(EPOCHS):
        for x, y in private.loader:
            step(private, x, y)
            if epoch:
                model.shift.bias.data.copy_(x.nan_to_num(7.0).mean(0))
        model.shift.requires_grad_(False)


@wrong(vectors, refused("shift.bias"))
def a_batch_mean_in_a_layer_that_a_freezer_has_frozen(rows: Rows, make_private: MakePrivate) -> None:
    model = Centred()
    private = begin(rows, make_private, model, freeze=hoarfrost.freeze.Layers(first=1, step=0))
    for _ in range(EPOCHS):
        for x, y in private.loader:
            step(private, x, y)
            write(model.shift.bias, x)


# What is set from the first batch, before the model runs on it.


@wrong(vectors, refused("centre", "first batch", "allow_state"))
def a_buffer_set_from_the_first_batch(rows: Rows, make_private: MakePrivate) -> None:
    model = Centred()
    private = begin(rows, make_private, model)
    for epoch in range(EPOCHS):
        for x, y in private.loader:
            if epoch == 0:
                write(model.centre, x)
            step(private, x, y)


@wrong(vectors, refused("centre"))
def a_buffer_set_from_a_batch_that_is_fetched_for_it(rows: Rows, make_private: MakePrivate) -> None:
    model = Centred()
    private = begin(rows, make_private, model)
    x, _ = next(iter(private.loader))
    write(model.centre, x)
    for x, y in private.loader:
        step(private, x, y)


@wrong(vectors, refused("centre"))
def another_buffer_in_its_place_from_the_first_batch(rows: Rows, make_private: MakePrivate) -> None:
    model = Centred()
    private = begin(rows, make_private, model)
    for x, y in private.loader:
        model.centre = x.nan_to_num(7.0).mean(0)
        step(private, x, y)


@wrong(vectors, refused("scale", "appears"))
def a_buffer_registered_in_the_loop_from_the_first_batch(rows: Rows, make_private: MakePrivate) -> None:
    model = Centred()
    private = begin(rows, make_private, model)
    for x, y in private.loader:
        if not hasattr(model, "scale"):
            model.register_buffer("scale", x.nan_to_num(7.0).std(0))
        step(private, x / model.scale, y)


@wrong(vectors, refused("centre"))
def a_buffer_set_between_the_chunks_of_the_first_batch(rows: Rows, make_private: MakePrivate) -> None:
    model = Centred()
    private = begin(rows, make_private, model, max_physical_batch=3)
    for x, y in private.loader:
        step(private, x, y)
        if private.steps_taken == 0:
            write(model.centre, x)
