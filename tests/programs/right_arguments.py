"""Right programs: models that are handed more than the batch, with the examples in other dimensions or shared."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tests.programs.corpus import Rows, right
from tests.programs.examples import sequences, texts
from tests.programs.running import MakePrivate


class Stacked(nn.Module):
    """Two layers, with time first everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.gru, self.head = nn.Embedding(11, 4), nn.GRU(4, 5, num_layers=2), nn.Linear(5, 3)

    def init_hidden(self, rows: int) -> Tensor:
        return torch.zeros(2, rows, 5)

    def forward(self, words: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        found, hidden = self.gru(self.embedding(words), hidden)
        return self.head(found[-1]), hidden


def time_first(rows: Rows) -> tuple[Tensor, Tensor]:
    return torch.stack([words for words, _ in rows], 1), torch.stack([y for _, y in rows])


@right(texts)
def a_stacked_gru_with_time_first_and_a_new_state_for_every_batch(rows: Rows, make_private: MakePrivate) -> None:
    model = Stacked()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(rows, batch_size=4, collate_fn=time_first)
    model, optimizer, loader = make_private(model, optimizer, loader, batch_size=4, batch_first=False, epochs=2)
    for _ in range(2):
        for words, y in loader:
            logits, _ = model(words, model.init_hidden(words.shape[1]))
            optimizer.zero_grad()
            F.cross_entropy(logits, y).backward()
            optimizer.step()


class Looks(nn.Module):
    """Attends from a batch to a memory that has time first, under a mask that all examples share."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.head = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        keys = self.key(memory.transpose(0, 1))
        scores = (self.query(x) @ keys.mT).masked_fill(mask, -1e9)
        return self.head((scores.softmax(-1) @ keys).mean(1))


def four_sequences() -> Rows:
    return sequences(4)


@right(sequences)
def a_memory_with_time_first_beside_the_batch(rows: Rows, make_private: MakePrivate) -> None:
    model = Looks()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    mask = torch.ones(4, 4).triu(1).bool()
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x, x.transpose(0, 1) * 2, mask), y).backward()
        optimizer.step()


@right(four_sequences)
def a_memory_and_a_mask_as_long_as_the_batch(rows: Rows, make_private: MakePrivate) -> None:
    a_memory_with_time_first_beside_the_batch(rows, make_private)


class SelfConditioned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(12 + 3, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, guess: Tensor) -> Tensor:
        return self.head(torch.tanh(self.layer(torch.cat([x.flatten(1), guess], 1))))


@right(sequences)
def a_model_that_is_handed_its_own_guess_for_the_same_batch(rows: Rows, make_private: MakePrivate) -> None:
    model = SelfConditioned()
    private = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4, epochs=3)
    model, optimizer, loader = private
    for _ in range(3):
        for x, y in loader:
            guess = model(x, torch.zeros(len(x), 3)).detach()
            optimizer.zero_grad()
            F.cross_entropy(model(x, guess), y).backward()
            optimizer.step()


class Returned(nn.Module):
    """Hands back what it was given, and some of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(12, 9), nn.Linear(9, 3)

    def forward(self, x: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.head(torch.tanh(self.layer(x.flatten(1) * scale)) + shift), scale, self.head.weight[0]


@right(sequences)
def constants_and_weights_that_the_model_returns_and_is_handed_again(rows: Rows, make_private: MakePrivate) -> None:
    model = Returned()
    private = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4, epochs=3)
    model, optimizer, loader = private
    scale, shift = torch.full((12,), 0.5), torch.zeros(9)
    for _ in range(3):
        for x, y in loader:
            logits, scale, shift = model(x, scale, shift.detach())
            optimizer.zero_grad()
            F.cross_entropy(logits, y).backward()
            optimizer.step()
