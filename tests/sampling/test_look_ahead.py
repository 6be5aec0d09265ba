"""Loops that take batches from the loader before they use them: each batch is trained on as what it is."""

from __future__ import annotations

import gc
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hoarfrost
from hoarfrost.clipping import Local
from hoarfrost.errors import NotPrivate
from hoarfrost.observers import Observer, Released
from hoarfrost.tickets import HELD
from tests import oracle

N, NORM = 40, 0.4
Wrap = Callable[[Iterable[Any]], Iterable[Any]]


def ahead(depth: int, move: Callable[[Any], Any] = lambda batch: batch) -> Wrap:
    """Holds so many batches back, as prefetching wrappers do; ``move`` is what they do to a batch on the way."""

    def wrap(loader: Iterable[Any]) -> Iterator[Any]:
        waiting: deque[Any] = deque()
        for batch in loader:
            waiting.append(move(batch))
            if len(waiting) > depth:
                yield waiting.popleft()
        yield from waiting

    return wrap


def shard(loader: Any) -> Iterable[Any]:
    from accelerate.data_loader import DataLoaderShard

    wrapped = DataLoaderShard(loader.dataset, device=torch.device("cpu"))
    wrapped.base_dataloader = loader
    return wrapped


def copied(batch: Any) -> Any:
    """As a device's own copy would be: nothing of the tensors that the loader handed over."""
    return [t.clone() for t in batch]


WRAPPERS: dict[str, Wrap] = {
    "none": ahead(0),
    "one": ahead(1),
    "two": ahead(2),
    "five": ahead(5),
    "all": list,
    "one, copied": ahead(1, copied),
    "two, copied": ahead(2, copied),
    "all, copied": lambda loader: list(map(copied, loader)),
    "accelerate's shard": shard,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "whole batches": {"sample_rate": 0.3},
    "chunks": {"sample_rate": 0.3, "max_physical_batch": 4},
    "empty batches": {"sample_rate": 0.03},
    "empty batches and chunks": {"sample_rate": 0.04, "max_physical_batch": 1},
    "workers": {"sample_rate": 0.3, "workers": 1},
}


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def data() -> TensorDataset:
    torch.manual_seed(2)
    return TensorDataset(torch.randn(N, 4) * 3, torch.randint(3, (N,)))


def make(workers: int = 0, **options: Any) -> Any:
    model = net()
    loader = torch.utils.data.DataLoader(data(), batch_size=1, num_workers=workers)
    given = {"noise_multiplier": 0.0, "delta": 1e-5, "clip": Local(NORM), "seed": 3, **options}
    return hoarfrost.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), loader, **given)


class Steps(Observer):
    """The clipped sum of every step."""

    def __init__(self) -> None:
        self.sums: list[dict[str, Tensor]] = []

    def on_release(self, released: Released) -> None:
        self.sums.append({name: total.clone() for name, total in released.clipped.items()})


