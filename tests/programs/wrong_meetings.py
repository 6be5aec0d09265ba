"""Wrong programs: a plain `loss.backward()` in which examples meet, and what is trained beside the private model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tests.programs.corpus import Outcome, Rows, refused, told, wrong
from tests.programs.examples import measurements, pairs, tagged, texts_of_any_length, vectors
from tests.programs.loops import fit, padded, two_layers
from tests.programs.running import MakePrivate

MEET = refused("loss.backward()", "other examples", "optimizer.backward(losses)")
TOLD = told("example", "optimizer.backward(losses)")

Loss = Callable[[Tensor, Tensor], Tensor]


def _plain(
    rows: Callable[[], Rows] = vectors, outputs: int = 3, must: Outcome = MEET, **options: Any
) -> Callable[[Loss], Loss]:
    """A program that trains with a loss of this name."""

    def register(loss: Loss) -> Loss:
        def program(rows: Rows, make_private: MakePrivate) -> None:
            fit(two_layers(outputs=outputs), rows, make_private, loss, **options)

        program.__name__ = f"a_plain_backward_of_{loss.__name__}"
        wrong(rows, must)(program)
        return loss

    return register


@_plain(measurements, outputs=1)
def pearson_correlation(output: Tensor, y: Tensor) -> Tensor:
    a, b = output[:, 0] - output[:, 0].mean(), y[:, 0] - y[:, 0].mean()
    return 1 - (a * b).sum() / (a.norm() * b.norm())


@_plain(measurements, outputs=1)
def the_root_of_a_mean(output: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(output, y).sqrt()


@_plain(measurements, outputs=1)
def a_squared_mean(output: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(output, y) ** 2


@_plain(measurements, outputs=1)
def cox_partial_likelihood(output: Tensor, y: Tensor) -> Tensor:
    """Everyone's risk against that of all who were still there."""
    risk = output[y[:, 0].argsort(descending=True), 0]
    return (risk.logcumsumexp(0) - risk).mean()


@_plain(tagged, outputs=4)
def soft_dice_over_the_batch(output: Tensor, y: Tensor) -> Tensor:
    p = output.sigmoid()
    return 1 - 2 * (p * y).sum() / (p.sum() + y.sum())


@_plain()
def cross_entropy_and_the_entropy_of_the_mean_prediction(output: Tensor, y: Tensor) -> Tensor:
    p = output.softmax(1).mean(0)
    return F.cross_entropy(output, y) + 0.1 * (p * p.log()).sum()


@_plain()
def similarities_of_all_with_all(output: Tensor, y: Tensor) -> Tensor:
    z = F.normalize(output, dim=1)
    return F.cross_entropy(z @ z.T / 0.1, torch.arange(len(z)))


@_plain()
def supervised_contrast(output: Tensor, y: Tensor) -> Tensor:
    z = F.normalize(output, dim=1)
    logits = (z @ z.T / 0.5).log_softmax(1)
    same = (y[:, None] == y).float()
    return -((logits * same).sum(1) / same.sum(1)).mean()


