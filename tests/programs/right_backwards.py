"""Right programs: losses over many numbers of each example, and the odd ways in which people call `backward`."""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from tests.programs.corpus import Rows, right
from tests.programs.examples import images, pairs, sequences, vectors
from tests.programs.loops import fit, two_layers
from tests.programs.running import MakePrivate


class UNet(nn.Module):
    """A class for every pixel, with a connection across."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.low, self.up = nn.Conv2d(1, 4, 2, stride=2), nn.Conv2d(4, 4, 3, padding=1), nn.Upsample(scale_factor=2)  # fmt: skip # noqa: E501
        self.out = nn.Conv2d(5, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.low(F.relu(self.down(x))))
        return self.out(torch.cat([x, self.up(h)], 1))


@right(images)
def a_mean_over_the_pixels_of_pictures_of_one_size(rows: Rows, make_private: MakePrivate) -> None:
    model = UNet()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for x, _ in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), (x[:, 0] > 0).long()).backward()
        optimizer.step()


class Transcriber(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(3, 6, batch_first=True), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0]).log_softmax(-1)


@right(sequences)
def connectionist_temporal_classification(rows: Rows, make_private: MakePrivate) -> None:
    """Its mean divides each example by the length of its own target, and then by the number of examples."""
    model = Transcriber()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for x, y in loader:
        optimizer.zero_grad()
        target = torch.stack([y % 3 + 1, (y + 1) % 3 + 1], 1)
        lengths = torch.full((len(x),), 4), torch.where(y == 0, 1, 2)
        F.ctc_loss(model(x).transpose(0, 1), target, *lengths).backward()
        optimizer.step()


class Triplets(nn.Module):
    """Three pictures of one row, through one encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = two_layers()

    def forward(self, rows: Tensor) -> Tensor:
        return self.encoder(rows)


@right(pairs)
def triplets_within_an_example(rows: Rows, make_private: MakePrivate) -> None:
    model = Triplets()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for a, b, _ in loader:
        optimizer.zero_grad()
        anchor, near, far = model(torch.stack([a, a + 0.1 * b, b], 1)).unbind(1)
        F.triplet_margin_loss(anchor, near, far, margin=5.0).backward()
        optimizer.step()


