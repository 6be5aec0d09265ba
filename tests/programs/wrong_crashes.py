"""Programs that crash, or are refused in words that mislead: each works, or is one sentence with the right fix."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import hoarfrost
from tests.programs.corpus import Holds, Private, Rows, private_or_refused, wrong
from tests.programs.examples import texts, vectors
from tests.programs.loops import fit, two_layers
from tests.programs.running import MakePrivate


class LayerDrop(nn.Module):
    """Whole layers are left out by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.layers, self.head = nn.Linear(6, 8), nn.ModuleList(nn.Linear(8, 8) for _ in range(3)), nn.Linear(8, 3)  # fmt: skip # noqa: E501

    def forward(self, x: Tensor) -> Tensor:
        h = self.lift(x)
        for layer in self.layers:
            if not self.training or torch.rand(()) < 0.5:
                h = h + torch.tanh(layer(h))
        return self.head(h)


@wrong(vectors, Private(oracle=False), random=True)
def layer_drop(rows: Rows, make_private: MakePrivate) -> None:
    for seed in range(8):  # which layers run is another draw each time
        torch.manual_seed(seed)
        fit(LayerDrop(), rows, make_private)


@wrong(vectors, private_or_refused("Lazy"))
def lazy_layers(rows: Rows, make_private: MakePrivate) -> None:
    fit(nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(3)), rows, make_private)


@wrong(vectors, private_or_refused("0"))
def weight_norm_without_a_bias(rows: Rows, make_private: MakePrivate) -> None:
    layer = parametrizations.weight_norm(nn.Linear(6, 8, bias=False))
    fit(nn.Sequential(layer, nn.Tanh(), nn.Linear(8, 3)), rows, make_private)


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 4), nn.Linear(4, 3)

    def forward(self, words: Tensor) -> Tensor:
        each = torch.nested.nested_tensor(list(words.unbind()), layout=torch.jagged)
        return self.head(torch.nested.to_padded_tensor(self.embedding(each), 0.0).sum(1))


@wrong(texts, private_or_refused("nested"))
def nested_tensors(rows: Rows, make_private: MakePrivate) -> None:
    fit(Nested(), rows, make_private)


@wrong(vectors, private_or_refused("GradScaler"))
def a_grad_scaler(rows: Rows, make_private: MakePrivate) -> None:
    scaler = torch.amp.GradScaler("cpu")
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4, loss_reduction="sum")
    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(x), y, reduction="sum")).backward()
        scaler.step(optimizer)
        scaler.update()


@wrong(vectors, private_or_refused("create_graph"))
def a_gradient_penalty(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers(outputs=1)
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for x, _ in loader:
        optimizer.zero_grad()
        x = x.requires_grad_()
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (out.mean() + (slope.norm(dim=1) - 1).square().mean()).backward()
        optimizer.step()


@wrong(vectors, private_or_refused("torch.compile"))
def a_model_compiled_before(rows: Rows, make_private: MakePrivate) -> None:
    fit(torch.compile(two_layers(), backend="eager"), rows, make_private)


@wrong(vectors, private_or_refused("torch.compile"))
def a_model_compiled_afterwards(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    private = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    compiled = torch.compile(private.model, backend="eager")
    for x, y in private.loader:
        private.optimizer.zero_grad()
        F.cross_entropy(compiled(x), y).backward()
        private.optimizer.step()


@wrong(vectors, Private(oracle=False))
def a_clipping_norm_that_is_a_number(rows: Rows, make_private: MakePrivate) -> None:
    fit(two_layers(), rows, make_private, clip=1.0)


# Empty batches.

EMPTY = Holds("empty batches are steps like any other")


def with_empty_batches(model: nn.Module, rows: Rows, loss: Any) -> bool:
    private = hoarfrost.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), rows,
        sample_rate=0.1, noise_multiplier=1.0, delta=1e-5, seed=3,
    )  # fmt: skip
    empty = 0
    for _ in range(3):
        for x, y in private.loader:
            empty += len(y) == 0
            private.optimizer.zero_grad()
            loss(model(x), x, y).backward()
            private.optimizer.step()
    return empty > 5 and private.steps_taken == 30


class Squeezed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).squeeze()


@wrong(vectors, EMPTY)
def empty_batches_of_a_classifier(rows: Rows, make_private: MakePrivate) -> bool:
    return with_empty_batches(two_layers(), rows, lambda out, x, y: F.cross_entropy(out, y))


@wrong(vectors, EMPTY)
def empty_batches_of_a_model_that_ends_in_squeeze(rows: Rows, make_private: MakePrivate) -> bool:
    return with_empty_batches(Squeezed(), rows, lambda out, x, y: F.mse_loss(out.view(len(y)), y.float()))


@wrong(texts, EMPTY)
def empty_batches_of_a_transformers_model(rows: Rows, make_private: MakePrivate) -> bool:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=16, n_embd=8, n_layer=1, n_head=2))

    def loss(out: Any, words: Tensor, _: Tensor) -> Tensor:
        losses = F.cross_entropy(out.logits[:, :-1].transpose(1, 2), words[:, 1:], reduction="none")
        return losses.sum(1).mean()

    return with_empty_batches(model, rows, loss)
