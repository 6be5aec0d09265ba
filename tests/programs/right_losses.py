"""Right programs: losses of which every example has its own term."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils.data import DataLoader

from tests.programs.corpus import Rows, right
from tests.programs.examples import measurements, pairs, tagged, texts_of_any_length, vectors, weighted
from tests.programs.loops import fit, padded, two_layers
from tests.programs.running import MakePrivate


@right(vectors)
def a_sum_loss_that_says_so(rows: Rows, make_private: MakePrivate) -> None:
    loss = nn.CrossEntropyLoss(reduction="sum")
    fit(two_layers(), rows, make_private, loss, loss_reduction="sum")


@right(vectors)
def label_smoothing(rows: Rows, make_private: MakePrivate) -> None:
    fit(two_layers(), rows, make_private, nn.CrossEntropyLoss(label_smoothing=0.1))


@right(vectors)
def soft_targets(rows: Rows, make_private: MakePrivate) -> None:
    def loss(logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, F.one_hot(y, 3) * 0.9 + 0.05)

    fit(two_layers(), rows, make_private, loss)


@right(vectors)
def class_weights_and_a_mean_over_examples(rows: Rows, make_private: MakePrivate) -> None:
    weight = torch.tensor([1.0, 5.0, 20.0])

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y, weight=weight, reduction="none").mean()

    fit(two_layers(), rows, make_private, loss)


@right(weighted)
def a_weight_for_every_example(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4)
    for x, y, weight in loader:
        optimizer.zero_grad()
        (weight * F.cross_entropy(model(x), y, reduction="none")).mean().backward()
        optimizer.step()


@right(tagged)
def several_labels_at_once(rows: Rows, make_private: MakePrivate) -> None:
    fit(two_layers(outputs=4), rows, make_private, nn.BCEWithLogitsLoss(pos_weight=torch.full((4,), 3.0)))


@right(measurements)
def regression(rows: Rows, make_private: MakePrivate) -> None:
    fit(two_layers(outputs=1), rows, make_private, F.mse_loss)


@right(measurements)
def regression_with_squeezed_outputs(rows: Rows, make_private: MakePrivate) -> None:
    fit(two_layers(outputs=1), rows, make_private, lambda out, y: F.huber_loss(out.squeeze(-1), y.squeeze(-1)))


@right(measurements)
def a_mean_and_a_variance(rows: Rows, make_private: MakePrivate) -> None:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.gaussian_nll_loss(out[:, :1], y, out[:, 1:].exp())

    fit(two_layers(outputs=2), rows, make_private, loss)


@right(measurements)
def quantiles(rows: Rows, make_private: MakePrivate) -> None:
    level = torch.tensor([0.1, 0.5, 0.9])

    def pinball(out: Tensor, y: Tensor) -> Tensor:
        return torch.maximum(level * (y - out), (level - 1) * (y - out)).mean()

    fit(two_layers(), rows, make_private, pinball)


@right(vectors)
def focal_loss(rows: Rows, make_private: MakePrivate) -> None:
    def loss(logits: Tensor, y: Tensor) -> Tensor:
        nll = F.cross_entropy(logits, y, reduction="none")
        return ((1 - torch.exp(-nll)) ** 2 * nll).mean()

    fit(two_layers(), rows, make_private, loss)


@right(texts_of_any_length)
def every_text_has_the_mean_of_its_own_words(rows: Rows, make_private: MakePrivate) -> None:
    model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, DataLoader(rows, batch_size=4, collate_fn=padded))
    for words, _ in loader:
        optimizer.zero_grad()
        target = words[:, 1:].masked_fill(words[:, 1:] == 0, -100)
        losses = F.cross_entropy(model(words[:, :-1]).transpose(1, 2), target, reduction="none", ignore_index=-100)
        (losses.sum(1) / (target != -100).sum(1)).mean().backward()
        optimizer.step()


@right(texts_of_any_length)
def words_added_up_and_divided_by_a_constant(rows: Rows, make_private: MakePrivate) -> None:
    model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11))

    def loss(logits: Tensor, words: Tensor) -> Tensor:
        return F.cross_entropy(logits[:, :-1].transpose(1, 2), words[:, 1:], reduction="sum", ignore_index=0) / 6

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = DataLoader(rows, batch_size=4, collate_fn=padded)
    model, optimizer, loader = make_private(model, optimizer, data, loss_reduction="sum")
    for words, _ in loader:
        optimizer.zero_grad()
        loss(model(words), words).backward()
        optimizer.step()


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.classes, self.size = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.body(x))
        return self.classes(h), self.size(h)


@right(vectors)
def two_heads_and_two_losses(rows: Rows, make_private: MakePrivate) -> None:
    model = TwoHeads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4)
    for x, y in loader:
        optimizer.zero_grad()
        classes, size = model(x)
        (F.cross_entropy(classes, y) + 0.3 * F.mse_loss(size, x.norm(dim=1, keepdim=True))).backward()
        optimizer.step()


class Auxiliary(nn.Module):
    """Returns its loss itself, an auxiliary one at half depth included."""

    def __init__(self) -> None:
        super().__init__()
        self.lower, self.upper, self.early, self.late = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3), nn.Linear(8, 3)  # fmt: skip # noqa: E501

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        h = torch.tanh(self.lower(x))
        logits = self.late(torch.tanh(self.upper(h)))
        return {"loss": F.cross_entropy(logits, y) + 0.4 * F.cross_entropy(self.early(h), y), "logits": logits}


@right(vectors)
def a_model_that_returns_its_loss(rows: Rows, make_private: MakePrivate) -> None:
    model = Auxiliary()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4)
    for x, y in loader:
        optimizer.zero_grad()
        model(x, y)["loss"].backward()
        optimizer.step()


class VAE(nn.Module):
    """The random numbers of a row come with the row, so that the oracle has the same."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 4), two_layers(2, 6)

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        return self.decoder(mean + noise * (log_variance / 2).exp()), mean, log_variance


