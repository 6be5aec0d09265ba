"""Right programs that look as if examples met in their loss, as if a hook mixed them, or as if something were trained
beside the private model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.programs.corpus import Rows, right
from tests.programs.examples import images, measurements, pairs, sequences, tagged, texts, vectors
from tests.programs.loops import fit, two_layers
from tests.programs.running import MakePrivate

Loss = Callable[[Tensor, Tensor], Tensor]


def _plain(rows: Callable[[], Rows] = vectors, outputs: int = 3, **options: Any) -> Callable[[Loss], Loss]:
    """A program that trains with a loss of this name."""

    def register(loss: Loss) -> Loss:
        def program(rows: Rows, make_private: MakePrivate) -> None:
            fit(two_layers(outputs=outputs), rows, make_private, loss, **options)

        program.__name__ = loss.__name__
        right(rows)(program)
        return loss

    return register


@_plain(measurements)
def a_mean_of_norms(output: Tensor, y: Tensor) -> Tensor:
    return (output - y).norm(dim=1).mean()


@_plain(measurements)
def a_correlation_within_each_example(output: Tensor, y: Tensor) -> Tensor:
    a, b = output - output.mean(1, keepdim=True), torch.tensor([-1.0, 0.5, 2.0]) * y
    return (1 - F.cosine_similarity(a, b, dim=1)).mean()


@_plain(tagged, outputs=4)
def soft_dice_of_each_example(output: Tensor, y: Tensor) -> Tensor:
    p = output.sigmoid()
    return (1 - 2 * (p * y).sum(1) / (p.sum(1) + y.sum(1) + 1)).mean()


@_plain()
def every_example_s_own_entropy(output: Tensor, y: Tensor) -> Tensor:
    p = output.softmax(1)
    return F.cross_entropy(output, y) - 0.1 * (p * p.log()).sum(1).mean()


@_plain()
def the_two_largest_logits_of_each_example(output: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(output, y) + 0.1 * output.topk(2).values.diff().square().mean()


@_plain()
def a_product_of_the_terms_of_each_example(output: Tensor, y: Tensor) -> Tensor:
    losses = F.cross_entropy(output, y, reduction="none")
    return (losses * losses.sigmoid() / (1 + output.norm(dim=1))).sum() / len(y)


@_plain()
def prototypes_that_are_public(output: Tensor, y: Tensor) -> Tensor:
    """[B, 3] similarities, of every example with fixed points."""
    return F.cross_entropy(-torch.cdist(output, torch.eye(3)) / 0.5, y)


@_plain()
def parts_of_a_loss_in_a_list(output: Tensor, y: Tensor) -> Tensor:
    parts = [F.cross_entropy(output, y), 0.1 * output.abs().mean(), 0.1 * F.relu(output - 1).sum() / len(y)]
    return sum(parts, torch.zeros(())) / 4


@_plain()
def a_sum_over_rows_of_a_mean_over_columns(output: Tensor, y: Tensor) -> Tensor:
    return F.one_hot(y, 3).sub(output).square().mean(1).sum(0) / len(y) / 2.5


@_plain()
def one_term_for_each_class(output: Tensor, y: Tensor) -> Tensor:
    """[3], each of them a mean over all examples, and added up."""
    return (F.one_hot(y, 3) * -output.log_softmax(1)).mean(0).sum()


@_plain()
def a_loss_clamped_for_every_example(output: Tensor, y: Tensor) -> Tensor:
    return (F.cross_entropy(output, y, reduction="none") - 0.1).abs().clamp(max=5).mean()


@_plain(loss_reduction="sum")
def a_sum_divided_by_a_constant(output: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(output, y, reduction="sum") / torch.tensor(4)


@right(pairs)
def pairs_within_an_example_by_their_similarity(rows: Rows, make_private: MakePrivate) -> None:
    """[B, 2, 2] logits."""
    model = two_layers()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for a, b, _ in loader:
        optimizer.zero_grad()
        z = F.normalize(model(torch.stack([a, b], 1)), dim=2)
        logits = (z @ z.mT).flatten(0, 1)
        F.cross_entropy(logits, torch.arange(2).repeat(len(a))).backward()
        optimizer.step()


@right(texts, random=True)
def two_views_of_an_example_that_are_compared(rows: Rows, make_private: MakePrivate) -> None:
    """They may meet: they are one example's."""
    model = nn.Sequential(nn.Embedding(11, 6), nn.Flatten(), nn.Linear(30, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4, views=2)
    for words, _ in loader:
        optimizer.zero_grad()
        words = torch.where(torch.rand(words.shape) < 0.3, 0, words)
        one, other = model(words).unflatten(0, (-1, 2)).unbind(1)
        (1 - F.cosine_similarity(one, other)).mean().backward()
        optimizer.step()


class Sequence(nn.Module):
    """Time comes first in what it returns; as many steps as there are examples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).transpose(0, 1)


@right(lambda: sequences(4))
def steps_of_a_sequence_that_meet_where_time_comes_first(rows: Rows, make_private: MakePrivate) -> None:
    fit(Sequence(), rows, make_private, lambda out, y: (out - out.mean(0)).square().sum(2).sqrt().mean())


class Both(nn.Module):
    """Returns what a layer gets and what it makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = torch.tanh(self.body(x))
        return {"hidden": hidden, "logits": self.head(hidden)}


@right(vectors)
def a_loss_on_hidden_numbers_and_on_logits(rows: Rows, make_private: MakePrivate) -> None:
    def loss(out: dict[str, Tensor], y: Tensor) -> Tensor:
        return F.cross_entropy(out["logits"], y) + 0.1 * out["hidden"].square().sum(1).sqrt().mean()

    fit(Both(), rows, make_private, loss)


@right(images)
def a_loss_that_goes_through_the_head_once_more(rows: Rows, make_private: MakePrivate) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Conv2d(1, 2, 3, padding=1), nn.Linear(128, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            logits = self.head(torch.tanh(self.body(x)).flatten(1))
            return logits, logits.detach().softmax(1)

    fit(Twice(), rows, make_private, lambda out, y: F.cross_entropy(out[0], y) + (out[0] * out[1]).sum(1).mean())


# Hooks on what the model returns.


def hooked(rows: Rows, make_private: MakePrivate, hook: Callable[[Tensor], Any], **options: Any) -> None:
    model = two_layers()
    private = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4, **options)
    for x, y in private.loader:
        private.optimizer.zero_grad()
        output = model(x)
        output.register_hook(hook)
        F.cross_entropy(output, y, reduction="sum").backward()
        private.optimizer.step()


@right(vectors)
def a_hook_on_the_outputs_that_clips_every_row(rows: Rows, make_private: MakePrivate) -> None:
    def clip(gradient: Tensor) -> Tensor:
        return gradient * (0.3 / gradient.norm(dim=1, keepdim=True)).clamp(max=1)

    hooked(rows, make_private, clip, loss_reduction="sum")


@right(vectors)
def a_hook_on_the_outputs_that_is_asked_once_a_pass(rows: Rows, make_private: MakePrivate) -> None:
    """It only looks, at what the pass brings and nothing else."""
    seen: list[Tensor] = []
    hooked(rows, make_private, seen.append, loss_reduction="sum")
    assert len(seen) == 1
    assert not seen[0].requires_grad


@right(vectors)
def gradients_of_the_outputs_are_kept(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for x, y in loader:
        optimizer.zero_grad()
        output = model(x)
        output.retain_grad()
        F.cross_entropy(output, y).backward()
        want = (output.detach().softmax(1) - F.one_hot(y, 3)) / len(y)
        assert torch.allclose(output.grad, want, atol=1e-6, equal_nan=True)
        optimizer.step()


# Beside the private model.


@right(vectors)
def a_backbone_below_the_model_that_nobody_steps(rows: Rows, make_private: MakePrivate) -> None:
    backbone, model = nn.Linear(6, 6), two_layers()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(backbone(x)), y).backward()
        optimizer.step()


@right(vectors)
def a_second_model_that_is_trained_on_public_data(rows: Rows, make_private: MakePrivate) -> None:
    public, model = nn.Linear(6, 6), two_layers()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    theirs = torch.optim.SGD(public.parameters(), lr=0.1)
    for x, y in loader:
        theirs.zero_grad()
        public(torch.ones(3, 6)).square().mean().sqrt().backward()
        theirs.step()
        optimizer.zero_grad()
        F.cross_entropy(model(public(x).detach()), y).backward()
        optimizer.step()


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = two_layers(6, 1)

    def forward(self, real: Tensor, fake: Tensor) -> tuple[Tensor, Tensor]:
        return self.main(real), self.main(fake)


@right(pairs)
def a_gan_whose_fakes_are_not_detached(rows: Rows, make_private: MakePrivate) -> None:
    """The critic's pass leaves gradients on the generator, which are dropped before the generator's own."""
    generator, critic = nn.Linear(2, 6), Critic()
    critic, optimizer, loader = make_private(critic, torch.optim.SGD(critic.parameters(), lr=0.1), rows, batch_size=4)
    theirs = torch.optim.SGD(generator.parameters(), lr=0.1)
    for to_none in (True, False):
        for real, noise, _ in loader:
            optimizer.zero_grad()
            on_real, on_fake = critic(real, generator(noise[:, :2]))
            (F.softplus(-on_real) + F.softplus(on_fake)).mean().backward()
            optimizer.step()
            theirs.zero_grad(set_to_none=to_none)
            says = critic.main(generator(torch.ones(len(real), 2)))
            F.softplus(-says.mean()).backward(inputs=list(generator.parameters()))
            theirs.step()


# Adversarial examples.


@right(vectors)
def adversarial_examples_by_two_backward_passes(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for x, y in loader:
        x.requires_grad_()
        F.cross_entropy(model(x), y).backward()
        moved = (x + 0.1 * x.grad.sign()).detach()
        optimizer.zero_grad()
        F.cross_entropy(model(moved), y).backward()
        optimizer.step()


@right(vectors)
def projected_steps_with_an_optimizer_for_the_shift(rows: Rows, make_private: MakePrivate) -> None:
    """Each example has a shift of its own, in a tensor that lives as long as its batch."""
    model = two_layers()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for x, y in loader:
        shift = torch.zeros_like(x, requires_grad=True)
        attack = torch.optim.SGD([shift], lr=0.1, maximize=True)
        for _ in range(3):
            attack.zero_grad()
            F.cross_entropy(model(x + shift), y, reduction="sum").div(len(y)).backward()
            shift.grad.sign_()
            attack.step()
            optimizer.zero_grad()
        F.cross_entropy(model(x + shift.detach()), y).backward()
        optimizer.step()


@right(vectors)
def slopes_of_the_inputs_in_chunks(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4, max_physical_batch=3)
    for x, y in loader:
        x.requires_grad_()
        (slope,) = torch.autograd.grad(F.cross_entropy(model(x), y), x)
        optimizer.zero_grad()
        F.cross_entropy(model((x + 0.1 * slope.sign()).detach()), y).backward()
        optimizer.step()
