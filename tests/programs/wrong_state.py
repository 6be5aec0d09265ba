"""Wrong programs: models that keep something of the data, in what is saved or from one batch to the next."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hoarfrost.errors import NotPrivate
from tests.programs.corpus import Holds, Rows, refused, wrong
from tests.programs.examples import vectors
from tests.programs.loops import fit
from tests.programs.running import MakePrivate


def stays(model: nn.Module, rows: Rows, make_private: MakePrivate, steps: int = 2, **options: Any) -> Any:
    """Some steps that move nothing, so that what the model keeps of a batch shows in the next one's sum."""
    private = make_private(model, torch.optim.SGD(model.parameters(), lr=0.0), rows, batch_size=4, **options)
    model, optimizer, loader = private
    for _ in range(steps):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return private


class ActNorm(nn.Module):
    """As in Glow: scale and shift are set by the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.scale = nn.Parameter(torch.zeros(6)), nn.Parameter(torch.ones(6))
        self.ready = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.ready and self.training:
            with torch.no_grad():
                self.shift.copy_(-x.mean(0))
                self.scale.copy_(1 / (x.std(0) + 1e-6))
            self.ready = True
        return (x + self.shift) * self.scale


@wrong(vectors, refused("0.s"))
def initialisation_by_the_first_batch(rows: Rows, make_private: MakePrivate) -> None:
    stays(nn.Sequential(ActNorm(), nn.Linear(6, 3)), rows, make_private)


@wrong(vectors, Holds("a model that is refused holds nothing of the data afterwards"))
def what_a_refused_model_keeps(rows: Rows, make_private: MakePrivate) -> bool:
    model = nn.Sequential(ActNorm(), nn.Linear(6, 3))
    before = copy.deepcopy(model.state_dict())
    try:
        stays(model, rows, make_private)
    except NotPrivate:
        return all(torch.equal(t, model.state_dict()[name]) for name, t in before.items())
    return False


class LateBuffer(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "centre"):
            self.register_buffer("centre", x.mean(0).detach())
        return super().forward(x - self.centre)


@wrong(vectors, refused("centre"))
def a_buffer_registered_in_the_first_forward(rows: Rows, make_private: MakePrivate) -> None:
    stays(nn.Sequential(LateBuffer(6, 3)), rows, make_private)


class Keeps(nn.Module):
    """Keeps a mean of what it has seen; a subclass says where and when."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(6, 3), 0

    def now(self) -> bool:
        return True

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.training and self.now():
            with torch.no_grad():
                self.history.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return self.layer(x - self.history)


class InAParameter(Keeps):
    def __init__(self) -> None:
        super().__init__()
        self.history = nn.Parameter(torch.zeros(6), requires_grad=False)


@wrong(vectors, refused("history"))
def a_running_mean_in_a_parameter_that_is_not_trained(rows: Rows, make_private: MakePrivate) -> None:
    model = InAParameter()
    optimizer = torch.optim.SGD(model.layer.parameters(), lr=0.0)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


class WhenGradientsAreOn(Keeps):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("history", torch.zeros(6))

    def now(self) -> bool:
        return torch.is_grad_enabled()


@wrong(vectors, refused("history"))
def a_buffer_that_changes_when_gradients_are_on(rows: Rows, make_private: MakePrivate) -> None:
    stays(WhenGradientsAreOn(), rows, make_private)


class AfterTwentyCalls(WhenGradientsAreOn):
    def now(self) -> bool:
        return self.calls > 20


@wrong(vectors, refused("history"))
def a_buffer_that_changes_after_twenty_calls(rows: Rows, make_private: MakePrivate) -> None:
    stays(AfterTwentyCalls(), rows, make_private, steps=30)


class InAnAttribute(Keeps):
    def __init__(self) -> None:
        super().__init__()
        self.history = torch.zeros(6)


class InAnAttributeWhenGradientsAreOn(InAnAttribute):
    def now(self) -> bool:
        return torch.is_grad_enabled()


@wrong(vectors, refused("example"))
def a_running_mean_in_a_plain_attribute(rows: Rows, make_private: MakePrivate) -> None:
    stays(InAnAttribute(), rows, make_private)


@wrong(vectors, refused("batch"))
def a_plain_attribute_that_changes_when_gradients_are_on(rows: Rows, make_private: MakePrivate) -> None:
    stays(InAnAttributeWhenGradientsAreOn(), rows, make_private)


class Codebook(nn.Module):
    """Vector quantisation whose code words follow the data."""

    only_with_gradients = False

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(6, 2), nn.Linear(2, 3)
        self.words = nn.Embedding(4, 2).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.encoder(x)
        nearest = torch.cdist(h.detach(), self.words.weight.detach()).argmin(1)
        if self.training and (torch.is_grad_enabled() or not self.only_with_gradients):
            with torch.no_grad():
                for k in range(4):
                    if (nearest == k).any():
                        self.words.weight[k].lerp_(h[nearest == k].mean(0), 0.1)
        return self.head(h + (self.words(nearest) - h).detach())


@wrong(vectors, refused("words"))
def a_codebook_that_follows_the_data(rows: Rows, make_private: MakePrivate) -> None:
    fit(Codebook(), rows, make_private)


class QuietCodebook(Codebook):
    only_with_gradients = True


@wrong(vectors, refused("words.weight"))
def a_codebook_that_follows_the_data_when_gradients_are_on(rows: Rows, make_private: MakePrivate) -> None:
    fit(QuietCodebook(), rows, make_private)


class MoCo(nn.Module):
    """A queue of earlier examples' keys."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(6, 4)
        self.register_buffer("queue", torch.randn(4, 16))

    def forward(self, x: Tensor) -> Tensor:
        q = F.normalize(self.query(x), dim=1)
        logits = q @ self.queue.clone()
        if torch.is_grad_enabled():
            self.queue = torch.cat([q.detach().T, self.queue], 1)[:, :16]
        return logits


@wrong(vectors, refused("queue"))
def a_queue_of_earlier_examples(rows: Rows, make_private: MakePrivate) -> None:
    stays(MoCo(), rows, make_private)


@wrong(vectors, Holds("a buffer that is declared public may change"))
def a_public_step_counter(rows: Rows, make_private: MakePrivate) -> bool:
    class Counting(nn.Linear):
        def __init__(self) -> None:
            super().__init__(6, 3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x)

    private = stays(Counting(), rows, make_private, allow_state=["calls"])
    return "calls" in str(private.statement()) and private.steps_taken == 2
