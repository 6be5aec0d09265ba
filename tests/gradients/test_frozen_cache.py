"""The cache of what frozen layers return: no step changes, whatever the model, the data or the loop do."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import hoarfrost
from hoarfrost.errors import InvalidValue
from hoarfrost.gradients.frozen_cache import cache as implementation

N, STEPS = 18, 9
Batch = dict[str, Tensor]


CALLS: list[int] = []  # how many rows `Counted` ran on


class Counted(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        CALLS.append(len(x))
        return super().forward(x)


class Reader(nn.Module):
    """Reads words under a mask: a table, two layers, attention, a head; what runs of the first layer is counted."""

    def __init__(self, dropout: float = 0.0, looks_at_padding: bool = False) -> None:
        super().__init__()
        self.table, self.first, self.second = nn.Embedding(30, 8), Counted(8, 8), nn.Linear(8, 8)
        self.noise, self.late, self.head = nn.Dropout(dropout), nn.Dropout(0.3), nn.Linear(8, 3)
        self.looks_at_padding = looks_at_padding

    def forward(self, words: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> Tensor:
        there = attention_mask.unsqueeze(-1).to(torch.float32)
        h = self.noise(self.table(words))
        mean = (h * there).sum(1, keepdim=True) / there.sum(1, keepdim=True)
        h = torch.tanh(self.second(torch.tanh(self.first(h + mean))))
        scores = (h @ h.mT).masked_fill(attention_mask[:, None] == 0, -torch.inf)
        h = torch.softmax(scores, -1) @ h
        h = h.mean(1) if self.looks_at_padding else (h * there).sum(1) / there.sum(1)
        return self.head(self.late(h))


def frozen_but(model: nn.Module, *live: str) -> nn.Module:
    for name, p in model.named_parameters():
        p.requires_grad_(name.split(".")[0] in live)
    return model


def texts() -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    sizes = torch.randint(2, 12, (N,), generator=generator).tolist()
    words = [torch.randint(1, 30, (n,), generator=generator) for n in sizes]
    return [{"words": F.pad(w, (1, 0), value=7), "labels": k % 3} for k, w in enumerate(words)]  # all begin alike


def padded(rows: list[dict[str, Any]], side: str = "right", fill: int = 0) -> Batch:
    words = pad_sequence([row["words"] for row in rows], batch_first=True, padding_side=side, padding_value=fill)
    ones = [torch.ones(len(row["words"]), dtype=torch.long) for row in rows]
    mask = pad_sequence(ones, batch_first=True, padding_side=side)
    return {"words": words, "attention_mask": mask, "labels": torch.tensor([row["labels"] for row in rows])}


def run(
    make: Callable[[], nn.Module],
    cache: bool | float,
    *,
    live: tuple[str, ...] = ("head",),
    data: Any = None,
    collate: Any = padded,
    meanwhile: Callable[[int, nn.Module], None] = lambda step, model: None,
    **options: Any,
) -> tuple[hoarfrost.Private, list[Tensor]]:
    """Some steps, clipped at about the median norm, with dropout in what is trained; the weights after them."""
    torch.manual_seed(0)
    model = frozen_but(make(), *live)
    loader = DataLoader(texts() if data is None else data, collate_fn=collate)
    settings = {"noise_multiplier": 0.0, "delta": 1e-5, "clip": 0.5, "seed": 3, "steps": STEPS, "sample_rate": 0.5}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    private = hoarfrost.make_private(model, optimizer, loader, cache_frozen=cache, **settings | options)
    torch.manual_seed(5)
    while private.steps_taken < STEPS:
        for batch in private.loader:
            if private.steps_taken == STEPS:
                break
            private.optimizer.backward(F.cross_entropy(model(**batch), batch["labels"], reduction="none"))
            private.optimizer.step()
            if private.stepped:
                meanwhile(private.steps_taken, model)
    return private, [p.detach().clone() for p in model.parameters()]


def check(make: Callable[[], nn.Module], cache: bool | float = True, **options: Any) -> hoarfrost.Private:
    """The run with a cache ends where the one without does; what it was is returned."""
    plain, wanted = run(make, False, **copy.deepcopy(options))
    cached, found = run(make, cache, **options)
    assert plain.frozen_cache is None
    start = frozen_but(make(), "head")
    assert any(not torch.equal(a, b) for a, b in zip(wanted, start.parameters(), strict=True))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    return cached


CHUNKS = {"max_physical_batch": 5}
LENGTHS = {**CHUNKS, "lengths": [len(row["words"]) for row in texts()]}
WAYS: dict[str, dict[str, Any]] = {
    "batches": {},
    "chunks": CHUNKS,
    "chunks of like length": LENGTHS,
    "views": {"views": 2, "max_physical_batch": 6},
    "people": {"person": [k // 2 for k in range(N)], "per_person": 2},
    "the second layer, too": {"live": ("second", "head")},
    "batches that may be empty": {"sample_rate": 0.1},
    "another number at padded places": {"collate": lambda rows: padded(rows, fill=29)},
}


@pytest.mark.filterwarnings("ignore:a step that is noise alone")
@pytest.mark.parametrize("way", WAYS)
def test_the_steps_are_those_without_a_cache(way: str) -> None:
    cached = check(Reader, **WAYS[way])
    assert cached.frozen_cache is not None
    assert 0 < cached.frozen_cache.rows <= N
    assert cached.frozen_cache.modules[:2] == ("table", "first")


def test_what_is_stored_is_not_computed_again_and_has_no_padding() -> None:
    calls: list[int] = []

    def count(step: int, model: nn.Module) -> None:
        calls.append(sum(CALLS))
        CALLS.clear()

    CALLS.clear()
    private, _ = run(Reader, True, meanwhile=count, sample_rate=0.8)
    cache = private.frozen_cache
    assert cache is not None
    assert cache.rows == N
    assert sum(calls[-3:]) == 0 < calls[1]
    stored = sum(len(row["words"]) for row in texts()) * 8 * 4
    assert cache.size == stored + N * implementation.A_ROW
    assert cache.estimate() == cache.size
    plan = cache._plan
    assert plan is not None
    assert [sorted(output.kept) for output in plan.outputs] == [[], [], [0]]  # of three modules, the last one's


def test_without_a_mask_rows_of_one_length_are_stored() -> None:
    def make() -> nn.Module:
        return Layers(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))

    data = [{"x": torch.randn(4), "labels": k % 3} for k in range(N)]
    cached = check(make, live=("2",), data=data, collate=None)
    assert cached.frozen_cache is not None
    assert cached.frozen_cache.modules == ("0",)
    assert cached.frozen_cache.rows == N


class Layers(nn.Sequential):
    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return super().forward(x)


# What changes meanwhile.


def other_weights(step: int, model: Any) -> None:
    if step == 5:
        state = model.state_dict()
        state["first.weight"] = 3 * state["first.weight"]
        model.load_state_dict(state)


def thaw(step: int, model: Any) -> None:
    if step == 5:
        model.second.requires_grad_(True)


def thaw_everything(step: int, model: Any) -> None:
    if step == 5:
        model.requires_grad_(True)


def freeze_more(step: int, model: Any) -> None:
    if step == 5:
        model.second.requires_grad_(False)


def evaluate(step: int, model: Any) -> None:
    model.eval()
    with torch.no_grad():
        model(**padded(texts()))
    model.train()


@pytest.mark.parametrize("what", [other_weights, thaw, thaw_everything, evaluate], ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore:cache_frozen. table .Embedding. is trained")
def test_what_is_stored_is_forgotten_when_something_changes(what: Callable[..., None]) -> None:
    cached = check(Reader, meanwhile=what)
    assert cached.frozen_cache is not None
    assert (cached.frozen_cache.rows == 0) == (what is thaw_everything)


def test_what_is_frozen_later_may_be_thawed_again() -> None:
    check(Reader, live=("second", "head"), meanwhile=freeze_more)


def test_layers_that_a_freezer_may_thaw_are_not_cached() -> None:
    cached = check(Reader, live=("second", "head"), freeze=Alternating())
    assert cached.frozen_cache is not None
    assert cached.frozen_cache.modules == ("table", "first")


class Alternating(hoarfrost.freeze.Freezer):
    """The second layer every other step only."""

    def live(self, step: int, info: Any) -> dict[str, Any]:
        return {name: step % 2 == 1 or not name.startswith("second") for name in info.shapes}

    def key(self, step: int, info: Any) -> int:
        return step % 2


# Data that are no function of the example.


class Augmented:
    """Replaces a word at random each time a text is read."""

    def __init__(self) -> None:
        self.texts, self.generator = texts(), torch.Generator().manual_seed(2)

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, Any]:
        words = self.texts[index]["words"].clone()
        words[0] = torch.randint(1, 30, (), generator=self.generator)
        return {**self.texts[index], "words": words}


@pytest.mark.parametrize("views", [1, 2])
def test_augmented_data_are_computed_each_time_and_this_is_said(views: int) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        cached = check(Reader, data=Augmented(), views=views)
    assert cached.frozen_cache is not None
    assert cached.frozen_cache.rows == 0
    assert sum("more different inputs than the data set has examples" in str(each.message) for each in told) == 1


def test_where_padding_matters_rows_are_not_cut() -> None:
    """All of one length: stored with their padding; of any length: computed each time, which is said."""

    def make() -> nn.Module:
        return Reader(looks_at_padding=True)

    def to_fourteen(rows: list[dict[str, Any]]) -> Batch:
        longest = {"words": torch.ones(14, dtype=torch.long), "labels": 0}
        return {name: t[:-1] for name, t in padded([*rows, longest]).items()}

    cached = check(make, collate=to_fourteen, sample_rate=0.8)
    assert cached.frozen_cache is not None
    assert cached.frozen_cache.rows == N
    with pytest.warns(UserWarning, match=r"padded to a length that differs"):
        cached = check(make, **CHUNKS)
    assert cached.frozen_cache is not None
    assert cached.frozen_cache.rows == 0


def test_texts_that_are_padded_at_the_beginning_are_stored_with_their_padding() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # padded to any length, they are too many
        check(Reader, collate=lambda rows: padded(rows, side="left"))


def test_one_broken_example_is_nobody_else_s_matter() -> None:
    data = [{"x": torch.randn(4), "labels": k % 3} for k in range(N)]
    data[3]["x"] = torch.full((4,), torch.nan)
    data[7]["x"] = torch.full((4,), 1e38)
    check(lambda: Layers(nn.Linear(4, 6), nn.Linear(6, 3)), live=("1",), data=data, collate=None)


# What cannot be cached.


class Trained(Reader):
    """Something trained is added before the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.head2 = nn.Linear(8, 8)

    def forward(self, words: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> Tensor:
        there = attention_mask.unsqueeze(-1).to(torch.float32)
        h = self.first(self.head2(torch.ones(*words.shape, 8) * there))
        return self.head((h * there).sum(1))


REFUSED: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], str]] = {
    "dropout": (lambda: Dropping(), {}, r"noise \(Dropout\) draws random numbers.*eval\(\)"),
    "dropout further on": (lambda: Reader(dropout=0.3), {}, r"noise \(Dropout\) draws random numbers.*eval\(\)"),
    "random numbers of the model's own": (lambda: Noisy(), {}, r"first \(Counted\) draws random numbers"),
    "nothing frozen": (Reader, {"live": ("table", "first", "second", "head")}, "no layer is frozen for the whole run"),
    "trained first": (Trained, {"live": ("head2", "head")}, r"head2 \(Linear\) is trained and runs before"),
}