@right(pairs)
def a_variational_autoencoder(rows: Rows, make_private: MakePrivate) -> None:
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4, loss_reduction="sum")
    for x, noise, _ in loader:
        optimizer.zero_grad()
        again, mean, log_variance = model(x, noise[:, :2])
        divergence = -0.5 * torch.sum(1 + log_variance - mean.square() - log_variance.exp())
        (F.mse_loss(again, x, reduction="sum") + divergence).backward()
        optimizer.step()


@right(vectors, random=True)
def a_variational_autoencoder_with_numbers_of_its_own(rows: Rows, make_private: MakePrivate) -> None:
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4, loss_reduction="sum")
    for x, _ in loader:
        optimizer.zero_grad()
        again, mean, log_variance = model(x, torch.randn(len(x), 2))
        divergence = -0.5 * torch.sum(1 + log_variance - mean.square() - log_variance.exp())
        (F.mse_loss(again, x, reduction="sum") + divergence).backward()
        optimizer.step()


@right(vectors)
def distillation_from_a_public_teacher(rows: Rows, make_private: MakePrivate) -> None:
    teacher = two_layers().eval()
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4)
    for x, y in loader:
        with torch.no_grad():
            taught = teacher(x).div(2).softmax(1)
        optimizer.zero_grad()
        logits = model(x)
        soft = F.kl_div(logits.div(2).log_softmax(1), taught, reduction="batchmean")
        (0.5 * F.cross_entropy(logits, y) + 0.5 * soft).backward()
        optimizer.step()


class Reverse(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return -0.3 * gradient


class Adversarial(nn.Module):
    """Domain adaptation: the features shall not tell the domain."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.classes, self.domain = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.features(x))
        return self.classes(h), self.domain(Reverse.apply(h))


@right(vectors)
def gradient_reversal(rows: Rows, make_private: MakePrivate) -> None:
    model = Adversarial()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4)
    for x, y in loader:
        optimizer.zero_grad()
        classes, domain = model(x)
        (F.cross_entropy(classes, y) + F.cross_entropy(domain, (x[:, 0] > 0).long())).backward()
        optimizer.step()


class StraightThrough(nn.Module):
    """Rounds on the way there, and does not on the way back."""

    def forward(self, x: Tensor) -> Tensor:
        return x + (x.round() - x).detach()


@right(vectors)
def a_straight_through_estimator(rows: Rows, make_private: MakePrivate) -> None:
    fit(nn.Sequential(nn.Linear(6, 8), StraightThrough(), nn.Linear(8, 3)), rows, make_private)


@right(vectors)
def a_tensor_hook_that_scales(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4)
    for x, y in loader:
        optimizer.zero_grad()
        logits = model(x)
        logits.register_hook(lambda gradient: gradient * 0.5)
        F.cross_entropy(logits, y).backward()
        optimizer.step()


@right(vectors)
def a_backward_hook_that_clips_every_element(rows: Rows, make_private: MakePrivate) -> None:
    """Each row's gradient from that row alone. Under a mean loss it would see gradients divided by the batch's size."""
    model = two_layers()
    model[1].register_full_backward_hook(lambda module, before, after: (before[0].clamp(-0.01, 0.01),))
    fit(model, rows, make_private, nn.CrossEntropyLoss(reduction="sum"), loss_reduction="sum")


@right(vectors)
def adversarial_examples_made_outside_of_the_private_model(rows: Rows, make_private: MakePrivate) -> None:
    surrogate = two_layers()
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4)
    for x, y in loader:
        moved = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(F.cross_entropy(surrogate(moved), y, reduction="sum"), moved)
        optimizer.zero_grad()
        F.cross_entropy(model(x + 0.1 * slope.sign()), y).backward()
        optimizer.step()