@_plain()
def logits_less_their_mean_over_the_batch(output: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(output - output.mean(0), y)


@_plain()
def logits_normalised_over_the_batch(output: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy((output - output.mean(0)) / (output.std(0) + 1e-5), y)


@_plain()
def softmax_over_the_wrong_dimension(output: Tensor, y: Tensor) -> Tensor:
    return F.nll_loss(output.log_softmax(0), y)


@_plain()
def variance_and_covariance_over_the_batch(output: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(output, y) + F.relu(1 - output.std(0)).mean()


@_plain()
def losses_weighted_by_a_softmax_over_the_batch(output: Tensor, y: Tensor) -> Tensor:
    losses = F.cross_entropy(output, y, reduction="none")
    return (losses.softmax(0) * losses).sum()


@_plain(loss_reduction="sum")
def the_log_of_a_sum(output: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(output, y, reduction="sum").log()


@_plain(must=TOLD)
def the_hardest_half(output: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(output, y, reduction="none").topk(len(y) // 2).values.sum() / len(y)


@_plain(must=TOLD)
def the_hardest_example(output: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(output, y, reduction="none").max()


@_plain(must=TOLD)
def sorted_losses_with_weights_by_rank(output: Tensor, y: Tensor) -> Tensor:
    losses = F.cross_entropy(output, y, reduction="none").sort().values
    return (losses * torch.linspace(0, 2, len(y))).mean()


@_plain(must=TOLD)
def flooding(output: Tensor, y: Tensor) -> Tensor:
    """Below 0.1, all examples' gradients change their sign."""
    return (F.cross_entropy(output, y) - 0.1).abs() + 0.1


# Where a loss has a kink, its second derivative is zero, whoever decides on which side an example lies.


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


@wrong(pairs, MEET)
def two_towers_compared_in_the_loop(rows: Rows, make_private: MakePrivate) -> None:
    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 4), nn.Linear(6, 4)

        def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            return self.a(a), self.b(b)

    model = Towers()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for a, b, _ in loader:
        optimizer.zero_grad()
        left, right = model(a, b)
        F.cross_entropy(left @ right.T, torch.arange(len(a))).backward()
        optimizer.step()


# Divided by what the batch has, without a gradient.


@wrong(texts_of_any_length, told("mean over", "example"))
def words_of_a_fixed_length_of_which_some_are_ignored(rows: Rows, make_private: MakePrivate) -> None:
    """Shapes do not tell it: how many words count is in their numbers."""
    fixed = [(F.pad(words, (0, 8 - len(words))), y) for words, y in rows]
    model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11))
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), fixed, batch_size=4)
    for words, _ in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(words[:, :-1]).transpose(1, 2), words[:, 1:], ignore_index=0).backward()
        optimizer.step()


@wrong(texts_of_any_length, told("mean over", "example"))
def masked_words_divided_by_the_mask_s_sum(rows: Rows, make_private: MakePrivate) -> None:
    model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11))
    fixed = [(F.pad(words, (0, 8 - len(words))), y) for words, y in rows]
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), fixed, batch_size=4)
    for words, _ in loader:
        optimizer.zero_grad()
        mask = (words[:, 1:] != 0).float()
        losses = F.cross_entropy(model(words[:, :-1]).transpose(1, 2), words[:, 1:], reduction="none")
        ((losses * mask).sum() / mask.sum()).backward()
        optimizer.step()


@wrong(vectors, told("mean over", "example"))
def class_weights_divided_by_their_sum_by_hand(rows: Rows, make_private: MakePrivate) -> None:
    weight = torch.tensor([1.0, 10.0, 100.0])

    def loss(output: Tensor, y: Tensor) -> Tensor:
        return (F.cross_entropy(output, y, reduction="none") * weight[y]).sum() / weight[y].sum()

    fit(two_layers(), rows, make_private, loss)


@wrong(vectors, told("mean over", "example"))
def a_sum_divided_by_the_batch_size_that_was_asked_for(rows: Rows, make_private: MakePrivate) -> None:
    """Poisson batches have other sizes, and the sum of a larger one counts more for each of its examples."""
    fit(two_layers(), rows, make_private, lambda out, y: F.cross_entropy(out, y, reduction="sum") / 4)


# Hooks on what the model returns.


def with_a_hook(rows: Rows, make_private: MakePrivate, hook: Any, **options: Any) -> None:
    model = two_layers()
    private = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4, **options)
    for x, y in private.loader:
        private.optimizer.zero_grad()
        output = model(x)
        output.register_hook(hook)
        private.optimizer.backward(F.cross_entropy(output, y, reduction="none"))
        private.optimizer.step()


@wrong(vectors, refused("hook", "other examples"))
def a_hook_on_the_outputs_that_clips_the_batch_s_norm(rows: Rows, make_private: MakePrivate) -> None:
    """It does nothing yet, and would if one example were larger."""
    with_a_hook(rows, make_private, lambda g: g * (100 / g.norm()).clamp(max=1))


@wrong(vectors, refused("hook", "other examples"))
def a_hook_on_the_outputs_that_subtracts_a_mean_in_place(rows: Rows, make_private: MakePrivate) -> None:
    def centre(gradient: Tensor) -> None:
        gradient.sub_(gradient.mean(0))

    with_a_hook(rows, make_private, centre)