def train(private: Any, wrap: Wrap, epochs: int = 2) -> list[list[Any]]:
    """Trains; returns the logical batches, each as the list of its chunks, with the weights that they met."""
    batches: list[list[Any]] = [[]]
    model, optimizer, loader = private
    for _ in range(epochs):
        for x, y in wrap(loader):
            batches[-1].append((x, y, {name: p.detach().clone() for name, p in model.named_parameters()}))
            before = private.steps_taken
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if private.steps_taken > before:
                batches.append([])
    assert batches.pop() == []
    return batches


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_every_batch_equals_the_oracle_however_far_the_loop_looks_ahead(wrapper: str, setting: str) -> None:
    private, seen = make(**SETTINGS[setting]), Steps()
    private.observe(seen)
    batches = train(private, WRAPPERS[wrapper])
    assert private.steps_taken == len(seen.sums) == len(batches) == private.charged > 3
    sizes = [sum(len(x) for x, _, _ in batch) for batch in batches]
    assert (0 in sizes) == ("empty" in setting)
    for batch, found in zip(batches, seen.sums, strict=True):
        x, y = (torch.cat([chunk[part] for chunk in batch]) for part in (0, 1))
        plain = net()
        plain.load_state_dict(batch[0][2])
        if len(x) == 0:
            assert found == {}
            continue
        per_example = oracle.gradients(plain, (x, y), lambda m, b: F.cross_entropy(m(b[0]), b[1]))
        expected = oracle.clipped_sum(per_example, NORM)
        assert any(oracle.norm(gradient) > NORM for gradient in per_example)
        for name, total in expected.items():
            torch.testing.assert_close(found[name], total, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("wrapper", ["one", "two", "one, copied", "accelerate's shard"])
@pytest.mark.parametrize("setting", ["whole batches", "chunks", "empty batches"])
def test_it_is_the_same_run_as_without_looking_ahead(wrapper: str, setting: str) -> None:
    plain, looking = make(**SETTINGS[setting]), make(**SETTINGS[setting])
    train(plain, ahead(0))
    train(looking, WRAPPERS[wrapper])
    for a, b in zip(plain.model.parameters(), looking.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_what_was_fetched_ahead_and_never_used_stays_charged() -> None:
    private = make(sample_rate=0.1, noise_multiplier=1.0, seed=None)
    for number, (x, y) in enumerate(ahead(3)(private.loader)):
        F.cross_entropy(private.model(x), y).backward()
        private.optimizer.step()
        if number == 1:
            break
    assert (private.steps_taken, private.charged) == (2, 5)
    train(private, ahead(0), epochs=1)  # what was fetched is void: the next iteration opens with a new batch
    assert private.charged == private.steps_taken + 3


def test_a_calibrated_run_that_looks_ahead_takes_all_its_steps() -> None:
    private = make(sample_rate=0.3, noise_multiplier=None, epsilon=2.0, epochs=3, seed=None)
    train(private, ahead(2), epochs=3)
    assert private.steps_taken == private.charged == private.steps == 10
    assert private.epsilon() <= 2.0


def test_a_wrapper_that_goes_round_and_round_may_look_into_the_next_epoch() -> None:
    def round_and_round(loader: Iterable[Any]) -> Iterator[Any]:
        for _ in range(3):
            yield from loader

    private, plain = make(sample_rate=0.3), make(sample_rate=0.3)
    train(private, lambda loader: ahead(2)(round_and_round(loader)), epochs=1)
    train(plain, ahead(0), epochs=3)
    for a, b in zip(plain.model.parameters(), private.model.parameters(), strict=True):
        assert torch.equal(a, b)


# What is still refused.


@pytest.mark.parametrize("move", [lambda batch: batch, copied])
def test_two_poisson_batches_in_one_step_are_refused(move: Callable[[Any], Any]) -> None:
    for depth in (0, 1, 3):
        private = make(sample_rate=0.3)
        batches = iter(ahead(depth, move)(private.loader))
        for _ in range(2):
            x, y = next(batches)
            loss = F.cross_entropy(private.model(x), y)
            if not private.optimizer.engine.sums.total:
                loss.backward()
        with pytest.raises(NotPrivate, match="two Poisson batches"):
            loss.backward()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_batch_that_is_used_twice_is_refused(depth: int) -> None:
    """Also where the next one's ticket lies ready."""
    private = make(sample_rate=0.3)
    x, y = next(iter(ahead(depth)(private.loader)))
    F.cross_entropy(private.model(x), y).backward()
    private.optimizer.step()
    with pytest.raises(NotPrivate, match="already taken"):
        F.cross_entropy(private.model(x), y).backward()
    assert private.steps_taken == 1


def test_a_part_of_a_batch_is_refused_while_others_are_out() -> None:
    """Whose examples they are could not be known: a part of this batch and of the next would count as one."""
    private = make(sample_rate=0.3)
    x, y = next(iter(ahead(1, copied)(private.loader)))
    with pytest.raises(NotPrivate, match="run the model once on each batch"):
        F.cross_entropy(private.model(x[:3]), y[:3]).backward()


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("skipped", [1, 2])
@pytest.mark.parametrize("move", [lambda batch: batch, copied])
def test_a_loop_may_begin_later(depth: int, skipped: int, move: Callable[[Any], Any]) -> None:
    """As one that skips what it has seen before a restart: those chunks are no sign that it looks ahead."""
    private, seen = make(sample_rate=1.0, max_physical_batch=10), Steps()  # every batch is four equal chunks
    private.observe(seen)
    model, optimizer, loader = private
    plain, sums = net(), []
    for number, (x, y) in enumerate(ahead(depth, move)(loader)):
        if number < skipped:
            continue
        per_example = oracle.gradients(plain, (x, y), lambda m, b: F.cross_entropy(m(b[0]), b[1]))
        sums.append(oracle.clipped_sum(per_example, NORM))
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    (found,) = seen.sums
    for name in found:
        torch.testing.assert_close(found[name], sum(each[name] for each in sums), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("move", [lambda batch: batch, copied])
def test_a_loop_may_skip_batches(depth: int, chunk: int | None, move: Callable[[Any], Any]) -> None:
    """Every third one is not used, as if its loss had been NaN; nothing of two batches is ever added up.

    Where it looks ahead and its tensors are not those that were handed over, the end of an epoch leaves open which
    batch a run is on, and it is refused.
    """
    private, seen = make(sample_rate=0.3, max_physical_batch=chunk), Steps()
    private.observe(seen)
    used: list[dict[str, Tensor]] = []
    model, optimizer, loader = private
    for number, (x, y) in enumerate(ahead(depth, move)(loader)):
        optimizer.zero_grad()
        with suppress(NotPrivate) if depth > 0 and move is copied else nullcontext():
            loss = None
            loss = F.cross_entropy(model(x), y)
        if loss is None:
            break
        if number % 3 == 2:
            continue
        taken, plain = private.steps_taken, net()
        plain.load_state_dict(model.state_dict())
        per_example = oracle.gradients(plain, (x, y), lambda m, b: F.cross_entropy(m(b[0]), b[1]))
        used.append(oracle.clipped_sum(per_example, NORM))
        loss.backward()
        optimizer.step()
        if private.steps_taken > taken:
            assert_sum(seen.sums[-1], used)
            used = []
    assert seen.sums


def assert_sum(found: dict[str, Tensor], parts: list[dict[str, Tensor]]) -> None:
    """The released sum is that of the last chunks used: of some of them, and of nothing else."""
    ends = [parts[start:] for start in range(len(parts))]
    sums = [{name: sum(part[name] for part in end) for name in found} for end in ends]
    assert any(all(torch.allclose(found[n], s[n], rtol=1e-3, atol=1e-5) for n in found) for s in sums)


def test_a_loop_that_changes_how_far_it_looks_ahead_is_followed_by_its_tensors() -> None:
    """The first chunk is used at once, the others one later: chunks of two batches must not be taken for one batch."""
    for seed in range(20):
        private, seen = make(sample_rate=0.05, max_physical_batch=1, seed=seed), Steps()
        private.observe(seen)
        model, optimizer, loader = private
        plain, parts = net(), []
        batches = iter(loader)
        fetched = [next(batches)]
        while fetched:
            x, y = fetched.pop(0)
            taken = private.steps_taken
            plain.load_state_dict(model.state_dict())
            if len(x):
                per_example = oracle.gradients(plain, (x, y), lambda m, b: F.cross_entropy(m(b[0]), b[1]))
                parts.append(oracle.clipped_sum(per_example, NORM))
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if private.steps_taken > taken:
                for name, total in seen.sums[-1].items():
                    torch.testing.assert_close(total, sum(p[name] for p in parts), rtol=1e-3, atol=1e-5)
                parts = []
            while len(fetched) < 2 and (batch := next(batches, None)) is not None:
                fetched.append(batch)
        assert private.steps_taken == private.charged


def test_a_batch_before_the_last_is_recognised_if_it_is_used_again() -> None:
    private = make(sample_rate=0.3)
    batches = iter(private.loader)
    x, y = next(batches)
    F.cross_entropy(private.model(x), y).backward()
    private.optimizer.step()
    next(batches)
    with pytest.raises(NotPrivate, match="already taken"):
        F.cross_entropy(private.model(x), y).backward()


@pytest.mark.parametrize("use", ["never", "without gradients", "forward only"])
def test_batches_that_are_never_trained_on_are_not_kept(use: str) -> None:
    private = make(sample_rate=0.1, seed=None)
    drawn: list[weakref.ref[Tensor]] = []
    for _ in range(5):
        for x, _y in private.loader:
            drawn.append(weakref.ref(x))
            with torch.set_grad_enabled(use == "forward only"):
                if use != "never":
                    private.model(x)
    gc.collect()
    assert sum(ref() is not None for ref in drawn) <= HELD + 2
    assert len(private.loader.tickets._out) <= 2 * 10


def test_a_thread_may_fetch_ahead() -> None:
    private, seen = make(sample_rate=0.2), Steps()
    private.observe(seen)
    waiting: queue.Queue[Any] = queue.Queue(maxsize=3)

    def fetch() -> None:
        for batch in private.loader:
            waiting.put(batch)
        waiting.put(None)

    thread = threading.Thread(target=fetch)
    thread.start()
    batches = train(private, lambda _: iter(waiting.get, None), epochs=1)
    thread.join()
    assert len(batches) == len(seen.sums) == 5


def test_a_refused_backward_leaves_the_run_able_to_go_on() -> None:
    private = make(sample_rate=0.5, max_physical_batch=4)
    x, y = next(iter(private.loader))
    F.cross_entropy(private.model(x), y).backward()  # the first chunk of a batch, which is broken off
    x, y = next(iter(private.loader))
    with pytest.raises(NotPrivate, match="more examples than were drawn"):
        F.cross_entropy(private.model(torch.cat([x, x])), torch.cat([y, y])).backward()
    train(private, ahead(0), epochs=1)
    assert private.steps_taken == 2


def test_chunks_that_are_skipped_unseen_are_refused_where_the_tensors_are_not_the_loader_s() -> None:
    """Which chunk is run next cannot be known then: one of the next batch could be taken for one of this."""
    private = make(sample_rate=1.0, max_physical_batch=10)
    batches = ahead(1, copied)(private.loader)
    x, y = next(batches)
    F.cross_entropy(private.model(x), y).backward()
    next(batches)
    x, y = next(batches)
    with pytest.raises(NotPrivate, match="which chunk of a batch"):
        private.model(x)
