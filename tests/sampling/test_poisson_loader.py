"""The loader: epochs, chunks, empty batches, workers, and what happens when a loop is broken off."""

import math
from collections import namedtuple

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler

from hoarfrost.errors import BudgetSpent, InvalidValue, NotPrivate
from hoarfrost.sampling import Chunk, Poisson, PoissonLoader


class Numbers(Dataset):
    """Record i is the number i."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if not 0 <= index < self.size:
            raise IndexError(index)
        return torch.tensor([index, index])


def first_column(batch):
    return batch[:, 0].tolist()


class Recorder:
    """Notes the chunks announced, and what was yielded after each."""

    def __init__(self):
        self.chunks = []

    def __call__(self, chunk):
        self.chunks.append(chunk)

    def batches(self, loader):
        """An iteration's logical batches, put together from their chunks as an optimizer would."""
        together, current = [], []
        for batch in loader:
            chunk = self.chunks[-1]
            assert len(batch) == chunk.examples * loader.views
            assert chunk.first == (not current)
            current.append(first_column(batch))
            if chunk.last:
                together.append([row for part in current for row in part])
                current = []
        assert not current
        return together


def test_each_record_is_drawn_at_the_rate_asked_for():
    loader = PoissonLoader(Numbers(200), sample_rate=0.1, steps=500, seed=1)
    rows = [first_column(batch) for _ in range(50) for batch in loader]
    counts = np.bincount(np.concatenate([np.array(r, dtype=np.int64) for r in rows]), minlength=200)
    assert len(rows) == 500
    score = ((counts - 50) ** 2 / 45).sum()
    assert 1e-3 < stats.chi2.sf(score, 200) < 1 - 1e-3
    assert stats.kstest(stats.binom.cdf([len(r) for r in rows], 200, 0.1), "uniform").statistic < 0.12
    assert all(len(set(r)) == len(r) for r in rows)


def test_the_loader_draws_what_its_poisson_object_accounts_for():
    loader = PoissonLoader(Numbers(99), batch_size=10)
    assert loader.poisson == Poisson(sample_rate=10 / 99, size=99)
    assert PoissonLoader(Numbers(99), sample_rate=0.1).poisson.expected_batch == pytest.approx(9.9)


@pytest.mark.parametrize("rate", [1.0, 0.7, 0.3, 0.15])
def test_epochs_add_up_to_the_right_number_of_steps(rate):
    loader = PoissonLoader(Numbers(20), sample_rate=rate)
    lengths = []
    for _ in range(7):
        announced = len(loader)
        lengths.append(sum(1 for _ in loader))
        assert lengths[-1] == announced
    assert sum(lengths) == math.ceil(7 / rate - 1e-9) == loader.steps_drawn


def test_the_run_stops_at_its_number_of_steps_and_says_so():
    loader = PoissonLoader(Numbers(20), sample_rate=0.25, steps=6)
    assert len(list(loader)) == 4
    assert len(loader) == 2
    assert len(list(loader)) == 2
    assert loader.steps_drawn == 6
    assert len(loader) == 0
    with pytest.raises(BudgetSpent, match="all 6 steps"):
        iter(loader)


def test_steps_may_end_within_the_first_epoch():
    loader = PoissonLoader(Numbers(20), sample_rate=0.1, steps=3)
    assert len(list(loader)) == 3


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("most", [None, 1, 7, 1000])
def test_chunks_put_together_are_the_logical_batches(workers, most):
    def loader(most, recorder=None, workers=0):
        data = DataLoader(Numbers(60), batch_size=4, num_workers=workers)
        return PoissonLoader(data, max_physical_batch=most, seed=3, steps=20, on_chunk=recorder)

    whole = loader(None)
    plain = [[first_column(batch) for batch in whole] for _ in range(2)]
    recorder = Recorder()
    chunked = loader(most, recorder, workers)
    assert [recorder.batches(chunked) for _ in range(2)] == plain
    assert all(chunk.examples <= (most or 60) for chunk in recorder.chunks)
    assert chunked.steps_drawn == 20