class Graph(nn.Module):
    """Every example is a graph of its own, with its own adjacency."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 5), nn.Linear(5, 3)

    def forward(self, nodes: Tensor) -> Tensor:
        adjacency = (nodes @ nodes.transpose(1, 2)).softmax(-1)
        return self.b(adjacency @ torch.relu(self.a(adjacency @ nodes))).mean(1)


@right(sequences)
def a_graph_for_every_example(rows: Rows, make_private: MakePrivate) -> None:
    fit(Graph(), rows, make_private)


class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pair, self.act, self.head = nn.Bilinear(6, 6, 4), nn.PReLU(), nn.Linear(4, 1)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.head(self.act(self.pair(a, b))).squeeze(1)


@right(pairs)
def a_bilinear_layer_and_a_learned_activation(rows: Rows, make_private: MakePrivate) -> None:
    model = Bilinear()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for a, b, same in loader:
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(model(a, b), same).backward()
        optimizer.step()


class Scales(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.scales = nn.ParameterList(torch.full((6,), 0.5) for _ in range(2))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer, scale in zip(self.layers, self.scales, strict=True):
            x = x + scale * torch.tanh(layer(x))
        return self.head(x)


@right(vectors)
def a_list_of_parameters(rows: Rows, make_private: MakePrivate) -> None:
    fit(Scales(), rows, make_private)


# Ways to call backward.


def loop(rows: Rows, make_private: MakePrivate, backward: Any, **options: Any) -> Any:
    model = two_layers()
    private = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4, **options)
    model, optimizer, loader = private
    for x, y in loader:
        optimizer.zero_grad()
        backward(model, x, y)
        optimizer.step()
    return private


@right(vectors)
def a_sum_divided_by_the_batch_s_size(rows: Rows, make_private: MakePrivate) -> None:
    loop(rows, make_private, lambda model, x, y: (F.cross_entropy(model(x), y, reduction="sum") / len(y)).backward())


@right(vectors)
def a_loss_times_a_constant(rows: Rows, make_private: MakePrivate) -> None:
    loop(rows, make_private, lambda model, x, y: (10 * F.cross_entropy(model(x), y)).backward())


@right(vectors)
def losses_of_all_examples_and_a_gradient_of_ones(rows: Rows, make_private: MakePrivate) -> None:
    def backward(model: nn.Module, x: Tensor, y: Tensor) -> None:
        losses = F.cross_entropy(model(x), y, reduction="none")
        losses.backward(torch.ones_like(losses))

    loop(rows, make_private, backward, loss_reduction="sum")


@right(vectors)
def two_losses_in_one_call_of_autograd(rows: Rows, make_private: MakePrivate) -> None:
    def backward(model: nn.Module, x: Tensor, y: Tensor) -> None:
        logits = model(x)
        torch.autograd.backward([F.cross_entropy(logits, y), 0.1 * logits.square().mean()])

    loop(rows, make_private, backward)


@right(vectors)
def a_penalty_on_the_logits(rows: Rows, make_private: MakePrivate) -> None:
    def backward(model: nn.Module, x: Tensor, y: Tensor) -> None:
        logits = model(x)
        (F.cross_entropy(logits, y) + 1e-2 * logits.logsumexp(1).square().mean()).backward()

    loop(rows, make_private, backward)


@right(vectors)
def the_model_run_once_more_for_a_log(rows: Rows, make_private: MakePrivate) -> None:
    def backward(model: nn.Module, x: Tensor, y: Tensor) -> None:
        with torch.no_grad():
            (model(x).argmax(1) == y).float().mean()
        model(x)  # with a graph that nobody uses
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        loss.item()

    loop(rows, make_private, backward)


@right(vectors)
def a_search_for_anomalies(rows: Rows, make_private: MakePrivate) -> None:
    """Of finite examples alone: it stops at the first number that is none, which is what it is for."""

    def backward(model: nn.Module, x: Tensor, y: Tensor) -> None:
        with torch.autograd.detect_anomaly(check_nan=False):
            F.cross_entropy(model(x), y).backward()

    loop(rows, make_private, backward)


@right(vectors)
def the_gradient_clipped_once_more_by_hand(rows: Rows, make_private: MakePrivate) -> None:
    """There is no gradient yet when it is clipped: nothing is done twice."""

    def backward(model: nn.Module, x: Tensor, y: Tensor) -> None:
        F.cross_entropy(model(x), y).backward()
        if model[0].weight.grad is None:
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)

    loop(rows, make_private, backward)


@right(vectors)
def an_optimizer_for_the_head_alone(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    private = make_private(model, torch.optim.SGD(model[2].parameters(), lr=0.1), rows, batch_size=4)
    for x, y in private.loader:
        private.optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        private.optimizer.step()


@right(vectors)
def the_whole_model_is_pickled_and_traced(rows: Rows, make_private: MakePrivate) -> None:
    private = loop(rows, make_private, lambda model, x, y: F.cross_entropy(model(x), y).backward())
    file = io.BytesIO()
    torch.save(private.model, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    example = torch.ones(2, 6)
    assert torch.equal(again(example), copy.deepcopy(private.model)(example))
    torch.jit.trace(again.eval(), example)


class Arrays(Dataset):
    """Arrays of numpy and numbers of Python, with each example's number."""

    def __init__(self, rows: Rows) -> None:
        self.x, self.y = np.stack([x.numpy() for x, _ in rows]), [int(y) for _, y in rows]

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Any, int, int]:
        return self.x[index], self.y[index], index


@right(vectors)
def arrays_of_numpy(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    data = Arrays(rows)
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=4)
    for x, y, _index in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