# Trained beside the private model.


def beside(rows: Rows, make_private: MakePrivate, other: nn.Module, loss: Any) -> None:
    """A loop with a second optimizer, for what is no part of the model."""
    model = two_layers()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    theirs = torch.optim.SGD(other.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        theirs.zero_grad()
        loss(model(x), y, other).backward()
        optimizer.step()
        theirs.step()


OUTSIDE = refused("another optimizer", "not part of the private model", "one nn.Module")


class Weights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.logs = nn.Parameter(torch.zeros(2))


@wrong(vectors, OUTSIDE)
def loss_weights_that_are_learned_beside_the_model(rows: Rows, make_private: MakePrivate) -> None:
    def loss(output: Tensor, y: Tensor, weights: Weights) -> Tensor:
        losses = torch.stack([F.cross_entropy(output, y), output.square().mean()])
        return (losses * (-weights.logs).exp() + weights.logs).sum()

    beside(rows, make_private, Weights(), loss)


@wrong(vectors, OUTSIDE)
def a_head_that_is_trained_beside_the_model(rows: Rows, make_private: MakePrivate) -> None:
    beside(rows, make_private, nn.Linear(3, 3), lambda output, y, head: F.cross_entropy(head(output), y))


@wrong(vectors, OUTSIDE)
def a_learned_temperature_with_one_loss_for_each_example(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    temperature = torch.tensor(1.0, requires_grad=True)
    theirs = torch.optim.SGD([temperature], lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        theirs.zero_grad()
        optimizer.backward(F.cross_entropy(model(x) / temperature, y, reduction="none"))
        theirs.step()
        optimizer.step()


@wrong(vectors, OUTSIDE)
def an_encoder_below_the_model_with_an_optimizer_of_its_own(rows: Rows, make_private: MakePrivate) -> None:
    encoder, model = nn.Linear(6, 6), two_layers()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    theirs = torch.optim.SGD(encoder.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        theirs.zero_grad(set_to_none=False)
        F.cross_entropy(model(encoder(x)), y).backward()
        optimizer.step()
        theirs.step()


@wrong(lambda: vectors(60), OUTSIDE)
def a_temperature_that_is_learned_after_a_while(rows: Rows, make_private: MakePrivate) -> None:
    """The passes that are looked at anyway are over when it begins."""
    model = two_layers()
    model, optimizer, loader = make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4, max_physical_batch=2
    )
    temperature = nn.Parameter(torch.tensor(1.0), requires_grad=False)
    theirs = torch.optim.SGD([temperature], lr=0.1)
    for number, (x, y) in enumerate(loader):
        temperature.requires_grad_(number >= 20)
        optimizer.zero_grad()
        F.cross_entropy(model(x) / temperature, y).backward()
        optimizer.step()
        theirs.step()


# Chunks.


@wrong(vectors, refused("two runs", "torch.autograd.grad(loss, x)"))
def adversarial_examples_by_two_backward_passes_in_chunks(rows: Rows, make_private: MakePrivate) -> None:
    """Chunks that were summed before are kept by zero_grad, and with them this one's first pass."""
    model = two_layers()
    private = make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(rows, batch_size=4), max_physical_batch=3
    )
    model, optimizer, loader = private
    for x, y in loader:
        x.requires_grad_()
        F.cross_entropy(model(x), y).backward()
        moved = (x + 0.1 * x.grad.sign()).detach()
        optimizer.zero_grad()
        F.cross_entropy(model(moved), y).backward()
        optimizer.step()


@wrong(texts_of_any_length, told("mean over", "example"))
def words_divided_by_how_many_a_number_of_python_says(rows: Rows, make_private: MakePrivate) -> None:
    model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, DataLoader(rows, batch_size=4, collate_fn=padded))
    for words, _ in loader:
        optimizer.zero_grad()
        output = model(words[:, :-1]).transpose(1, 2)
        loss = F.cross_entropy(output, words[:, 1:], reduction="sum", ignore_index=0)
        (loss / int((words[:, 1:] != 0).sum())).backward()
        optimizer.step()
