"""Right programs: loops that write into the model what private data have no say in, or nothing that is not released."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

import hoarfrost
from tests.programs.corpus import Rows, right
from tests.programs.examples import vectors
from tests.programs.loops import epochs, two_layers
from tests.programs.running import MakePrivate
from tests.programs.wrong_writes import Centred, begin, step


@right(vectors)
def layers_thawed_one_after_the_other(rows: Rows, make_private: MakePrivate) -> None:
    """Progressive unfreezing; weights are clamped after every step, frozen ones with them."""
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))
    model.requires_grad_(False)
    model[4].requires_grad_(True)
    private = begin(rows, make_private, model, lr=0.1)
    coming = [model[2], model[0]]

    def thaw() -> None:
        if coming:
            coming.pop(0).requires_grad_(True)

    @torch.no_grad()
    def clamp() -> None:
        for p in model.parameters():
            p.clamp_(-0.5, 0.5)

    clamp()
    epochs(model, private, clamp, thaw)


@right(vectors)
def a_layer_trained_in_every_other_step(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    private = begin(rows, make_private, model, lr=0.1)
    epochs(model, private, lambda: model[0].requires_grad_(not model[0].weight.requires_grad))


@right(vectors)
def weights_of_the_average_put_in_for_evaluation_and_back(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    model[0].requires_grad_(False)
    private = begin(rows, make_private, model, lr=0.1)
    average = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def evaluate() -> None:
        kept = {name: p.clone() for name, p in model.named_parameters()}
        for name, p in model.named_parameters():
            p.copy_(average[name].lerp_(p, 0.1))
        model(torch.ones(2, 6))
        for name, p in model.named_parameters():
            p.copy_(kept[name])

    epochs(model, private, evaluate)


@right(vectors)
def a_layer_frozen_after_its_weights_were_clamped(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    private = begin(rows, make_private, model, lr=0.1)

    def freeze() -> None:
        if model[0].weight.requires_grad:
            with torch.no_grad():
                model[0].weight.clamp_(-0.2, 0.2)
            model[0].requires_grad_(False)

    epochs(model, private, after_epoch=freeze)


@right(vectors)
def pretrained_weights_loaded_into_a_frozen_layer(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    model[0].requires_grad_(False)
    private = begin(rows, make_private, model, lr=0.1)
    pretrained = {name: t + 1 for name, t in copy.deepcopy(model[0].state_dict()).items()}
    epochs(model, private, after_epoch=lambda: model[0].load_state_dict(pretrained))


@right(vectors, oracle=False)
def layers_frozen_in_turn_with_clamped_weights(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    private = begin(rows, make_private, model, lr=0.1, freeze=hoarfrost.freeze.Layers(first=1, step=0))
    epochs(model, private, lambda: [p.data.clamp_(-9.0, 9.0) for p in model.parameters()])


# Before the first batch is handed over, everything may be set; after that, what data have no say in.


@right(vectors)
def buffers_set_after_make_private(rows: Rows, make_private: MakePrivate) -> None:
    model = Centred()
    private = begin(rows, make_private, model, lr=0.1)
    model.centre.fill_(0.5)
    with torch.no_grad():
        model.centre[0] = 1.0
    epochs(model, private)


@right(vectors)
def a_look_at_the_shapes_of_a_batch(rows: Rows, make_private: MakePrivate) -> None:
    """The model is then cast, moved, loaded, and begun anew, as its shapes wanted it."""
    model = Centred()
    private = begin(rows, make_private, model, lr=0.1)
    x, _ = next(iter(private.loader))
    assert x.shape[1] == model.layer.in_features
    model.to(torch.device("cpu")).double().float()
    model.load_state_dict({name: t * 0.5 for name, t in copy.deepcopy(model.state_dict()).items()})
    for layer in (model.shift, model.layer):
        nn.init.constant_(layer.weight, 0.1)
    for x, y in private.loader:
        step(private, x, y)


class Positions(Centred):
    """Its table grows with what it is asked for, and is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(0), persistent=False)

    def prepare(self, size: int) -> None:
        self.register_buffer("table", torch.linspace(0, 1, size), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.table)


@right(vectors)
def a_table_made_for_the_width_of_the_first_batch(rows: Rows, make_private: MakePrivate) -> None:
    model = Positions()
    private = begin(rows, make_private, model, lr=0.1)
    for x, y in private.loader:
        if len(model.table) != x.shape[1]:
            model.prepare(x.shape[1])
        step(private, x, y)