class Noisy(Reader):
    """Random numbers are added to what the table returns."""

    def forward(self, words: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> Tensor:
        there = attention_mask.unsqueeze(-1).to(torch.float32)
        h = self.table(words)
        return self.head((self.first(h + torch.randn_like(h[:, :1])) * there).sum(1))


class Dropping(Reader):
    """Dropout on the words, before anything else."""

    def __init__(self) -> None:
        super().__init__(0.2)

    def forward(self, words: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> Tensor:
        kept = self.noise(torch.ones_like(words, dtype=torch.float32)) > 0
        return super().forward(words * kept, attention_mask)


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_cached_is_refused_by_name(what: str) -> None:
    make, options, said = REFUSED[what]
    with pytest.raises(InvalidValue, match=rf"cache_frozen: .*{said}.*leave out cache_frozen"):
        run(make, True, **options)


def test_a_layer_that_runs_twice_is_computed_each_time() -> None:
    class Again(Reader):
        def forward(self, words: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> Tensor:
            there = attention_mask.unsqueeze(-1).to(torch.float32)
            h = self.first(torch.tanh(self.first(self.table(words))))
            return self.head((self.second(h) * there).sum(1))

    check(Again)


def test_what_a_layer_keeps_beside_its_output_is_seen() -> None:
    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.last = nn.Linear(8, 8), torch.zeros(())

        def forward(self, h: Tensor) -> Tensor:
            self.last = h.square().sum((1, 2))
            return self.layer(h)

    class Reads(Reader):
        def __init__(self) -> None:
            super().__init__()
            self.first = Kept()  # type: ignore[assignment]

        def forward(self, words: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> Tensor:
            there = attention_mask.unsqueeze(-1).to(torch.float32)
            h = self.first(self.table(words) * there) * there
            return self.head(h.sum(1)) * self.first.last.unsqueeze(1)  # type: ignore[operator, union-attr]

    with pytest.raises(InvalidValue, match="the model returns something else"):
        run(Reads, True)


# Memory.


def test_a_cache_that_is_full_says_so_once_and_the_rest_is_computed() -> None:
    with pytest.warns(UserWarning, match=r"has reached the .* GB that it may take.*cache_frozen=<bytes>") as told:
        cached = check(Reader, 3000)
    assert cached.frozen_cache is not None
    assert 0 < cached.frozen_cache.size <= 3000
    assert cached.frozen_cache.rows < N
    assert sum("has reached" in str(each.message) for each in told) == 1


@pytest.mark.parametrize("bad", [0, -1, "yes", None])
def test_how_much_it_may_take_is_a_number(bad: Any) -> None:
    with pytest.raises(InvalidValue, match="cache_frozen must be"):
        run(Reader, bad)


def test_what_is_stored_is_in_no_file(tmp_path: Path) -> None:
    plain, _ = run(Reader, False)
    cached, _ = run(Reader, True)
    sizes = []
    for number, private in enumerate((plain, cached)):
        private.save(tmp_path / f"{number}.safetensors")
        sizes.append((tmp_path / f"{number}.safetensors").stat().st_size)
        assert set(private.optimizer.state_dict()) == set(plain.optimizer.state_dict())
    assert abs(sizes[0] - sizes[1]) < 200
    twin = copy.deepcopy(cached.model)
    assert twin.first.forward.__func__ is Counted.forward