def test_with_chunks_the_length_is_unknown():
    with pytest.raises(TypeError, match="not known"):
        len(PoissonLoader(Numbers(20), sample_rate=0.5, max_physical_batch=4))
    assert list(PoissonLoader(Numbers(20), sample_rate=0.5, max_physical_batch=4))


@pytest.mark.parametrize("workers", [0, 2])
def test_empty_batches_are_yielded_in_their_place(workers):
    def batches(workers):
        recorder = Recorder()
        data = DataLoader(Numbers(5), batch_size=1, num_workers=workers)
        loader = PoissonLoader(data, sample_rate=0.05, max_physical_batch=1, seed=1, on_chunk=recorder)
        return recorder.batches(loader)

    here = batches(0)
    assert len(here) == 20
    assert stats.binomtest(here.count([]), 20, 0.95**5).pvalue > 1e-3
    assert 0 < here.count([]) < 20
    assert batches(workers) == here


def test_an_epoch_of_empty_batches_only_is_an_epoch():
    loader = PoissonLoader(Numbers(3), sample_rate=1e-3, seed=0)
    batches = [len(batch) for batch in loader]
    assert len(batches) == 1000
    assert batches.count(0) > 980


def test_empty_batches_never_reach_the_collate_function():
    seen = []

    def collate(rows):
        seen.append(len(rows))
        return torch.stack(rows)

    loader = PoissonLoader(DataLoader(Numbers(2), batch_size=1, collate_fn=collate), sample_rate=0.02, seed=0)
    empty = sum(len(batch) == 0 for batch in loader)
    assert empty > 40
    assert 0 not in seen
    assert len(seen) == 50 - empty + 2  # two for the template, once


def test_an_empty_batch_that_is_changed_does_not_change_the_next():
    data = [{"x": torch.ones(2), "y": 1}]
    shapes = []
    for batch in PoissonLoader(data, sample_rate=1e-3, seed=5, steps=50):
        shapes.append({key: batch[key].shape[1:] for key in ("x", "y")})
        batch.pop("y")
        batch["x"].resize_(3)
    assert shapes == [{"x": (2,), "y": ()}] * 50


Pair = namedtuple("Pair", ["x", "y"])


@pytest.mark.parametrize(
    ("record", "rows"),
    [
        (lambda i: {"x": torch.ones(3) * i, "more": {"y": i}}, lambda b: (b["x"], b["more"]["y"])),
        (lambda i: Pair(torch.ones(3) * i, i), lambda b: (b.x, b.y)),
        (lambda i: (torch.ones(3) * i, [i, i]), lambda b: (b[0], b[1][0])),
    ],
    ids=["nested dictionaries", "named tuples", "tuples of lists"],
)
def test_full_and_empty_batches_have_one_structure(record, rows):
    loader = PoissonLoader([record(i) for i in range(4)], sample_rate=0.1, seed=2, steps=30)
    sizes = set()
    for batch in [b for _ in range(3) for b in loader]:
        x, y = rows(batch)
        assert x.shape == (len(y), 3)
        assert torch.equal(x[:, 0].long(), y)
        sizes.add(len(y))
    assert {0, 1} <= sizes


# Breaking off


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_breaking_off_within_a_batch_leaves_nothing_behind(workers, persistent):
    recorder = Recorder()
    data = DataLoader(Numbers(40), batch_size=10, num_workers=workers, persistent_workers=persistent)
    loader = PoissonLoader(data, max_physical_batch=2, seed=4, steps=12, on_chunk=recorder)
    for _ in loader:
        if recorder.chunks[-1].last is False and loader.steps_drawn == 1:
            break
    assert recorder.chunks[-1] == Chunk(examples=2, first=True, last=False)
    assert loader.steps_drawn == 1
    done = [len(recorder.batches(loader)) for _ in range(3)]
    assert done == [4, 4, 3]
    assert loader.steps_drawn == 12
    with pytest.raises(BudgetSpent):
        iter(loader)


