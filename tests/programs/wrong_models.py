"""Wrong programs: models in which examples mix, or that keep something of the data."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import hoarfrost
from tests.programs.corpus import Private, Rows, refused, wrong
from tests.programs.examples import colour_images, sequences, texts, texts_of_any_length, vectors
from tests.programs.loops import fit, padded, two_layers
from tests.programs.running import MakePrivate

# Layers that are known for it.


@wrong(colour_images, refused("1 (BatchNorm2d)", "make_compatible"))
def batch_norm(rows: Rows, make_private: MakePrivate) -> None:
    fit(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3)), rows, make_private)


@wrong(vectors, refused("1 (BatchNorm1d)", "make_compatible"))
def batch_norm_without_parameters(rows: Rows, make_private: MakePrivate) -> None:
    fit(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, affine=False), nn.Linear(8, 3)), rows, make_private)


@wrong(colour_images, refused("1 (InstanceNorm2d)", "track_running_stats=False"))
def instance_norm_with_running_statistics(rows: Rows, make_private: MakePrivate) -> None:
    norm = nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
    fit(nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.Flatten(), nn.Linear(144, 3)), rows, make_private)


@wrong(texts, refused("0", "scale_grad_by_freq=False"))
def an_embedding_scaled_by_frequency(rows: Rows, make_private: MakePrivate) -> None:
    fit(nn.Sequential(nn.Embedding(11, 4, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(20, 3)), rows, make_private)


@wrong(texts, refused("0", "max_norm=None"))
def an_embedding_with_a_largest_norm(rows: Rows, make_private: MakePrivate) -> None:
    fit(nn.Sequential(nn.Embedding(11, 4, max_norm=1.0), nn.Flatten(), nn.Linear(20, 3)), rows, make_private)


@wrong(vectors, refused("0.parametrizations"))
def spectral_norm_in_training_mode(rows: Rows, make_private: MakePrivate) -> None:
    fit(nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 8)), nn.Linear(8, 3)), rows, make_private)


class OverTheBatch(nn.Module):
    """Forgets batch_first=True."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.attention, self.head = nn.Linear(3, 4), nn.MultiheadAttention(4, 2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.lift(x)
        return self.head(self.attention(h, h, h)[0].mean(1))


@wrong(sequences, refused("attention (MultiheadAttention", "batch_first"))
def attention_over_the_batch(rows: Rows, make_private: MakePrivate) -> None:
    fit(OverTheBatch(), rows, make_private)


class SortsInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 4), nn.Linear(4, 3)

    def forward(self, words: Tensor) -> Tensor:
        order = (words != 0).sum(1).argsort(descending=True)
        return self.head(self.embedding(words[order]).mean(1))[order.argsort()]


@wrong(texts_of_any_length, refused("embedding", "another order"))
def texts_sorted_inside_the_model(rows: Rows, make_private: MakePrivate) -> None:
    fit(SortsInside(), DataLoader(rows, batch_size=4, collate_fn=padded), make_private)


# Models that mix where nobody looks.


class DynamicScale(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / x.detach().abs().max().clamp(min=1e-6)


@wrong(vectors, refused("example"))
def activations_divided_by_the_batch_s_maximum(rows: Rows, make_private: MakePrivate) -> None:
    fit(nn.Sequential(nn.Linear(6, 8), DynamicScale(), nn.Linear(8, 3)), rows, make_private)


class FakeQuantised(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        scale = x.detach().abs().max().clamp(min=1e-6) / 127
        return x + ((x / scale).round() * scale - x).detach()


@wrong(vectors, refused("example"), newcomers=lambda: [(torch.full((6,), 3000.0), torch.tensor(0))])
def int8_quantisation_by_the_batch_s_maximum(rows: Rows, make_private: MakePrivate) -> None:
    fit(nn.Sequential(nn.Linear(6, 8), FakeQuantised(), nn.Linear(8, 3)), rows, make_private)


@dataclass
class Output:
    logits: Tensor
    hidden: Tensor


class CentredOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Output:
        hidden = torch.tanh(self.body(x))
        logits = self.head(hidden)
        return Output(logits - logits.mean(0), hidden)


@wrong(vectors, refused("example"))
def centred_logits_in_a_dataclass(rows: Rows, make_private: MakePrivate) -> None:
    model = CentredOutput()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x).logits, y).backward()
        optimizer.step()


class CentredLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        logits = self.head(torch.tanh(self.body(x)))
        return F.cross_entropy(logits - logits.mean(0), y)


@wrong(vectors, refused("example"))
def centred_logits_in_a_model_that_returns_its_loss(rows: Rows, make_private: MakePrivate) -> None:
    model = CentredLoss()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for x, y in loader:
        optimizer.zero_grad()
        model(x, y).backward()
        optimizer.step()


