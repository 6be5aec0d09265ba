"""DP-FROST where the unit is a person: people are drawn, and one of them moves what is released like one example."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import hoarfrost
from hoarfrost.budget import Gaussian
from hoarfrost.freezing import Frost
from hoarfrost.freezing.magnitudes import Magnitude
from hoarfrost.freezing.partitions import Partition
from hoarfrost.noise import Noise
from hoarfrost.query import Query
from hoarfrost.sampling import PoissonLoader
from tests.freezing import frost_oracle

VARIANTS = [(kind, order) for kind in ("clipped", "normalised", "absolute", "norms") for order in (1, 2)]
SIZES = {"a": 5, "b": 3, "c": 1}
PARTS = tuple(Partition(name, (name,), size) for name, size in SIZES.items())
WIDTH = sum(SIZES.values())


class Linear(nn.Module):
    """The gradient of a row is the row, whatever the weights are."""

    def __init__(self) -> None:
        super().__init__()
        for name, size in SIZES.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(size)))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ torch.cat([self.a, self.b, self.c])).sum()


def exact(rows: Tensor, person: list[int], per_person: int, magnitude: Magnitude) -> Tensor:
    """Of a round in which everybody is drawn, without noise."""
    loader = PoissonLoader(TensorDataset(rows), sample_rate=1.0, person=person, per_person=per_person)
    query = Query(Gaussian(noise_multiplier=0.0), Linear(), loader, Noise(), nullcontext)
    return magnitude.measured(query, PARTS, lambda model, batch: model(batch[0])).double()


def in_parts(row: Tensor) -> dict[str, list[float]]:
    return {name: part.tolist() for name, part in zip(SIZES, row.double().split([*SIZES.values()]), strict=True)}


def means(rows: Tensor, person: list[int], kind: str, order: int) -> list[dict[str, list[float]]]:
    """The vector of each person, before it is clipped: the mean over their rows of what is measured of a row.

    Of "absolute" that is the mean of absolute values, of "norms" the mean of norms; the oracle for one example then
    does the rest, since both are what they are of non-negative numbers. Norms are put into one element of a partition.
    """
    found = []
    for who in dict.fromkeys(person):
        vectors = []
        for row, owner in zip(rows, person, strict=True):
            if owner == who:
                own = in_parts(row.abs() if kind in ("absolute", "norms") else row)
                if kind == "norms":
                    own = {n: [frost_oracle.norm(each, order), *[0.0] * (len(each) - 1)] for n, each in own.items()}
                vectors.append(own)
        found.append({name: np.mean([each[name] for each in vectors], axis=0).tolist() for name in SIZES})
    return found


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize(("kind", "order"), VARIANTS)
def test_magnitudes_are_of_the_means_over_peoples_rows(kind: Any, order: Any, clip: float | None) -> None:
    torch.manual_seed(0)
    person = [0, 1, 0, 2, 2, 2, 3]
    rows = torch.randn(len(person), WIDTH) * torch.tensor([0.02, 0.1, 0.03, 0.01, 0.02, 0.05, 9.0])[:, None]
    expected = frost_oracle.magnitudes(means(rows, person, kind, order), kind, order, clip)
    found = exact(rows, person, 3, Magnitude(kind, order, clip))
    np.testing.assert_allclose(found, list(expected.values()), rtol=2e-5)


@pytest.mark.parametrize(("kind", "order"), VARIANTS)
def test_a_hostile_person_moves_them_by_at_most_the_sensitivity(kind: Any, order: Any) -> None:
    """However many rows they have, and whatever is in them; and the bound is reached."""
    generator = torch.Generator().manual_seed(3)
    others = torch.randn(4, WIDTH, generator=generator)
    magnitude = Magnitude(kind, order)
    stated = magnitude.sensitivity(PARTS)
    moved = []
    for case in range(80):
        for base in (others, torch.zeros(1, WIDTH), -1e3 * others[:1]):
            count = 1 + case % 4
            own = torch.randn(count, WIDTH, generator=generator)
            own *= 10.0 ** torch.randint(-30, 30, (count, 1), generator=generator).float()
            if case % 5 == 0:
                own[:, :-1] = 0.0  # the smallest partition alone
            if case % 7 == 0:
                own[0, 0] = torch.inf
            if case % 3 == 0:
                own = own[:1].expand(count, -1)  # the same row again and again
            before = exact(base, [*range(len(base))], 4, magnitude)
            after = exact(torch.cat([base, own]), [*range(len(base)), *[99] * count], 4, magnitude)
            moved.append(float((after - before).norm()))
            assert moved[-1] <= stated * (1 + 1e-6), (case, own)
    assert max(moved) > 0.9 * stated


# A run.


class Read(Dataset[Any]):
    """Which rows are read."""

    def __init__(self, rows: int) -> None:
        torch.manual_seed(1)
        self.x, self.read = torch.randn(rows, 6), list[int]()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        self.read.append(int(index))
        return self.x[index], int(self.x[index, 0] > 0)


def make(data: Any, person: list[int]) -> hoarfrost.Private:
    torch.manual_seed(2)
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)), nn.Linear(6, 2))
    return hoarfrost.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=10, steps=4, epsilon=6.0, delta=1e-4,
        person=person, per_person=2, accountant="rdp", freeze=Frost(0.6, rounds=2, sample_rate=0.3),
        loss=lambda output, batch: nn.functional.cross_entropy(output, batch[1]),
    )  # fmt: skip


def test_people_are_drawn_and_bring_as_many_rows_as_in_a_step() -> None:
    """Sixty of them with five rows each: a round looks at about a third, and never at a third row of anybody."""
    person = [row // 5 for row in range(300)]
    data = Read(300)
    private = make(data, person)
    before = len(data.read)
    rounds: list[list[int]] = []
    private.prepare(after_each=lambda: rounds.append([person[row] for row in data.read[before:]]))
    first, both = rounds
    for drawn in (first, both[len(first) :]):
        counts = np.bincount(drawn, minlength=60)
        assert set(counts) == {0, 2}
        assert 6 <= (counts > 0).sum() <= 32  # 18 ± 4 standard deviations
    assert private.statement().unit == "one person"
    assert private.plan.size == 60
    release = private.plan.releases[0].event
    assert isinstance(release, Gaussian)
    assert release.sample_rate == 0.3


def test_a_run_for_people_is_trained_within_its_epsilon() -> None:
    private = make(Read(120), [row // 3 for row in range(120)])
    before = {name: p.detach().clone() for name, p in private.model.named_parameters()}
    private.prepare()
    while private.steps_taken < 4:
        for x, y in private.loader:
            private.optimizer.zero_grad()
            private.optimizer.backward(nn.functional.cross_entropy(private.model(x), y, reduction="none"))
            private.optimizer.step()
    assert 5.9 < private.epsilon() <= 6.0
    live = {name for name, mask in private.freezer.live(0, private.info()).items() if mask}  # type: ignore[union-attr]
    assert {name for name, p in private.model.named_parameters() if not torch.equal(p, before[name])} == live
    assert live < set(before)
