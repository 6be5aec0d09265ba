"""Chunks of examples of like length: the same steps, with little padding."""

from __future__ import annotations

import copy
import warnings
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import hoarfrost
from hoarfrost.errors import InvalidValue
from hoarfrost.sampling import PoissonLoader

N = 60
Row = dict[str, Any]


def texts(rows: int = N) -> list[Row]:
    """A few long ones among many short ones, as texts are."""
    generator = torch.Generator().manual_seed(3)
    long = torch.empty(rows).log_normal_(2.0, 0.8, generator=generator).clamp(1, 60).int().tolist()
    return [{"words": torch.randint(1, 20, (n,), generator=generator), "label": k % 3} for k, n in enumerate(long)]


def padded(rows: list[Row]) -> dict[str, Tensor]:
    words = pad_sequence([row["words"] for row in rows], batch_first=True)
    return {"words": words, "label": torch.tensor([row["label"] for row in rows])}


class Bag(nn.Module):
    """The mean of a text's words, whatever it is padded with."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.hidden, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, words: Tensor) -> Tensor:
        there = (words > 0).unsqueeze(-1)
        return self.head((torch.tanh(self.hidden(self.table(words))) * there).sum(1) / there.sum(1).clamp(min=1))


def data(workers: int = 0) -> DataLoader[Any]:
    return DataLoader(texts(), collate_fn=padded, num_workers=workers)  # type: ignore[arg-type]


def lengths() -> list[int]:
    return [len(row["words"]) for row in texts()]


def ahead(batches: Iterator[Any], depth: int) -> Iterator[Any]:
    """What a wrapper does that fetches batches before they are needed."""
    fetched: deque[Any] = deque()
    for batch in batches:
        fetched.append(batch)
        if len(fetched) > depth:
            yield fetched.popleft()
    yield from fetched


def trained(depth: int = 0, workers: int = 0, **options: Any) -> tuple[list[Tensor], int, list[Tensor]]:
    """The weights after two epochs, clipped at about the median norm, the padded words, and each step's release."""
    torch.manual_seed(0)
    model = Bag()
    settings: dict[str, Any] = {"sample_rate": 0.4, "epochs": 2, "noise_multiplier": 0.0, "clip": 0.3, "seed": 7,
                                "max_physical_batch": 6, "delta": 1e-5}  # fmt: skip
    run = hoarfrost.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.5), data(workers), **settings | options
    )
    computed, steps = 0, []
    for _ in range(2):
        for batch in ahead(iter(run.loader), depth):
            computed += batch["words"].numel()
            run.optimizer.backward(F.cross_entropy(model(batch["words"]), batch["label"], reduction="none"))
            run.optimizer.step()
            if run.stepped:
                steps.append(model.head.weight.grad.clone())
    assert run.steps_taken == run.steps
    return [p.detach() for p in model.parameters()], computed, steps


PEOPLE = {"person": [k // 3 for k in range(N)], "per_person": 2}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {}, "looking ahead": {"depth": 2}, "views": {"views": 2}, "people": PEOPLE,
    "batches that may be empty": {"sample_rate": 0.02, "max_physical_batch": 2},
    "people and views": {**PEOPLE, "views": 2, "max_physical_batch": 12}, "workers": {"workers": 2},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:a step that is noise alone", "ignore:This process")
@pytest.mark.parametrize("way", WAYS)
def test_the_steps_are_those_without_lengths(way: str) -> None:
    plain, many, plain_steps = trained(**WAYS[way])
    sorted_by_length, few, steps = trained(lengths=lengths(), **WAYS[way])
    assert few < many
    for one, other in zip(plain + plain_steps, sorted_by_length + steps, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def batches(loader: PoissonLoader) -> list[list[list[int]]]:
    """Each batch of an epoch as its chunks, each as the lengths of its texts."""
    found: list[list[list[int]]] = []

    def note(chunk: Any) -> None:
        if chunk.first:
            found.append([])

    loader.on_chunk = note
    for batch in loader:
        found[-1].append((batch["words"] > 0).sum(1).tolist())
    return found


def test_chunks_are_of_like_length_and_as_large_as_without() -> None:
    plain = batches(PoissonLoader(data(), sample_rate=0.5, max_physical_batch=7, seed=1))
    by_length = batches(PoissonLoader(data(), sample_rate=0.5, max_physical_batch=7, lengths=lengths(), seed=1))
    assert [[len(chunk) for chunk in batch] for batch in plain] == [[len(chunk) for chunk in b] for b in by_length]
    for one, other in zip(plain, by_length, strict=True):
        assert sorted(n for chunk in one for n in chunk) == [n for chunk in other for n in chunk]
    assert any(batch[0] != sorted(batch[0]) for batch in plain)


def test_little_is_computed_on_padding() -> None:
    """4,096 texts of skewed lengths, batches of 512, chunks of 32."""
    from benchmarks.padding import padded_words, skewed

    lengths = skewed()
    true, without, with_lengths = padded_words(lengths, batch_size=512, rows=32)
    assert with_lengths < 1.25 * true
    assert without > 2 * true


@pytest.mark.parametrize("kind", ["a list", "a tensor", "a function"])
def test_lengths_come_in_any_form(kind: str) -> None:
    given: Any = {"a list": lengths(), "a tensor": torch.tensor(lengths()), "a function": lambda row: len(row["words"])}
    loader = PoissonLoader(data(), sample_rate=0.5, max_physical_batch=7, lengths=given[kind], seed=1)
    wanted = PoissonLoader(data(), sample_rate=0.5, max_physical_batch=7, lengths=lengths(), seed=1)
    assert batches(loader) == batches(wanted)


def test_a_run_that_goes_on_from_a_state_goes_on() -> None:
    first = PoissonLoader(data(), sample_rate=0.5, steps=6, max_physical_batch=7, lengths=lengths(), seed=1)
    batches(first)
    later = PoissonLoader(data(), sample_rate=0.5, steps=6, max_physical_batch=7, lengths=lengths(), seed=1)
    later.load_state_dict(copy.deepcopy(first.state_dict()))
    assert batches(later) == batches(first)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([777] * (N - 1), rf"lengths has {N - 1} numbers, and the data set {N} rows"),
        ([777.0] * (N - 1) + [float("nan")], "one finite number for each row"),
        (["777"] * (N - 1) + ["long"], "one finite number for each row"),
        ([[777, 1]] * N, "one finite number for each row"),
        ("input_ids", r"a function of a row, such as lambda row: len\(row\[.input_ids.\]\)"),
        (777, "a number for each row"),
    ],
)
def test_what_is_no_length_is_refused_without_telling_any(given: Any, said: str) -> None:
    with pytest.raises(InvalidValue, match=said) as error:
        PoissonLoader(data(), sample_rate=0.5, max_physical_batch=7, lengths=given)
    assert "777" not in str(error.value)


def test_lengths_without_chunks_are_told_what_is_missing() -> None:
    with pytest.raises(InvalidValue, match=r"lengths=.*max_physical_batch="):
        PoissonLoader(data(), sample_rate=0.5, lengths=lengths())


def test_lengths_are_told_to_nobody() -> None:
    secret = [8_675_309 + k for k in range(N)]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loader = PoissonLoader(data(), sample_rate=0.5, max_physical_batch=7, lengths=secret, seed=1)
        batches(loader)
    everything = f"{loader!r} {loader.state_dict()} {[str(each.message) for each in told]}"
    assert not any(str(length) in everything for length in secret)
