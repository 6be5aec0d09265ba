"""Wrong programs: parameters that a module uses itself, where examples meet, or where nobody sees it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

from tests.programs.corpus import Rows, refused, wrong
from tests.programs.examples import images, sequences, vectors
from tests.programs.loops import fit, two_layers
from tests.programs.running import MakePrivate


class BatchNormByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))
        self.conv, self.head = nn.Conv2d(1, 3, 3), nn.Linear(108, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.batch_norm(self.conv(x), None, None, self.gain, self.shift, training=True)
        return self.head(x.relu().flatten(1))


@wrong(images, refused("gain", "batch_norm", "over the batch"))
def a_batch_norm_written_out(rows: Rows, make_private: MakePrivate) -> None:
    fit(BatchNormByHand(), rows, make_private)


class Flattened(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.Parameter(torch.randn(3, 4)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.tanh(x.flatten(0, 1) @ self.mix)
        return self.head(steps.unflatten(0, (len(x), -1)).mean(1))


@wrong(sequences, refused("mix", "matmul", "no flattening", "nn.Linear"))
def a_bare_matrix_on_all_steps_of_all_examples(rows: Rows, make_private: MakePrivate) -> None:
    fit(Flattened(), rows, make_private)


class Centred(nn.Module):
    """The batch's mean, by way of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.share, self.layers = nn.Parameter(torch.ones(1)), two_layers()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x - self.share * x.mean())


@wrong(vectors, refused("share", "over the batch"))
def a_learned_share_of_the_batch_s_mean(rows: Rows, make_private: MakePrivate) -> None:
    fit(Centred(), rows, make_private)


class Means(nn.Module):
    """A list of running means, called parameters so that they are saved."""

    def __init__(self) -> None:
        super().__init__()
        self.means = nn.ParameterList([nn.Parameter(torch.zeros(6), requires_grad=False)])
        self.layers = two_layers()

    def forward(self, x: Tensor) -> Tensor:
        self.means[0].data.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return self.layers(x - self.means[0])


@wrong(vectors, refused("means.0"))
def running_means_in_a_list_of_parameters(rows: Rows, make_private: MakePrivate) -> None:
    fit(Means(), rows, make_private)


@wrong(vectors, refused("0.weight", "prune", "make both private then"))
def weights_that_are_pruned_after_make_private(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    private = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    model, optimizer, loader = private
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