def test_the_next_epoch_is_the_same_however_the_last_one_ended():
    """Reproducible with any number of workers: what was drawn ahead and thrown away has no influence."""

    def second_epoch(workers, stop_after):
        data = DataLoader(Numbers(40), batch_size=10, num_workers=workers)
        loader = PoissonLoader(data, seed=4)
        for count, _ in enumerate(loader, 1):
            if count == stop_after:
                break
        return [first_column(batch) for batch in loader]

    expected = second_epoch(0, None)
    assert second_epoch(0, 1) == expected
    assert second_epoch(2, 1) == expected
    assert second_epoch(2, None) == expected


def test_a_broken_batch_is_not_taken_up_again():
    recorder = Recorder()
    loader = PoissonLoader(Numbers(1000), batch_size=500, max_physical_batch=100, on_chunk=recorder)
    broken = first_column(next(iter(loader)))
    fresh = recorder.batches(loader)[0]
    assert len(broken) == 100
    assert 20 < len(set(broken) & set(fresh)) < 80  # half of them by chance


def test_a_batch_handed_over_in_full_counts_even_if_the_loop_ends_there():
    loader = PoissonLoader(Numbers(20), sample_rate=0.1)
    next(iter(loader))
    assert loader.steps_drawn == 1


def test_breaking_off_early_every_time_never_exceeds_the_steps():
    loader = PoissonLoader(Numbers(20), sample_rate=0.1, steps=7)
    taken = 0
    while loader.steps_drawn < 7:
        for _ in loader:
            taken += 1
            if taken % 2 == 0:
                break
    assert taken == 7
    with pytest.raises(BudgetSpent):
        iter(loader)


def test_an_iterator_that_was_never_used_costs_nothing():
    loader = PoissonLoader(Numbers(20), sample_rate=0.5, steps=2)
    iter(loader), iter(loader)
    assert len(list(loader)) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_two_iterations_at_once_are_refused(workers):
    data = DataLoader(Numbers(20), batch_size=2, num_workers=workers, persistent_workers=workers > 0)
    loader = PoissonLoader(data)
    first = iter(loader)
    next(first)
    second = iter(loader)
    next(second)
    with pytest.raises(NotPrivate, match="ended by a later one"):
        next(first)
    assert len(list(second)) == 9


def test_chunks_are_announced_as_they_are_yielded_although_workers_run_ahead():
    recorder = Recorder()
    data = DataLoader(Numbers(50), batch_size=10, num_workers=2, prefetch_factor=4)
    count = 0
    for count, _ in enumerate(PoissonLoader(data, max_physical_batch=3, on_chunk=recorder), 1):
        assert len(recorder.chunks) == count
    assert count >= 5  # one for each batch at least


def test_a_batch_refused_by_the_listener_is_not_counted():
    def refuse(chunk):
        raise BudgetSpent("no more")

    loader = PoissonLoader(Numbers(20), sample_rate=0.5, on_chunk=refuse)
    with pytest.raises(BudgetSpent, match="no more"):
        next(iter(loader))
    assert loader.steps_drawn == 0


# Views


def test_views_of_an_example_are_neighbours_and_drawn_anew():
    class Augmented(Numbers):
        def __getitem__(self, index):
            return torch.tensor([index, torch.randint(1 << 30, ()).item()])

    recorder = Recorder()
    loader = PoissonLoader(Augmented(30), sample_rate=0.5, views=3, max_physical_batch=7, seed=1, on_chunk=recorder)
    for batch in loader:
        assert len(batch) == 3 * recorder.chunks[-1].examples <= 7
        views = batch.view(-1, 3, 2)
        assert (views[:, :, 0] == views[:, :1, 0]).all()
        assert len(views[:, :, 1].unique()) == views[:, :, 1].numel()
    assert max(chunk.examples for chunk in recorder.chunks) == 2


def test_views_do_not_change_which_examples_are_drawn():
    plain = PoissonLoader(Numbers(30), sample_rate=0.5, seed=1)
    viewed = PoissonLoader(Numbers(30), sample_rate=0.5, seed=1, views=2)
    assert [first_column(b) for b in plain] == [first_column(b)[::2] for b in viewed]


# Seeds and restarts


