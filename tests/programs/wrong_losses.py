"""Wrong programs: losses and gradients in which examples have a say in each other's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

import hoarfrost
from hoarfrost.errors import NotPrivate
from tests.programs.corpus import Holds, Rows, refused, told, wrong
from tests.programs.examples import pairs, texts_of_any_length, vectors
from tests.programs.loops import fit, padded, two_layers
from tests.programs.running import MakePrivate


def one_class(n: int = 8) -> Rows:
    """All of the same, common class."""
    return [(x, torch.tensor(0)) for x, _ in vectors(n)]


def of_the_rare_class() -> Rows:
    return [(vectors(1)[0][0] * 0.1, torch.tensor(1))]


def long_texts() -> Rows:
    g = torch.Generator().manual_seed(3)
    return [(torch.randint(1, 11, (60,), generator=g), torch.tensor(0))]


def numbers_and_scalars() -> Rows:
    """(numbers [6], a real target without a dimension)"""
    return [(x, x.sum()) for x, _ in vectors()]


@wrong(one_class, told("class weights"), newcomers=of_the_rare_class)
def class_weights_in_a_mean(rows: Rows, make_private: MakePrivate) -> None:
    """The mean divides by the summed weights of the batch."""
    fit(two_layers(), rows, make_private, nn.CrossEntropyLoss(weight=torch.tensor([1.0, 100.0, 1.0])))


@wrong(one_class, told("class weights"), newcomers=of_the_rare_class)
def extreme_class_weights_in_a_mean(rows: Rows, make_private: MakePrivate) -> None:
    fit(two_layers(), rows, make_private, nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1000.0, 1.0])))


@wrong(numbers_and_scalars, told("mean over", "example"))
def a_column_against_a_row_of_targets(rows: Rows, make_private: MakePrivate) -> None:
    """[B, 1] against [B] is [B, B]: every example is compared with every target."""
    fit(two_layers(outputs=1), rows, make_private, F.mse_loss)


def train_language_model(rows: Rows, make_private: MakePrivate, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, DataLoader(rows, batch_size=4, collate_fn=padded))
    for words, _ in loader:
        optimizer.zero_grad()
        loss(model(words[:, :-1]).transpose(1, 2), words[:, 1:]).backward()
        optimizer.step()


@wrong(texts_of_any_length, told("mean over", "example"), newcomers=long_texts)
def a_mean_over_all_words_with_padding(rows: Rows, make_private: MakePrivate) -> None:
    """The longest text decides by how much all are divided."""
    train_language_model(rows, make_private, F.cross_entropy)


@wrong(texts_of_any_length, told("mean over", "example"), newcomers=long_texts)
def a_mean_over_all_words_that_are_not_ignored(rows: Rows, make_private: MakePrivate) -> None:
    train_language_model(rows, make_private, nn.CrossEntropyLoss(ignore_index=0))


@wrong(texts_of_any_length, told("mean over", "example"), newcomers=long_texts)
def words_divided_by_how_many_the_batch_has(rows: Rows, make_private: MakePrivate) -> None:
    def loss(logits: Tensor, words: Tensor) -> Tensor:
        losses = F.cross_entropy(logits, words, reduction="none", ignore_index=0)
        return losses.sum() / (words != 0).sum()

    train_language_model(rows, make_private, loss)


@wrong(texts_of_any_length, told("mean over", "example"), newcomers=long_texts)
def a_transformers_model_with_its_own_loss(rows: Rows, make_private: MakePrivate) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=11, n_positions=64, n_embd=8, n_layer=1, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)  # fmt: skip # noqa: E501
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, DataLoader(rows, batch_size=4, collate_fn=padded))
    for words, _ in loader:
        optimizer.zero_grad()
        model(input_ids=words, labels=words.masked_fill(words == 0, -100)).loss.backward()
        optimizer.step()


# The backward pass.


def divided_by_norm(gradient: Tensor) -> Tensor:
    return gradient / gradient.norm()


@wrong(vectors, refused("gradient", "example"))
def a_tensor_hook_that_divides_by_the_batch_s_norm(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4)
    for x, y in loader:
        optimizer.zero_grad()
        logits = model(x)
        logits.register_hook(divided_by_norm)
        F.cross_entropy(logits, y).backward()
        optimizer.step()


class Hooked(nn.Module):
    """The hook is inside of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.lower, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.lower(x))
        if h.requires_grad:
            h.register_hook(divided_by_norm)
        return self.head(h)


@wrong(vectors, refused("lower"))
def a_hook_inside_the_model_that_divides_by_the_batch_s_norm(rows: Rows, make_private: MakePrivate) -> None:
    fit(Hooked(), rows, make_private)