class ReZero(nn.Module):
    """A branch that begins with nothing: a gate of 0, behind which the batch's mean waits."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.gate = two_layers(), nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return h + self.gate * (h - h.mean(0))


@wrong(vectors, refused("example"))
def a_gate_that_opens_later(rows: Rows, make_private: MakePrivate) -> None:
    model = ReZero()
    private = make_private(model, torch.optim.SGD(model.parameters(), lr=1.0), rows, batch_size=4)
    for _ in range(60):
        for x, y in private.loader:
            private.optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            private.optimizer.step()


class ManifoldMixUp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body(x))
        if self.training:
            h = 0.8 * h + 0.2 * h[torch.randperm(len(h))]
        return self.head(h)


@wrong(vectors, refused("example"))
def manifold_mix_up(rows: Rows, make_private: MakePrivate) -> None:
    fit(ManifoldMixUp(), rows, make_private)


class TokenCount(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 4, padding_idx=0), nn.Linear(4, 3)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.embedding(words).sum(1) / (words != 0).float().mean() / words.shape[1])


@wrong(texts_of_any_length, refused("example"), newcomers=lambda: [(torch.ones(60, dtype=torch.long), torch.tensor(0))])
def sums_divided_by_the_batch_s_word_count(rows: Rows, make_private: MakePrivate) -> None:
    fit(TokenCount(), DataLoader(rows, batch_size=4, collate_fn=padded), make_private)


class PartlyCheckpointed(nn.Module):
    """A reentrant checkpoint on each half of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.lower, self.upper = nn.Linear(6, 8), two_layers(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.lower(x)
        half = len(h) // 2
        return torch.cat([checkpoint(self.upper, part, use_reentrant=True) for part in (h[:half], h[half:])])


@wrong(vectors, refused("upper.0", "on parts of the batch", "use_reentrant=False"))
def reentrant_checkpoints_on_parts_of_a_batch(rows: Rows, make_private: MakePrivate) -> None:
    fit(PartlyCheckpointed(), rows, make_private)


class InnerCheckpoint(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lower, self.upper, self.head = nn.Linear(6, 8), two_layers(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.upper, self.lower(x), use_reentrant=True))


@wrong(vectors, refused("use_reentrant=False"))
def a_reentrant_checkpoint_in_the_middle_of_a_network(rows: Rows, make_private: MakePrivate) -> None:
    fit(InnerCheckpoint(), rows, make_private)


class OtherWayRound(Dataset):
    """Every second time an example is asked for, it comes the other way round."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.asked = rows, [0] * len(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        self.asked[index] += 1
        x, y = self.rows[index]
        return (x.flip(-1) if self.asked[index] % 2 else x), y


def two_half_readable() -> Rows:
    """Two examples of which one view is left out, so that an even number of rows remains."""
    half = (torch.tensor([9.0, 0, 0, 0, 0, 0]), torch.tensor(0))
    return [half, *vectors(), half]


@wrong(two_half_readable, refused("rows", "views"))
def views_and_a_collate_function_that_drops_rows(rows: Rows, make_private: MakePrivate) -> None:
    """From there on, views of two examples are taken for those of one."""

    def readable(some: list[Any]) -> tuple[Tensor, Tensor]:
        kept = [(x, y) for x, y in some if not x[0] > 5]
        return torch.stack([x for x, _ in kept]), torch.stack([y for _, y in kept])

    fit(two_layers(), DataLoader(OtherWayRound(rows), batch_size=4, collate_fn=readable), make_private, views=2)


@wrong(vectors, refused("views"))
def views_and_a_collate_function_that_sorts(rows: Rows, make_private: MakePrivate) -> None:
    def by_size(some: list[Any]) -> tuple[Tensor, Tensor]:
        some = sorted(some, key=lambda row: float(row[0][0]))
        return torch.stack([x for x, _ in some]), torch.stack([y for _, y in some])

    fit(two_layers(), DataLoader(OtherWayRound(rows), batch_size=4, collate_fn=by_size), make_private, views=2)


@wrong(vectors, refused("already", "copy"))
def a_model_made_private_twice(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    fit(model, rows, make_private)
    fit(model, rows, make_private)


@wrong(vectors, refused("copied", "save()"))
def a_private_run_that_is_copied(rows: Rows, make_private: MakePrivate) -> None:
    copy.deepcopy(fit(two_layers(), rows, make_private))


@wrong(colour_images, Private(oracle=False))
def what_make_compatible_returns_taken_for_the_model(rows: Rows, make_private: MakePrivate) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3))
    fit(hoarfrost.make_compatible(model), rows, make_private)  # type: ignore[arg-type]