def test_seeds_repeat_and_no_seed_never_does():
    def epoch(seed):
        return [first_column(batch) for batch in PoissonLoader(Numbers(100), batch_size=20, seed=seed)]

    assert epoch(1) == epoch(1)
    assert epoch(1) != epoch(2)
    assert epoch(None) != epoch(None)
    torch.manual_seed(0)
    first = epoch(None)
    torch.manual_seed(0)
    assert first != epoch(None)
    assert PoissonLoader(Numbers(1), batch_size=1, seed=0).seeded
    assert not PoissonLoader(Numbers(1), batch_size=1).seeded


def test_epochs_of_one_seed_differ():
    loader = PoissonLoader(Numbers(100), batch_size=20, seed=1)
    assert [first_column(b) for b in loader] != [first_column(b) for b in loader]


def test_a_restarted_run_goes_on_where_it_was():
    def new():
        return PoissonLoader(Numbers(40), batch_size=10, seed=1, steps=10)

    whole = new()
    epochs = [[first_column(b) for b in whole] for _ in range(3)]
    started, restarted = new(), new()
    list(started)
    restarted.load_state_dict(started.state_dict())
    assert [[first_column(b) for b in restarted] for _ in range(2)] == epochs[1:]
    with pytest.raises(BudgetSpent):
        iter(restarted)


def test_a_run_that_goes_back_draws_new_batches():
    loader = PoissonLoader(Numbers(40), batch_size=10, seed=1)
    list(loader)
    state = loader.state_dict()
    second = [first_column(b) for b in loader]
    loader.load_state_dict(state)
    assert loader.steps_drawn == 4
    assert [first_column(b) for b in loader] != second


def test_an_iteration_goes_on_after_another_state_was_loaded_and_keeps_to_the_steps():
    loader = PoissonLoader(Numbers(40), batch_size=10, steps=9)
    batches = iter(loader)
    next(batches)
    loader.load_state_dict({"epoch": 2, "steps_drawn": 8, "iterations": 2})
    assert len(list(batches)) == 1
    assert loader.steps_drawn == 9


def test_a_run_restarted_within_an_epoch_first_finishes_that_epoch():
    started = PoissonLoader(Numbers(40), batch_size=10)
    batches = iter(started)
    next(batches), next(batches), next(batches)
    restarted = PoissonLoader(Numbers(40), batch_size=10)
    restarted.load_state_dict(started.state_dict())
    assert len(restarted) == 4  # of the whole epoch: trainers go on counting where they were
    assert [len(list(restarted)), len(restarted), len(list(restarted))] == [1, 4, 4]
    assert restarted.epoch == 2


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("rate", [0.02, 0.5])
def test_every_batch_is_paid_for_once_before_anything_of_it_is_handed_over(rate, workers):
    """Empty ones and those in chunks too, and none that is not handed over."""
    seen = []
    loader = PoissonLoader(
        DataLoader(Numbers(30), batch_size=1, num_workers=workers), sample_rate=rate, steps=20, max_physical_batch=4,
        seed=3, on_batch=lambda: seen.append("paid"), on_chunk=lambda chunk: seen.append((chunk.first, chunk.last)),
    )  # fmt: skip
    list(loader) if rate < 0.05 else [list(loader) for _ in range(10)]
    assert seen.count("paid") == sum(last for _, last in filter(lambda e: e != "paid", seen)) == 20
    due = False
    for event in seen:
        if event == "paid":
            assert not due
            due = True
        elif event[0]:
            assert due
            due = False


def test_a_batch_is_not_drawn_before_it_is_paid_for():
    drawn = []

    class Watched(Numbers):
        def __getitem__(self, index):
            drawn.append(index)
            return super().__getitem__(index)

    def refuse():
        raise BudgetSpent("no")

    with pytest.raises(BudgetSpent):
        next(iter(PoissonLoader(Watched(30), sample_rate=1.0, on_batch=refuse)))
    assert drawn == []


# What it is made of


