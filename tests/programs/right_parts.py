"""Right programs: parts of models that are tied, frozen, adapted, parametrized, pruned, or one's own."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.programs.corpus import Rows, right
from tests.programs.examples import colour_images, pairs, records, texts, vectors
from tests.programs.loops import fit, two_layers
from tests.programs.running import MakePrivate


@right(vectors)
def weight_norm(rows: Rows, make_private: MakePrivate) -> None:
    fit(nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 3)), rows, make_private)


@right(vectors)
def orthogonal_weights(rows: Rows, make_private: MakePrivate) -> None:
    fit(nn.Sequential(parametrizations.orthogonal(nn.Linear(6, 6)), nn.Tanh(), nn.Linear(6, 3)), rows, make_private)


class Positive(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return F.softplus(weight)


@right(vectors)
def a_parametrization_of_ones_own(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    nn.utils.parametrize.register_parametrization(model[2], "weight", Positive())
    fit(model, rows, make_private)


@right(vectors)
def spectral_norm_with_fixed_vectors(rows: Rows, make_private: MakePrivate) -> None:
    model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 3))
    fit(model.eval(), rows, make_private)  # in evaluation mode the vectors stay as they are


@right(vectors)
def pruned_weights(rows: Rows, make_private: MakePrivate) -> None:
    from torch.nn.utils import prune

    model = two_layers()
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    fit(model, rows, make_private)


class LoRA(nn.Module):
    """A pretrained layer that stays as it is, and a low-rank change of it that is trained."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features, bias=False)  # fmt: skip # noqa: E501

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x)) * 2


@right(vectors)
def lora_by_hand(rows: Rows, make_private: MakePrivate) -> None:
    fit(nn.Sequential(LoRA(nn.Linear(6, 8)), nn.Tanh(), LoRA(nn.Linear(8, 3))), rows, make_private)


@right(vectors)
def a_frozen_trunk_and_a_new_head(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    model[0].requires_grad_(False)
    fit(model, rows, make_private)


@right(colour_images)
def a_pretrained_trunk_with_batch_norm_in_eval_mode(rows: Rows, make_private: MakePrivate) -> None:
    trunk = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()).requires_grad_(False)
    model = nn.Sequential(trunk, nn.Linear(144, 3))
    model.train()
    trunk.eval()
    fit(model, rows, make_private)


class Siamese(nn.Module):
    """One encoder for both halves of a pair, both in one forward."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = two_layers()

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return F.cosine_similarity(self.encoder(a), self.encoder(b))


@right(pairs)
def a_siamese_network(rows: Rows, make_private: MakePrivate) -> None:
    model = Siamese()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4)
    for a, b, same in loader:
        optimizer.zero_grad()
        F.mse_loss(model(a, b), same).backward()
        optimizer.step()


class Mixed(nn.Module):
    """Numbers and words, by keyword; answers in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers, self.words, self.head = nn.Linear(6, 5), nn.Embedding(11, 5), nn.Linear(5, 3)

    def forward(self, numbers: Tensor, words: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(torch.tanh(self.numbers(numbers) + self.words(words).mean(1)))}


@right(records)
def a_batch_that_is_a_dictionary(rows: Rows, make_private: MakePrivate) -> None:
    model = Mixed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4)
    for batch in loader:
        optimizer.zero_grad()
        label = batch.pop("label")
        F.cross_entropy(model(**batch)["logits"], label).backward()
        optimizer.step()


class Experts(nn.Module):
    """Every expert runs on every example; a gate of that example weighs them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(6, 2), nn.ModuleList([two_layers(), two_layers()])

    def forward(self, x: Tensor) -> Tensor:
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        return (self.gate(x).softmax(1)[..., None] * outputs).sum(1)


@right(vectors)
def a_soft_mixture_of_experts(rows: Rows, make_private: MakePrivate) -> None:
    fit(Experts(), rows, make_private)


class OwnLayer(nn.Module):
    """A layer that no rule knows."""

    def __init__(self) -> None:
        super().__init__()
        self.centres, self.width = nn.Parameter(torch.randn(5, 6)), nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(-torch.cdist(x[:, None], self.centres[None])[:, 0] * self.width.exp())


@right(vectors)
def a_layer_of_ones_own(rows: Rows, make_private: MakePrivate) -> None:
    fit(nn.Sequential(OwnLayer(), nn.Linear(5, 3)), rows, make_private)


@right(vectors)
def double_precision(rows: Rows, make_private: MakePrivate) -> None:
    fit(two_layers().double(), [(x.double(), y) for x, y in rows], make_private)


@right(vectors, random=True)
def dropout(rows: Rows, make_private: MakePrivate) -> None:
    fit(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)), rows, make_private)


@right(vectors)
def dropout_in_eval_mode(rows: Rows, make_private: MakePrivate) -> None:
    fit(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)).eval(), rows, make_private)


@right(texts)
def a_word_that_no_example_has(rows: Rows, make_private: MakePrivate) -> None:
    fit(nn.Sequential(nn.Embedding(400, 4), nn.Flatten(), nn.Linear(20, 3)), rows, make_private)


class Reused(nn.Module):
    """One layer at several depths."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(self.layer(x))
        return self.head(x)


@right(vectors)
def one_layer_at_three_depths(rows: Rows, make_private: MakePrivate) -> None:
    fit(Reused(), rows, make_private)


@right(vectors)
def a_model_with_nothing_but_a_bias(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    for name, p in model.named_parameters():
        p.requires_grad_(name.endswith("bias"))  # BitFit
    fit(model, rows, make_private)


def scaled(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * 2


@right(vectors)
def a_forward_hook_that_scales(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    model[0].register_forward_hook(scaled)
    fit(model, rows, make_private)
