"""Programs in which examples share a lookup (a task's embedding, positions), or read a layer's weight outside of it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.programs.corpus import Rows, refused, right, wrong
from tests.programs.examples import sequences, texts, vectors
from tests.programs.loops import fit
from tests.programs.running import MakePrivate


class Task(nn.Module):
    def __init__(self, squeeze: bool = False) -> None:
        super().__init__()
        self.body, self.task, self.head, self.squeeze = nn.Linear(6, 8), nn.Embedding(5, 8), nn.Linear(8, 3), squeeze

    def forward(self, x: Tensor) -> Tensor:
        task = self.task(torch.tensor([3]))
        return self.head(torch.tanh(self.body(x) + (task.squeeze(0) if self.squeeze else task)))


@right(vectors)
def the_embedding_of_a_task_that_all_examples_share(rows: Rows, make_private: MakePrivate) -> None:
    """Its shape is [1, 8], and an example's must not become [1, 8] of [B, 1, 8]."""
    fit(Task(), rows, make_private)


@right(vectors)
def the_embedding_of_a_task_without_its_one_row(rows: Rows, make_private: MakePrivate) -> None:
    fit(Task(squeeze=True), rows, make_private)


class Scored(Task):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.body(x)) @ self.task(torch.arange(3)).T


@right(vectors)
def scores_against_a_table_that_is_looked_up_whole(rows: Rows, make_private: MakePrivate) -> None:
    fit(Scored(), rows, make_private)


class Positions(nn.Module):
    def __init__(self, steps: int | None, unsqueeze: bool = False) -> None:
        super().__init__()
        self.body, self.positions, self.head = nn.Linear(3, 8), nn.Embedding(9, 8), nn.Linear(8, 3)
        self.steps, self.unsqueeze = steps, unsqueeze

    def table(self, steps: int) -> Tensor:
        positions = self.positions(torch.arange(steps))
        return positions.unsqueeze(0) if self.unsqueeze else positions

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, : self.steps]
        return self.head(torch.tanh(self.body(x) + self.table(x.shape[1])).mean(1))


@right(sequences)
def positions_of_sequences_of_length_one(rows: Rows, make_private: MakePrivate) -> None:
    fit(Positions(1), rows, make_private)


@right(sequences)
def positions_with_a_dimension_for_examples_put_in_front(rows: Rows, make_private: MakePrivate) -> None:
    fit(Positions(None, unsqueeze=True), rows, make_private)


@right(lambda: sequences(4))
def as_many_positions_as_examples(rows: Rows, make_private: MakePrivate) -> None:
    fit(Positions(None, unsqueeze=True), rows, make_private)


class Learned(Positions):
    """Positions are changed before they meet an example, by layers of their own."""

    def __init__(self) -> None:
        super().__init__(None)
        self.norm, self.project = nn.LayerNorm(8), nn.Linear(8, 8)

    def table(self, steps: int) -> Tensor:
        return F.gelu(self.project(self.norm(super().table(steps))))[None] * 2


@right(sequences)
def positions_that_layers_change_before_they_meet_an_example(rows: Rows, make_private: MakePrivate) -> None:
    fit(Learned(), rows, make_private)


class Sliced(Positions):
    def table(self, steps: int) -> Tensor:
        return self.positions.weight[:steps]


@right(sequences)
def the_first_rows_of_a_table_s_weight(rows: Rows, make_private: MakePrivate) -> None:
    fit(Sliced(None), rows, make_private)


@right(sequences)
def positions_in_two_views(rows: Rows, make_private: MakePrivate) -> None:
    fit(Positions(None, unsqueeze=True), rows, make_private, views=2)


class Relative(nn.Module):
    """A bias for each distance of two words, in every head, as in T5."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.bias = nn.Embedding(11, 8), nn.Embedding(9, 2)
        self.project, self.head = nn.Linear(8, 24), nn.Linear(8, 3)

    def forward(self, words: Tensor) -> Tensor:
        n, steps = words.shape
        q, k, v = self.project(self.words(words)).view(n, steps, 3, 2, 4).permute(2, 0, 3, 1, 4)
        apart = torch.arange(steps)[None] - torch.arange(steps)[:, None]
        bias = self.bias(apart.clamp(-4, 4) + 4).permute(2, 0, 1).unsqueeze(0)
        seen = (q @ k.mT / 2 + bias).softmax(3) @ v
        return self.head(seen.transpose(1, 2).reshape(n, steps, 8).mean(1))


@right(texts)
def a_bias_for_each_distance_as_in_t5(rows: Rows, make_private: MakePrivate) -> None:
    fit(Relative(), rows, make_private)


class Fused(Relative):
    def forward(self, words: Tensor) -> Tensor:
        n, steps = words.shape
        q, k, v = self.project(self.words(words)).view(n, steps, 3, 2, 4).permute(2, 0, 3, 1, 4)
        apart = torch.arange(steps)[None] - torch.arange(steps)[:, None]
        bias = self.bias(apart.clamp(-4, 4) + 4).permute(2, 0, 1).unsqueeze(0)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.head(seen.transpose(1, 2).reshape(n, steps, 8).mean(1))


@right(texts)
def a_bias_for_each_distance_as_a_mask(rows: Rows, make_private: MakePrivate) -> None:
    fit(Fused(), rows, make_private)


class Queries(nn.Module):
    """Learned queries, kept in an embedding's weight, as in DETR."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.queries = nn.Linear(3, 8), nn.Embedding(2, 8)
        self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.body(x))
        queries = self.queries.weight.unsqueeze(0).repeat(len(x), 1, 1)
        return self.head(self.attention(queries, x, x)[0].flatten(1))


