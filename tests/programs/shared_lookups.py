"""Programs in which all examples share a lookup: a task's embedding, positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.programs.corpus import Rows, private_or_refused, right, wrong
from tests.programs.examples import sequences, vectors
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


@wrong(vectors, private_or_refused("task (Embedding)", "index.expand(len(x), ...)"))
def scores_against_a_table_that_is_looked_up_whole(rows: Rows, make_private: MakePrivate) -> None:
    fit(Scored(), rows, make_private)


class Positions(nn.Module):
    def __init__(self, steps: int | None, unsqueeze: bool = False) -> None:
        super().__init__()
        self.body, self.positions, self.head = nn.Linear(3, 8), nn.Embedding(9, 8), nn.Linear(8, 3)
        self.steps, self.unsqueeze = steps, unsqueeze

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, : self.steps]
        positions = self.positions(torch.arange(x.shape[1]))
        return self.head(torch.tanh(self.body(x) + (positions.unsqueeze(0) if self.unsqueeze else positions)).mean(1))


@right(sequences)
def positions_of_sequences_of_length_one(rows: Rows, make_private: MakePrivate) -> None:
    fit(Positions(1), rows, make_private)


@wrong(sequences, private_or_refused("positions (Embedding)", "index.expand(len(x), ...)"))
def positions_with_a_dimension_for_examples_put_in_front(rows: Rows, make_private: MakePrivate) -> None:
    fit(Positions(None, unsqueeze=True), rows, make_private)
