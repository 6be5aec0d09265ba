"""Programs whose loss takes features out of the model by attributes or hooks, or has terms that begin later."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.programs.corpus import Rows, refused, right, told, wrong
from tests.programs.examples import vectors
from tests.programs.loops import two_layers
from tests.programs.running import MakePrivate

MEET = refused("loss.backward()", "other examples", "optimizer.backward(losses)")


def contrast(features: Tensor, y: Tensor) -> Tensor:
    """Supervised contrast: everybody is compared with everybody."""
    scores = F.normalize(features, dim=1) @ F.normalize(features, dim=1).T / 0.5
    alike = (y[:, None] == y[None]).float()
    return -(alike * scores.log_softmax(1)).sum(1).mean()


def decay(features: Tensor, _: Tensor) -> Tensor:
    """Of each example's own features."""
    return (features.square().sum(1) + 1).log().mean()


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.features = torch.tanh(self.body(x))
        return self.head(self.features)


def by_attribute(rows: Rows, make_private: MakePrivate, term: Any) -> None:
    model = Remembering()
    private, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for x, y in loader:
        optimizer.zero_grad()
        (F.cross_entropy(private(x), y) + term(model.features, y)).backward()
        optimizer.step()


def by_hook(rows: Rows, make_private: MakePrivate, term: Any) -> None:
    model, found = two_layers(), {}
    model[0].register_forward_hook(lambda module, inputs, output: found.update(features=output))
    private, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for x, y in loader:
        optimizer.zero_grad()
        (F.cross_entropy(private(x), y) + term(found["features"], y)).backward()
        optimizer.step()


@wrong(vectors, MEET)
def examples_that_meet_in_features_that_an_attribute_holds(rows: Rows, make_private: MakePrivate) -> None:
    by_attribute(rows, make_private, contrast)


@wrong(vectors, MEET)
def examples_that_meet_in_features_that_a_hook_has_taken(rows: Rows, make_private: MakePrivate) -> None:
    by_hook(rows, make_private, contrast)


@right(vectors)
def a_penalty_on_each_examples_features_that_an_attribute_holds(rows: Rows, make_private: MakePrivate) -> None:
    by_attribute(rows, make_private, decay)


@right(vectors)
def a_penalty_on_each_examples_features_that_a_hook_has_taken(rows: Rows, make_private: MakePrivate) -> None:
    by_hook(rows, make_private, decay)


def later(rows: Rows, make_private: MakePrivate, term: Any) -> None:
    """The passes that are looked at anyway are over when the term begins."""
    model = two_layers()
    private, optimizer, loader = make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4, max_physical_batch=2
    )
    for number, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        output = private(x)
        loss = F.cross_entropy(output, y)
        (loss + term(output, y) if number >= 20 else loss).backward()
        optimizer.step()


@wrong(lambda: vectors(60), MEET)
def a_term_in_which_examples_meet_that_begins_later(rows: Rows, make_private: MakePrivate) -> None:
    later(rows, make_private, contrast)


@wrong(lambda: vectors(60), refused("optimizer.backward(losses)", "other examples"))
def losses_in_which_examples_meet_that_begin_later(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    private, optimizer, loader = make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4, max_physical_batch=2
    )
    for number, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        output = private(x)
        losses = F.cross_entropy(output, y, reduction="none")
        optimizer.backward(losses + (output @ output.T).logsumexp(1) if number > 5 else losses)
        optimizer.step()


@wrong(vectors, told("cannot be differentiated twice", "loss=fn"))
def the_hardest_negative_of_a_batch_by_cdist(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    private, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for x, y in loader:
        optimizer.zero_grad()
        output = private(x)
        apart = torch.cdist(output, output) + 1e3 * (y[:, None] == y[None])
        (F.cross_entropy(output, y) + F.relu(1 - apart.amin(1)).mean()).backward()
        optimizer.step()
