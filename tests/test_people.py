"""The unit can be a person: whole steps, from the loader to the weights, and what is said about them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hoarfrost
from hoarfrost import budget
from hoarfrost.errors import InvalidValue, NotPrivate
from hoarfrost.query import Query
from tests import oracle

OWNERS = [k for k in range(12) for _ in range(1 + k % 5)]
STEPS = 6


def examples(seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(OWNERS), 4, generator=generator) * torch.linspace(0.1, 3, len(OWNERS))[:, None]
    return TensorDataset(torch.arange(len(OWNERS)), x, torch.randint(3, (len(OWNERS),), generator=generator))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def private_run(model: nn.Module, **options: Any) -> Any:
    settings = {
        "sample_rate": 0.4, "steps": STEPS, "noise_multiplier": 0.0, "delta": 1e-3, "seed": 5, "person": OWNERS,
        "per_person": 3,
    }  # fmt: skip
    return hoarfrost.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.5), examples(), **{**settings, **options}
    )


def ahead(loader: Any, by: int) -> Any:
    """As wrappers around a loader do: batches are fetched before they are used."""
    waiting = []
    for batch in loader:
        waiting.append(batch)
        if len(waiting) > by:
            yield waiting.pop(0)
    yield from waiting


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("options", [{}, {"max_physical_batch": 7}, {"views": 2}], ids=["", "chunks", "views"])
def test_every_step_is_that_of_a_loop_over_people(reduction: str, options: dict[str, int]) -> None:
    """For each drawn person the mean of the rows' gradients, clipped, then summed; divided by q times the people."""
    clip_norm = 1.0
    model = network()
    slow = copy.deepcopy(model)
    private = private_run(model, loss_reduction=reduction, clip=hoarfrost.clip.Local(clip_norm), **options)
    assert (private.plan.size, private.expected_batch) == (12, 0.4 * 12)

    def losses(model: nn.Module, rows: Any) -> Tensor:
        return F.cross_entropy(model(rows[0]), rows[1], reduction="sum")

    clipped, averaged, steps, total = 0, 0, 0, {name: torch.zeros_like(p) for name, p in slow.named_parameters()}
    while private.steps_taken < STEPS:
        for numbers, x, y in private.loader:
            private.optimizer.zero_grad()
            F.cross_entropy(private.model(x), y, reduction=reduction).backward()
            taken = private.steps_taken
            private.optimizer.step()
            owners = [OWNERS[row] for row in numbers.tolist()]
            for who in dict.fromkeys(owners):
                own = [place for place, owner in enumerate(owners) if owner == who]
                rows = oracle.gradients(slow, (x[own], y[own]), losses)
                mean = {name: sum(g[name] for g in rows) / len(rows) for name in total}
                factor = min(1.0, clip_norm / oracle.norm(mean))
                clipped += factor < 1
                averaged += factor == 1 and len(set(numbers[own].tolist())) > 1
                total = {name: total[name] + factor * mean[name] for name in total}
            if private.steps_taken > taken:
                with torch.no_grad():
                    for name, p in slow.named_parameters():
                        p -= 0.5 * total[name] / (0.4 * 12)
                total = {name: torch.zeros_like(p) for name, p in slow.named_parameters()}
                steps += 1
    assert steps == STEPS
    assert min(clipped, averaged) > 5
    for name, p in slow.named_parameters():
        torch.testing.assert_close(private.model.get_parameter(name), p, rtol=1e-4, atol=1e-5)