def test_a_data_loader_lends_its_settings():
    def collate(rows):
        return torch.stack(rows) * 2

    given = DataLoader(Numbers(10), batch_size=5, shuffle=True, drop_last=True, collate_fn=collate, timeout=3,
                       num_workers=1, prefetch_factor=5, persistent_workers=True, worker_init_fn=print,
                       multiprocessing_context="fork", generator=torch.Generator())  # fmt: skip
    loader = PoissonLoader(given)
    assert loader.poisson.sample_rate == 0.5
    assert loader.dataset is given.dataset
    names = [
        "collate_fn",
        "num_workers",
        "pin_memory",
        "timeout",
        "worker_init_fn",
        "multiprocessing_context",
    ]
    for name in [*names, "prefetch_factor", "persistent_workers", "generator"]:
        assert getattr(loader._loader, name) == getattr(given, name), name


def test_a_rate_given_goes_before_the_data_loaders_batch_size():
    given = DataLoader(Numbers(10), batch_size=5)
    assert PoissonLoader(given, batch_size=2).poisson.expected_batch == 2
    assert PoissonLoader(given, sample_rate=0.3).poisson.sample_rate == 0.3


def test_common_data_sets_are_taken():
    for data in (TensorDataset(torch.ones(10, 2)), Subset(Numbers(20), range(10)), list(range(10))):
        assert PoissonLoader(data, batch_size=5).poisson.size == 10


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))


class Uncountable(Dataset):
    def __getitem__(self, index):
        return index


class OwnOrder(SequentialSampler):
    pass


NUMBERS = Numbers(10)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Stream(), "Stream is an IterableDataset"),
        (DataLoader(Stream(), batch_size=2), "IterableDataset"),
        (Uncountable(), "Uncountable lacks __len__"),
        (DataLoader(NUMBERS, sampler=WeightedRandomSampler([1.0] * 10, 10)), "WeightedRandomSampler"),
        (DataLoader(NUMBERS, sampler=DistributedSampler(NUMBERS, 2, 0)), "DistributedSampler"),
        (DataLoader(NUMBERS, sampler=RandomSampler(NUMBERS, replacement=True)), "RandomSampler"),
        (DataLoader(NUMBERS, sampler=RandomSampler(NUMBERS, num_samples=5)), "RandomSampler"),
        (DataLoader(NUMBERS, sampler=SequentialSampler(Numbers(5))), "SequentialSampler"),
        (DataLoader(NUMBERS, sampler=OwnOrder(NUMBERS)), "OwnOrder"),
        (DataLoader(NUMBERS, sampler=[1, 2, 3]), "list"),
        (
            DataLoader(NUMBERS, batch_sampler=BatchSampler(SequentialSampler(NUMBERS), 2, False)),
            "batch_sampler",
        ),
        (DataLoader(NUMBERS, batch_size=None), "no batches at all"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_sampled_is_refused(data, message):
    with pytest.raises(NotPrivate, match=message):
        PoissonLoader(data, batch_size=2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give batch_size or sample_rate"),
        ({"batch_size": 2, "sample_rate": 0.2}, "give one of them"),
        ({"batch_size": 11}, "at most 10"),
        ({"sample_rate": 1.5}, "sample_rate"),
        ({"batch_size": 2, "steps": 0}, "steps"),
        ({"batch_size": 2, "views": 0}, "views"),
        ({"batch_size": 2, "max_physical_batch": 0}, "max_physical_batch"),
        ({"batch_size": 2, "views": 4, "max_physical_batch": 3}, "at least 4"),
        ({"batch_size": 2, "seed": "x"}, "seed"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(InvalidValue, match=message):
        PoissonLoader(NUMBERS, **settings)


def test_an_empty_data_set_is_refused():
    with pytest.raises(InvalidValue, match="empty"):
        PoissonLoader(Numbers(0), batch_size=1)


def test_an_empty_batch_is_made_from_the_first_example_that_can_be_read():
    def readable(rows):
        return default_collate([row for row in rows if row is not None])

    data = [None, *torch.ones(30, 3)]
    loader = PoissonLoader(DataLoader(data, collate_fn=readable), sample_rate=0.1, seed=1)
    assert (0, 3) in {tuple(batch.shape) for batch in loader}
