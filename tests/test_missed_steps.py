"""A batch that was handed over is a step: charged whatever the loop does, and said once if it takes none."""

from __future__ import annotations

import queue
import threading
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hoarfrost
from hoarfrost.budget import Gaussian, epsilon


def make(rate: float = 0.1, steps: int = 60, workers: int = 0, **options: Any) -> Any:
    torch.manual_seed(1)
    model = nn.Linear(4, 3)
    data = DataLoader(TensorDataset(torch.randn(20, 4), torch.randint(3, (20,))), batch_size=2, num_workers=workers)
    given: dict[str, Any] = {"noise_multiplier": 4.0, "delta": 1e-5, "accountant": "rdp", "seed": 4} | options
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return hoarfrost.make_private(model, optimizer, data, sample_rate=rate, steps=steps, **given)


SKIPS: dict[str, Any] = {
    "an empty batch": lambda number, y, loss: len(y) == 0,
    "a loss that is no number": lambda number, y, loss: bool(loss.isnan()),
    "a large loss": lambda number, y, loss: bool(loss > 1.1),
    "the first batch": lambda number, y, loss: number == 0,
    "every other batch": lambda number, y, loss: number % 2,
}


def train(private: Any, skip: Any = None, epochs: Any = None, copies: bool = False, most: int = 60) -> int:
    """Goes on where ``skip`` says so; how many batches were drawn."""
    drawn = 0
    while drawn < most and private.loader.steps_drawn < private.steps:
        for x, y in private.loader if epochs is None else epochs():
            drawn += 1
            if copies:
                x, y = x.clone(), y.clone()
            private.optimizer.zero_grad()
            if skip is SKIPS["an empty batch"] and skip(drawn - 1, y, None):
                continue
            loss = nn.functional.cross_entropy(private.model(x), y)
            if skip is not None and skip(drawn - 1, y, loss):
                continue
            loss.backward()
            private.optimizer.step()
    return drawn


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("why", SKIPS)
def test_a_batch_without_a_step_is_charged_and_said_once(why: str, copies: bool) -> None:
    private = make()
    with pytest.warns(UserWarning, match="without optimizer.step") as told:
        assert train(private, SKIPS[why], copies=copies) == 60
    assert len([each for each in told if "without optimizer.step" in str(each.message)]) == 1
    assert private.steps_taken < 60 == private.charged
    assert private.epsilon() == epsilon(Gaussian(noise_multiplier=4.0, sample_rate=0.1, steps=60), 1e-5, "rdp")


def test_the_warning_names_the_line_of_the_loop() -> None:
    private = make()
    with pytest.warns(UserWarning, match="without optimizer.step") as told:
        train(private, SKIPS["every other batch"])
    assert told[0].filename == __file__


def looking_ahead(private: Any, by: int) -> Any:
    """Fetches so many batches before the first is used, as prefetching wrappers do."""

    def batches() -> Any:
        waiting = []
        for batch in private.loader:
            waiting.append(batch)
            if len(waiting) > by:
                yield waiting.pop(0)
        yield from waiting

    return batches


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_looking_ahead_is_not_taken_for_it(ahead: int, workers: int, copies: bool) -> None:
    private = make(workers=workers)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(private, epochs=looking_ahead(private, ahead), copies=copies)
    assert private.steps_taken == private.charged == 60


@pytest.mark.parametrize("ahead", [1, 3])
def test_with_batches_fetched_ahead_it_is_noticed(ahead: int) -> None:
    private = make()
    with pytest.warns(UserWarning, match="without optimizer.step"):
        train(private, SKIPS["every other batch"], epochs=looking_ahead(private, ahead))


def test_chunks_of_a_batch_and_batches_broken_off_are_not_taken_for_it() -> None:
    private = make(rate=0.5, steps=20, max_physical_batch=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while private.steps_taken < 15:
            for number, (x, y) in enumerate(private.loader):
                private.optimizer.zero_grad()
                if number == 2:
                    break
                nn.functional.cross_entropy(private.model(x), y).backward()
                private.optimizer.step()
            for x, y in private.loader:
                nn.functional.cross_entropy(private.model(x), y).backward()
                private.optimizer.step()
                private.optimizer.zero_grad()
                if private.steps_taken >= 15:
                    break


def test_a_chunked_batch_without_a_step_is_said() -> None:
    private = make(rate=0.5, steps=20, max_physical_batch=3)
    with pytest.warns(UserWarning, match="without optimizer.step"):
        train(private, lambda number, y, loss: number < 9)


def test_a_loop_that_never_steps_is_told() -> None:
    private = make(steps=200)
    with pytest.warns(UserWarning, match="without optimizer.step"):
        train(private, lambda number, y, loss: True, most=100)


def test_a_thread_that_fetches_ahead_is_not_taken_for_it() -> None:
    private = make()
    waiting: queue.Queue[Any] = queue.Queue(maxsize=5)

    def fetch() -> None:
        for _ in range(6):
            for batch in private.loader:
                waiting.put(batch)
        waiting.put(None)

    thread = threading.Thread(target=fetch)
    thread.start()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(private, epochs=lambda: iter(waiting.get, None))
    thread.join()
    assert private.steps_taken == 60


def test_a_batch_that_is_sat_out_with_a_step_is_noise_of_the_usual_size() -> None:
    """The way that the warning names: the weights move by the noise, and by nothing of the batch."""
    moved = []
    for _ in range(300):
        private = make(rate=1.0, steps=1, noise_multiplier=4.0, seed=None)
        before = private.model.weight.detach().clone()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "a step that is noise alone")  # which it is, as it says
            for x, _y in private.loader:
                private.model(x)
                private.optimizer.step()
        moved.append((private.model.weight.detach() - before) / (0.1 * 4.0 / 20))
    found = torch.cat(moved).flatten()
    assert abs(found.mean()) < 5 / len(found) ** 0.5
    assert abs(found.std() - 1) < 5 / (2 * len(found)) ** 0.5