def test_fetching_ahead_changes_nothing() -> None:
    found = []
    for by in (0, 2):
        private = private_run(network())
        while private.steps_taken < STEPS:
            for _, x, y in ahead(private.loader, by):
                private.optimizer.zero_grad()
                F.cross_entropy(private.model(x), y).backward()
                private.optimizer.step()
        found.append([p.detach().clone() for p in private.model.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_examples_along_the_second_dimension() -> None:
    class Sequences(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(4, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.lstm(x)[0][-1])

    torch.manual_seed(0)
    model = Sequences()
    plain = copy.deepcopy(model)
    data = TensorDataset(torch.randn(9, 5, 4))
    owners = [0, 1, 1, 1, 2, 2, 3, 3, 3]
    private: Any = hoarfrost.make_private(
        model, torch.optim.SGD(model.parameters(), lr=1.0), data, sample_rate=1.0, steps=1, noise_multiplier=0.0,
        delta=1e-3, person=owners, per_person=3, batch_first=False, clip=hoarfrost.clip.Local(0.05),
    )  # fmt: skip
    for (x,) in private.loader:
        private.model(x.transpose(0, 1)).square().sum(1).mean().backward()
        private.optimizer.step()
    x = data.tensors[0].transpose(0, 1)
    found = oracle.people(plain, x, lambda m, x: m(x).square().sum(), [1, 3, 2, 3], dim=1)
    want = oracle.clipped_sum(found, 0.05)
    assert sum(oracle.norm(g) > 0.05 for g in found) >= 2
    for name, p in plain.named_parameters():
        torch.testing.assert_close(p - private.model.get_parameter(name), want[name] / 4, rtol=1e-3, atol=1e-6)


def test_the_statement_is_for_one_person() -> None:
    private = private_run(network(), noise_multiplier=1.0)
    statement = private.statement()
    assert statement.unit == "one person"
    assert "for one person: add or remove one" in str(statement)
    assert private.account.planned().unit == "one person"
    assert private.plan.statement().unit == "one person"
    assert private_run(network(), person=None, per_person=None).statement().unit == "one example"


def test_a_plan_for_the_other_unit_is_refused() -> None:
    from dataclasses import replace

    private = private_run(network())
    model = network()
    with pytest.raises(NotPrivate, match="the loader draws one person at a time, and the plan is for one example"):
        hoarfrost.private.assemble(
            model,
            torch.optim.SGD(model.parameters(), lr=1.0),
            private.loader,
            replace(private.plan, unit="one example"),
        )


def test_a_ledger_is_for_one_unit(tmp_path: Path) -> None:
    for_examples = budget.Ledger.create(tmp_path / "examples.jsonl", epsilon=50.0, delta=1e-3, seeded=True)
    with pytest.raises(InvalidValue, match="is for one example, and this run is for one person"):
        private_run(network(), noise_multiplier=1.0, ledger=for_examples)
    assert for_examples.entries == ()
    for_people = budget.Ledger.create(
        tmp_path / "people.jsonl", epsilon=50.0, delta=1e-3, seeded=True, unit="one person"
    )
    private_run(network(), noise_multiplier=1.0, ledger=for_people)
    again = budget.Ledger(tmp_path / "people.jsonl")
    assert (again.unit, len(again.entries)) == ("one person", 1)
    with pytest.raises(InvalidValue, match="is for one person, and this run is for one example"):
        private_run(network(), noise_multiplier=1.0, ledger=again, person=None, per_person=None)


def test_weights_that_were_trained_for_the_other_unit_are_refused(tmp_path: Path) -> None:
    private = private_run(network(), noise_multiplier=1.0)
    _, x, y = next(iter(private.loader))
    F.cross_entropy(private.model(x), y).backward()
    private.optimizer.step()
    private.save(tmp_path / "people.safetensors")
    other = private_run(network(), noise_multiplier=1.0, person=None, per_person=None)
    with pytest.raises(InvalidValue, match="spent for one person, and this run is for one example"):
        other.load(tmp_path / "people.safetensors")
    same = private_run(network(), noise_multiplier=1.0)
    same.load(tmp_path / "people.safetensors")
    assert same.steps_taken == 1


def test_a_freezers_question_is_answered_by_people() -> None:
    """The mean over a person's rows is clipped; a person with many rows counts once."""
    model = network()
    private = private_run(model)
    event = budget.Gaussian(noise_multiplier=0.0, sample_rate=1.0, steps=2)
    engine, noise = private.optimizer.engine, private.optimizer.mechanism.noise
    query = Query(event, model, private.loader, noise, engine.paused)
    assert query.expected_batch == 12
    counts = query.sum(lambda _, batch: torch.ones(1), size=1, bound=5.0)
    assert counts.item() == pytest.approx(12)
    asked: list[int] = []

    def own_id(_: nn.Module, batch: Any) -> Tensor:
        asked.append(OWNERS[int(batch[0])])
        return F.one_hot(torch.tensor(asked[-1]), 12) * 10.0

    found = query.sum(own_id, size=12, bound=2.0)
    torch.testing.assert_close(found, torch.full((12,), 2.0), rtol=1e-4, atol=0)
    assert sorted(asked) == sorted(k for k in range(12) for _ in range(min(3, 1 + k % 5)))


def test_adding_a_hostile_person_with_many_rows_moves_the_sum_by_the_bound() -> None:
    """Two whole data sets that differ in one person, every row of whom is hostile."""
    torch.manual_seed(0)
    rows, owners = torch.randn(20, 4), [k % 6 for k in range(20)]
    hostile = torch.cat([rows, 1e4 * torch.ones(30, 4)])
    released = []
    for x, ids in ((rows, owners), (hostile, [*owners, *["mallory"] * 30])):
        model = nn.Linear(4, 1, bias=False)
        nn.init.ones_(model.weight)
        private: Any = hoarfrost.make_private(
            model, torch.optim.SGD(model.parameters(), lr=1.0), TensorDataset(x), sample_rate=1.0, steps=1, delta=1e-3,
            noise_multiplier=0.0, person=ids, per_person=8, clip=hoarfrost.clip.Local(0.7), max_physical_batch=24,
        )  # fmt: skip
        for (batch,) in private.loader:
            private.model(batch).mean().backward()
            private.optimizer.step()
        released.append((1 - private.model.weight.detach()) * private.expected_batch)
    moved = (released[1] - released[0]).norm()
    assert 0.69 < moved <= 0.7 * 1.0001