@right(sequences)
def queries_kept_in_the_weight_of_an_embedding(rows: Rows, make_private: MakePrivate) -> None:
    fit(Queries(), rows, make_private)


# Weights read outside of their layers.


class Tied(nn.Module):
    """A language model whose head is its embedding's weight, written out."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.words, self.positions, self.body = nn.Embedding(11, 8), nn.Embedding(6, 8), nn.Linear(8, 8)
        self.bias = nn.Parameter(torch.zeros(11)) if bias else None

    def forward(self, words: Tensor) -> Tensor:
        steps = torch.arange(words.shape[1]).unsqueeze(0)
        return F.linear(self.body(self.words(words) + self.positions(steps)).tanh(), self.words.weight, self.bias)


def next_word(rows: Rows, make_private: MakePrivate, model: nn.Module) -> None:
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for words, _ in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(words[:, :-1]).transpose(1, 2), words[:, 1:]).backward()
        optimizer.step()


@right(texts)
def a_head_that_reads_the_embedding_s_weight(rows: Rows, make_private: MakePrivate) -> None:
    next_word(rows, make_private, Tied())


@right(texts)
def a_head_that_reads_the_embedding_s_weight_and_has_a_bias(rows: Rows, make_private: MakePrivate) -> None:
    next_word(rows, make_private, Tied(bias=True))


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.encoder(x)), self.encoder.weight.T)


@right(vectors)
def an_autoencoder_whose_decoder_is_the_encoder_transposed(rows: Rows, make_private: MakePrivate) -> None:
    model = Autoencoder()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for x, _ in loader:
        F.mse_loss(model(x), x).backward()
        optimizer.step()


class Cosine(nn.Module):
    """A classifier by angles, as CosFace and ArcFace have; its layer never runs."""

    def __init__(self, runs: bool = False) -> None:
        super().__init__()
        self.body, self.classes, self.runs = nn.Linear(6, 8), nn.Linear(8, 3, bias=False), runs

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.body(x))
        angles = F.normalize(x) @ F.normalize(self.classes.weight).T
        return angles * 4 + self.classes(x) if self.runs else angles * 4


@right(vectors)
def a_classifier_by_angles(rows: Rows, make_private: MakePrivate) -> None:
    fit(Cosine(), rows, make_private)


@right(vectors)
def a_classifier_by_angles_that_also_runs(rows: Rows, make_private: MakePrivate) -> None:
    fit(Cosine(runs=True), rows, make_private)


class WeighedDown(nn.Module):
    """Outputs are divided by the norm of a layer's weight: spectral norm's little sister."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x) / self.body.weight.norm()))


@right(vectors)
def outputs_divided_by_the_norm_of_their_layer_s_weight(rows: Rows, make_private: MakePrivate) -> None:
    fit(WeighedDown(), rows, make_private)


class Penalised(WeighedDown):
    """Returns its loss, with a penalty on weights in it."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(self.head(torch.tanh(self.body(x))), y)
        return loss + 1e-3 * self.body.weight.norm()


@wrong(vectors, refused("body.weight", "weight_decay"))
def a_penalty_on_weights_in_a_loss_that_the_model_returns(rows: Rows, make_private: MakePrivate) -> None:
    model = Penalised()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for x, y in loader:
        optimizer.zero_grad()
        model(x, y).backward()
        optimizer.step()


@wrong(vectors, refused("body.weight", "weight_decay"))
def a_penalty_on_the_norm_of_one_layer_s_weight(rows: Rows, make_private: MakePrivate) -> None:
    model = WeighedDown()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for x, y in loader:
        optimizer.zero_grad()
        (F.cross_entropy(model(x), y) + 1e-3 * model.body.weight.norm()).backward()
        optimizer.step()


class Doubled(torch.autograd.Function):
    """Torch hands it what it is given, and says nothing of that to anybody."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor) -> Tensor:
        return x + 2 * table

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, 2 * gradient.sum(0)


class PastTorch(Positions):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(Doubled.apply(self.body(x), self.positions(torch.arange(x.shape[1]))).mean(1))


@wrong(sequences, refused("the parameter weight", "autograd.Function"))
def positions_in_a_function_that_nobody_sees_into(rows: Rows, make_private: MakePrivate) -> None:
    fit(PastTorch(None), rows, make_private)


class Handed(nn.Module):
    """Returns its positions, too."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.positions, self.head = nn.Linear(3, 8), nn.Embedding(9, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        positions = self.positions(torch.arange(x.shape[1]))
        return self.head(torch.tanh(self.body(x) + positions).mean(1)), positions


@wrong(sequences, refused("weight", "weight_decay"))
def a_penalty_on_positions_that_the_model_returns(rows: Rows, make_private: MakePrivate) -> None:
    def loss(output: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        return F.cross_entropy(output[0], y) + 1e-3 * output[1].square().mean()

    fit(Handed(), rows, make_private, loss)


@right(sequences)
def positions_that_the_model_returns_and_nobody_uses(rows: Rows, make_private: MakePrivate) -> None:
    fit(Handed(), rows, make_private, lambda output, y: F.cross_entropy(output[0], y))
