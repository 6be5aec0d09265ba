"""Right programs: other models and optimizers beside a private one that see none of its batches."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.corpus import Rows, right
from tests.programs.examples import vectors
from tests.programs.loops import EPOCHS, epochs, two_layers
from tests.programs.running import MakePrivate
from tests.programs.wrong_writes import begin, step

PUBLIC = torch.linspace(-1, 1, 30).view(5, 6)


def learn(student: nn.Module, teacher: nn.Module, optimizer: Any) -> None:
    """One step towards what the teacher says of public examples."""
    with torch.no_grad():
        target = teacher(PUBLIC)
    optimizer.zero_grad()
    F.mse_loss(student(PUBLIC), target).backward()
    optimizer.step()


@right(vectors)
def a_copy_tuned_on_public_data_after_every_epoch(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    private = begin(rows, make_private, model, lr=0.1)

    def tune() -> None:
        twin = copy.deepcopy(model)
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
        for _ in range(3):
            learn(twin, model, optimizer)

    epochs(model, private, after_epoch=tune)


@right(vectors)
def a_student_that_learns_on_public_data_before_every_step(rows: Rows, make_private: MakePrivate) -> None:
    model, student = two_layers(), two_layers()
    private = begin(rows, make_private, model, lr=0.1)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    for _ in range(EPOCHS):
        for x, y in private.loader:
            for _ in range(2):
                learn(student, model, optimizer)
            step(private, x, y)


@right(vectors, oracle=False)
def two_runs_step_by_step(rows: Rows, make_private: MakePrivate) -> None:
    one, other = (begin(rows, make_private, two_layers(), lr=0.1) for _ in range(2))
    for _ in range(EPOCHS):
        for (x, y), (a, b) in zip(one.loader, other.loader, strict=True):
            step(one, x, y)
            step(other, a, b)


@right(vectors, oracle=False)
def one_run_after_the_other(rows: Rows, make_private: MakePrivate) -> None:
    one, other = (begin(rows, make_private, two_layers(), lr=0.1) for _ in range(2))
    for private in (one, other):
        for _ in range(EPOCHS):
            for x, y in private.loader:
                step(private, x, y)


@right(vectors)
def a_model_of_an_earlier_run_that_teaches(rows: Rows, make_private: MakePrivate) -> None:
    """What it says of an example is that example's own."""
    teacher, model = two_layers(), two_layers()
    earlier = begin(rows, make_private, teacher, lr=0.1)
    private = begin(rows, make_private, model, lr=0.1)
    assert earlier.steps_taken == 0
    for x, _ in private.loader:
        private.optimizer.zero_grad()
        said = teacher(x).detach()  # with a graph that nobody differentiates
        F.mse_loss(model(x), said).backward()
        private.optimizer.step()
