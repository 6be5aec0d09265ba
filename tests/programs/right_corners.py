"""Right programs: models that draw, count, cache or record, and operations within an example that look like mixing."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.programs.corpus import Rows, right
from tests.programs.examples import images, sequences, texts, vectors
from tests.programs.loops import epochs, fit, two_layers
from tests.programs.running import MakePrivate


class DropPath(nn.Module):
    """Stochastic depth, a coin for every example."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layer(x))
        if self.training:
            h = h * (torch.rand(len(x), 1) < 0.5)
        return self.head(x + h)


@right(vectors, random=True)
def stochastic_depth_for_every_example(rows: Rows, make_private: MakePrivate) -> None:
    fit(DropPath(), rows, make_private)


class Gumbel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.choose, self.head, self.temperature = nn.Linear(6, 5), nn.Linear(5, 3), 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.gumbel_softmax(self.choose(x), tau=self.temperature, hard=True))


@right(vectors, random=True)
def gumbel_softmax_whose_temperature_the_loop_lowers(rows: Rows, make_private: MakePrivate) -> None:
    model = Gumbel()

    def lower() -> None:
        model.temperature *= 0.9

    epochs(model, make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4), lower)


class Masked(nn.Module):
    """A random part of each example is hidden, as in masked autoencoders."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.body = nn.Parameter(torch.zeros(3)), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        seen = torch.rand(x.shape[:2]) < 0.5
        return self.body(torch.where(seen[..., None], x, self.hidden.expand_as(x))).mean(1)


@right(sequences, random=True)
def parts_of_examples_hidden_at_random(rows: Rows, make_private: MakePrivate) -> None:
    fit(Masked(), rows, make_private)


class Rotary(nn.Module):
    """Its table of angles is made when it is first needed, and depends on the length alone."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.head, self.angles = nn.Linear(3, 4), nn.Linear(4, 3), None

    def forward(self, x: Tensor) -> Tensor:
        if self.angles is None or len(self.angles) < x.shape[1]:
            self.angles = torch.arange(x.shape[1])[:, None] / torch.tensor([1.0, 10.0])
        a, b = self.lift(x).chunk(2, -1)
        cos, sin = self.angles[: x.shape[1]].cos(), self.angles[: x.shape[1]].sin()
        return self.head(torch.cat([a * cos - b * sin, a * sin + b * cos], -1).cumsum(1).mean(1))


@right(sequences)
def a_table_that_is_made_when_it_is_needed(rows: Rows, make_private: MakePrivate) -> None:
    fit(Rotary(), rows, make_private)


class Watched(nn.Module):
    """Counts its calls, and keeps its attention for a picture; neither is saved with the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.head, self.calls, self.attention = nn.Linear(3, 4), nn.Linear(4, 3), 0, None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        h = self.lift(x)
        weights = (h @ h.transpose(1, 2)).softmax(-1)
        self.attention = weights.detach()
        return self.head((weights @ h).mean(1))


@right(sequences)
def a_model_that_counts_and_records(rows: Rows, make_private: MakePrivate) -> None:
    fit(Watched(), rows, make_private)


@right(vectors)
def a_hook_that_records_activations(rows: Rows, make_private: MakePrivate) -> None:
    model, seen = two_layers(), []
    model[1].register_forward_hook(lambda module, args, output: seen.append(output.detach().mean(0)))
    fit(model, rows, make_private)


class Transformer(nn.Module):
    """Reads all words, and writes them again."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.transformer = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 11)

    def forward(self, words: Tensor) -> Tensor:
        h = self.words(words)
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1] - 1)
        return self.head(self.transformer(h, h[:, :-1], tgt_mask=mask, tgt_is_causal=True))


@right(texts)
def an_encoder_and_a_decoder(rows: Rows, make_private: MakePrivate) -> None:
    model = Transformer()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for words, _ in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(words).transpose(1, 2), words[:, 1:]).backward()
        optimizer.step()


class Hyper(nn.Module):
    """An example's own weights, made by a network from that example."""

    def __init__(self) -> None:
        super().__init__()
        self.make, self.head = nn.Linear(6, 24), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.make(x).view(-1, 4, 6)
        return self.head(torch.bmm(weights, x[..., None])[..., 0])


@right(vectors)
def weights_made_from_each_example(rows: Rows, make_private: MakePrivate) -> None:
    fit(Hyper(), rows, make_private)


class SpatialTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.where = nn.Linear(64, 6)
        self.look = nn.Conv2d(1, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        straight = torch.tensor([1.0, 0, 0, 0, 1, 0])
        grid = F.affine_grid((0.1 * torch.tanh(self.where(x.flatten(1))) + straight).view(-1, 2, 3), x.shape, False)
        return self.look(F.grid_sample(x, grid, align_corners=False)).amax((2, 3))


@right(images)
def a_spatial_transformer(rows: Rows, make_private: MakePrivate) -> None:
    fit(SpatialTransformer(), rows, make_private)


class Statistics(nn.Module):
    """Mean, deviation, order and spectrum, each of one example alone."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        centred = (flat - flat.mean(1, keepdim=True)) / (flat.std(1, keepdim=True) + 1e-3)
        return self.head(self.norm(centred.sort(1).values + torch.fft.fft(centred).abs()))


@right(sequences)
def statistics_of_each_example(rows: Rows, make_private: MakePrivate) -> None:
    fit(Statistics(), rows, make_private)


class Halting(nn.Module):
    """As many rounds as the example wants; those of an example that has had enough change nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.round, self.enough, self.head = nn.Linear(6, 6), nn.Linear(6, 1), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        going = torch.ones(len(x), 1)
        for _ in range(3):
            going = going * (self.enough(x) < 0.3)
            x = torch.where(going > 0, torch.tanh(self.round(x)), x)
        return self.head(x)


@right(vectors)
def rounds_until_an_example_has_enough(rows: Rows, make_private: MakePrivate) -> None:
    fit(Halting(), rows, make_private)


def with_one_of_zeros() -> Rows:
    return [(torch.zeros(6), torch.tensor(0)), *vectors()]


@right(with_one_of_zeros)
def one_example_that_is_all_zeros(rows: Rows, make_private: MakePrivate) -> None:
    fit(two_layers(), rows, make_private)


def all_the_same() -> Rows:
    return [(x.clone(), y.clone()) for x, y in vectors(1) * 8]


@right(all_the_same)
def examples_that_are_all_the_same(rows: Rows, make_private: MakePrivate) -> None:
    fit(two_layers(), rows, make_private)
