"""People are drawn, not rows: who is drawn, what they bring, and what stays together."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils.data import DataLoader, TensorDataset

from hoarfrost.errors import InvalidValue, NotPrivate
from hoarfrost.noise import Keystream
from hoarfrost.sampling import PoissonLoader
from hoarfrost.sampling.people import People

# 40 people, of whom number k has 1 + k % 7 rows, not in order.
OWNERS = [k for k in range(40) for _ in range(1 + k % 7)]
OWNERS = [OWNERS[i] for i in np.random.default_rng(0).permutation(len(OWNERS))]


def rows_of(owners: list[int] = OWNERS) -> TensorDataset:
    return TensorDataset(torch.arange(len(owners)))


def drawn(loader: PoissonLoader, steps: int) -> list[list[int]]:
    batches: list[list[int]] = []
    while len(batches) < steps:
        batches += [rows.tolist() for (rows,) in loader]
    return batches


def people_in(rows: list[int]) -> Counter[int]:
    return Counter(OWNERS[row] for row in rows)


def test_every_person_is_drawn_with_the_rate_however_many_rows_they_have() -> None:
    loader = PoissonLoader(rows_of(), sample_rate=0.2, person=OWNERS, per_person=3, steps=1000, seed=1)
    assert (loader.poisson.size, loader.poisson.expected_batch, loader.unit) == (40, 8.0, "one person")
    batches = drawn(loader, 1000)
    counts = np.zeros(40)
    for rows in batches:
        found = people_in(rows)
        assert len(set(rows)) == len(rows)
        for who, brought in found.items():
            assert brought == min(3, 1 + who % 7)
            counts[who] += 1
    assert 1e-3 < stats.chi2.sf(((counts - 200) ** 2 / 160).sum(), 40) < 1 - 1e-3
    sizes = [len(people_in(rows)) for rows in batches]
    assert np.var(sizes) == pytest.approx(40 * 0.2 * 0.8, rel=0.2)


def test_which_rows_a_person_brings_is_drawn_anew_and_uniformly() -> None:
    people = People(["other", *["ann"] * 5], rows=6, per_person=2)
    stream = Keystream("test", seed=3)
    found = Counter(tuple(people.bring([1], stream)[0]) for _ in range(3000))
    assert set(found) == {(a, b) for a in range(1, 6) for b in range(a + 1, 6)}
    assert stats.chisquare(list(found.values())).pvalue > 1e-3


def test_a_person_with_very_many_rows_brings_no_more_than_others() -> None:
    people = People([0] * 200_000 + [1], rows=200_001, per_person=4)
    crowd, one = people.bring([0, 1], Keystream("test", seed=0))
    assert len(set(crowd)) == 4
    assert one == [200_000]
    assert max(crowd) > 1 << 16  # beyond the first chunk of random words


@pytest.mark.parametrize("workers", [0, 2])
def test_a_persons_rows_stay_together_in_chunks(workers: int) -> None:
    data = DataLoader(rows_of(), batch_size=20, num_workers=workers)
    chunks: list[Any] = []
    loader = PoissonLoader(
        data, person=OWNERS, per_person=3, views=2, max_physical_batch=20, steps=20, seed=2, on_chunk=chunks.append
    )
    plain = PoissonLoader(rows_of(), batch_size=20, person=OWNERS, per_person=3, views=2, steps=20, seed=2)
    whole = [sorted(rows) for rows in drawn(plain, 2)]
    together: list[list[int]] = []
    current: list[int] = []
    for (part,) in loader:
        chunk, rows = chunks[-1], part.tolist()
        assert len(rows) == chunk.rows(2) <= 20
        assert len(people_in(rows)) == chunk.examples <= 20 // 6
        at = 0
        for size in chunk.groups.sizes.tolist() if chunk.examples else ():
            own = rows[at : at + size]
            assert len({OWNERS[row] for row in own}) == 1
            assert own[::2] == own[1::2]  # two views of each
            at += size
        assert set(people_in(current)).isdisjoint(people_in(rows))
        current += rows
        if chunk.last:
            together.append(sorted(current))
            current = []
    assert together == whole


def test_batches_without_anybody_are_yielded() -> None:
    loader = PoissonLoader(rows_of(), sample_rate=0.01, person=OWNERS, per_person=3, steps=50, seed=0)
    assert any(len(rows) == 0 for rows in drawn(loader, 50))


def test_epochs_are_passes_over_people() -> None:
    loader = PoissonLoader(rows_of(), batch_size=10, person=OWNERS, per_person=2)
    assert len(loader) == 4


@pytest.mark.parametrize(
    "person",
    [
        OWNERS,
        torch.tensor(OWNERS),
        torch.tensor(OWNERS, dtype=torch.float64),
        np.array(OWNERS),
        np.array([f"id {k}" for k in OWNERS]),
        [("house", k) for k in OWNERS],
        [k if k % 2 else f"{k}" for k in OWNERS],
    ],
    ids=["list", "tensor", "float tensor", "array", "array of texts", "tuples", "mixed"],
)
def test_ids_of_any_kind(person: Any) -> None:
    people = People(person, rows=len(OWNERS), per_person=7)
    assert len(people) == 40
    brought = people.bring(list(range(40)), Keystream("test", seed=0))
    assert sorted(row for rows in brought for row in rows) == list(range(len(OWNERS)))
    assert all(len({OWNERS[row] for row in rows}) == 1 for rows in brought)


class NotAvailable:
    """What some libraries have in place of a value: a comparison gives neither yes nor no."""

    def __eq__(self, other: object) -> Any:
        return self

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise TypeError("neither")


def test_a_column_of_a_data_frame() -> None:
    column = np.array(["a", "b", "a"], dtype=object)
    assert len(People(column, rows=3, per_person=1)) == 2
    with pytest.raises(NotPrivate, match="no person's id"):
        People(np.array([1, NotAvailable(), 1], dtype=object), rows=3, per_person=1)


@pytest.mark.parametrize("missing", [None, math.nan, "", "  ", "nan", "None", np.float64("nan"), np.datetime64("NaT")])
def test_a_row_without_an_id_is_refused(missing: Any) -> None:
    with pytest.raises(NotPrivate, match="a row has no person's id") as refusal:
        People(["ann", missing, "ann"], rows=3, per_person=1)
    assert "ann" not in str(refusal.value)


def test_a_masked_id_is_missing() -> None:
    with pytest.raises(NotPrivate, match="no person's id"):
        People(np.ma.array([1, 2, 1], mask=[False, True, False]), rows=3, per_person=1)


@pytest.mark.parametrize(
    ("person", "per_person", "message"),
    [
        (["a", "b"], 1, "2 ids, and the data set 3 rows"),
        ("customer", 1, "not one str"),
        (7, 1, "not one int"),
        (torch.zeros(3, 2), 1, "not a list"),
        (["a", "b", "a"], None, "needs per_person="),
        (None, 2, "say whose each row is with person="),
        (["a", "b", "a"], 0, "per_person"),
    ],
)
def test_what_cannot_be_is_refused(person: Any, per_person: int | None, message: str) -> None:
    data = TensorDataset(torch.zeros(3))
    with pytest.raises(InvalidValue, match=message):
        PoissonLoader(data, sample_rate=0.5, person=person, per_person=per_person)


def test_more_people_than_there_are_cannot_be_expected() -> None:
    with pytest.raises(InvalidValue, match="more than the 40 people there are"):
        PoissonLoader(rows_of(), batch_size=41, person=OWNERS, per_person=2)
    with pytest.raises(InvalidValue, match="cannot hold the 6 rows of one person"):
        PoissonLoader(rows_of(), batch_size=4, person=OWNERS, per_person=3, views=2, max_physical_batch=5)


def test_an_id_of_its_own_for_every_row_gets_a_hint() -> None:
    with pytest.warns(UserWarning, match="another id for every row"):
        PoissonLoader(rows_of(), sample_rate=0.5, person=range(len(OWNERS)), per_person=1)