@wrong(vectors, refused("0"))
def a_backward_hook_that_divides_by_the_batch_s_norm(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    model[1].register_full_backward_hook(lambda module, before, after: (divided_by_norm(before[0]),))
    fit(model, rows, make_private)


# What check_independence has to notice, 40 times out of 40.


def refuses_forty_times(model: nn.Module, loss: Any, batch: Callable[[torch.Generator], Any]) -> bool:
    caught = 0
    for seed in range(40):
        try:
            hoarfrost.check_independence(model, batch(torch.Generator().manual_seed(seed)), loss)
        except NotPrivate:
            caught += 1
    return caught == 40


def numbers(g: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(8, 6, generator=g), torch.randint(3, (8,), generator=g)


FORTY = Holds("check_independence refuses it on 40 batches of 40")


def _checked(name: str, loss: Callable[[Tensor, Any], Tensor]) -> None:
    def program(rows: Rows, make_private: MakePrivate) -> bool:
        return refuses_forty_times(two_layers(), loss, numbers)

    program.__name__ = f"check_independence_on_{name}"
    wrong(vectors, FORTY)(program)


def each(output: Tensor, batch: Any) -> Tensor:
    return F.cross_entropy(output, batch[1], reduction="none")


def focal_over_maximum(output: Tensor, batch: Any) -> Tensor:
    losses = each(output, batch)
    return (losses * (losses / losses.detach().max()) ** 2).mean()


def value_at_risk(output: Tensor, batch: Any) -> Tensor:
    losses = each(output, batch)
    return losses[losses >= losses.detach().quantile(0.75)].sum() / len(losses)


def hardest_quarter(output: Tensor, batch: Any) -> Tensor:
    losses = each(output, batch)
    return losses.topk(len(losses) // 4).values.mean()


def class_weighted(output: Tensor, batch: Any) -> Tensor:
    return F.cross_entropy(output, batch[1], weight=torch.tensor([1.0, 10.0, 100.0]))


def contrastive(output: Tensor, batch: Any) -> Tensor:
    return F.cross_entropy(output @ output.T, torch.arange(len(output)))


def batch_standardised(output: Tensor, batch: Any) -> Tensor:
    return (each(output, batch) * F.layer_norm(batch[0][:, 0], (len(output),))).mean()


def variance_over_the_batch(output: Tensor, batch: Any) -> Tensor:
    return each(output, batch).mean() + F.relu(1 - output.std(0)).mean()


for _loss in (
    focal_over_maximum, value_at_risk, hardest_quarter, class_weighted, contrastive, batch_standardised,
    variance_over_the_batch,
):  # fmt: skip
    _checked(_loss.__name__, _loss)


@wrong(texts_of_any_length, FORTY)
def check_independence_on_a_mean_over_padded_words(rows: Rows, make_private: MakePrivate) -> bool:
    """The longest text must be left out, and the rest collated again: only then it shows."""

    def loss(output: Tensor, batch: Any) -> Tensor:
        return F.cross_entropy(output.transpose(1, 2), batch[0])

    caught = 0
    model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11))
    for seed in range(40):
        g = torch.Generator().manual_seed(seed)
        lengths = [2, 3, 3, 9]
        some = [(torch.randint(1, 11, (n,), generator=g), torch.tensor(0)) for n in lengths]
        try:
            hoarfrost.check_independence(model, range(4), loss, dataset=some, collate=padded)
        except NotPrivate:
            caught += 1
    return caught == 40


@wrong(vectors, refused("example"))
def check_independence_on_a_collate_function_that_mixes(rows: Rows, make_private: MakePrivate) -> None:
    def mixed_up(some: list[Any]) -> tuple[Tensor, Tensor]:
        x, y = torch.stack([x for x, _ in some]), torch.stack([y for _, y in some])
        return 0.7 * x + 0.3 * x.flip(0), y

    def loss(output: Tensor, batch: Any) -> Tensor:
        return F.cross_entropy(output, batch[1])

    hoarfrost.check_independence(two_layers(), range(6), loss, dataset=rows, collate=mixed_up)


# A loss that cannot mix.


@wrong(vectors, refused("one loss", "example"))
def the_batch_s_mean_handed_to_backward(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    private = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for x, y in private.loader:
        private.optimizer.zero_grad()
        private.optimizer.backward(F.cross_entropy(model(x), y))
        private.optimizer.step()


@wrong(vectors, refused("loss", "example"))
def a_mixing_loss_named_to_make_private(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    private = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4, loss=contrastive)
    for x, y in private.loader:
        private.optimizer.zero_grad()
        contrastive(model(x), (x, y)).backward()
        private.optimizer.step()


@wrong(pairs, refused("example"), newcomers=lambda: [(torch.full((6,), 30.0), torch.ones(6), torch.tensor(1.0))])
def clip_logits_of_two_towers(rows: Rows, make_private: MakePrivate) -> None:
    """[B, B] logits: every picture against every text."""

    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 4), nn.Linear(6, 4)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return F.normalize(self.a(a), dim=1) @ F.normalize(self.b(b), dim=1).T

    model = Towers()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for a, b, _ in loader:
        optimizer.zero_grad()
        logits = model(a, b)
        target = torch.arange(len(a))
        (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)).div(2).backward()
        optimizer.step()
