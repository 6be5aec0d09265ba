"""Losses with kinks: their second derivative is zero there, whoever decides on which side an example lies."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from tests.programs.corpus import Rows, refused, wrong
from tests.programs.examples import vectors
from tests.programs.loops import fit
from tests.programs.running import MakePrivate
from tests.programs.wrong_meetings import _plain


class Scorer(nn.Module):
    """One number for each example, without a dimension of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layers(x).squeeze(-1)
        return scores


@wrong(vectors, refused("something that is not smooth"))
def pairs_of_scores_with_a_margin(rows: Rows, make_private: MakePrivate) -> None:
    def loss(scores: Tensor, y: Tensor) -> Tensor:
        return F.relu(1 - (scores[:, None] - scores[None])).mean()

    fit(Scorer(), rows, make_private, loss)


@wrong(vectors, refused("something that is not smooth"))
def scores_around_their_mean(rows: Rows, make_private: MakePrivate) -> None:
    def loss(scores: Tensor, y: Tensor) -> Tensor:
        return (scores - y - (scores - y).mean()).abs().mean()

    fit(Scorer(), rows, make_private, loss)


@_plain()
def distances_from_the_mean_of_the_batch(output: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(output, y) + (output - output.mean(0)).abs().mean()


@_plain()
def the_distance_of_two_groups_means(output: Tensor, y: Tensor) -> Tensor:
    a, b = output[y == 0].sum(0) / len(y), output[y != 0].sum(0) / len(y)
    return F.cross_entropy(output, y) + F.l1_loss(a, b)


@_plain()
def a_mean_activation_that_is_held_above_a_floor(output: Tensor, y: Tensor) -> Tensor:
    """As free bits are, where they are taken over the batch."""
    return F.cross_entropy(output, y) + output.mean(0).clamp(min=0.1).sum()


@_plain()
def every_pair_ranked_with_a_margin(output: Tensor, y: Tensor) -> Tensor:
    apart = output[:, None, 0] - output[None, :, 0]
    return F.relu(1 - apart).sum() / len(y) ** 2


@_plain()
def the_fairness_of_two_groups(output: Tensor, y: Tensor) -> Tensor:
    """Demographic parity: how far the groups' mean predictions are apart."""
    p = output.softmax(1)[:, 0]
    gap = (p * (y == 0)).sum() / 4 - (p * (y == 1)).sum() / 4
    return F.cross_entropy(output, y) + gap.abs()
