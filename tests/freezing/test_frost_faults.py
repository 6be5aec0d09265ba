"""Ways in which a selection can be wrong, each seeded into the real code: what audits it must see every one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import hoarfrost
from hoarfrost import query as query_module
from hoarfrost.budget import Account, Gaussian, epsilon
from hoarfrost.freezing import Frost
from hoarfrost.freezing import frost as frost_module
from hoarfrost.freezing.magnitudes import Magnitude
from hoarfrost.freezing.partitions import Partition
from hoarfrost.noise import Noise
from hoarfrost.query import Query
from hoarfrost.sampling import Poisson, PoissonLoader

Patch = pytest.MonkeyPatch
SIZES = {"a": 6, "b": 6, "c": 6, "head": 3}
WIDTH, ROUNDS, SIGMA, RATIO = sum(SIZES.values()), 3, 2.0, 0.6
PARTS = tuple(Partition(name, (name,), SIZES[name]) for name in "abc")


class Linear(nn.Module):
    """The gradient of an example is the example."""

    def __init__(self) -> None:
        super().__init__()
        for name, size in SIZES.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(size)))

    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.cat([self.a, self.b, self.c, self.head])


class Examples(Dataset[Any]):
    """Which of them are read."""

    def __init__(self) -> None:
        self.x, self.read = torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(0)), list[int]()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        self.read.append(int(index))
        return (self.x[index],)


def make(data: Any, sample_rate: float = 0.3, rounds: int = ROUNDS) -> Any:
    model = Linear()
    frost = Frost(RATIO, rounds=rounds, sample_rate=sample_rate, noise=SIGMA, gap=1e9, head=["head"],
                  loss=lambda model, batch: model(batch[0]).sum())  # fmt: skip
    return hoarfrost.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), data, sample_rate=0.5, steps=2, noise_multiplier=1.0,
        delta=1e-5, accountant="rdp", freeze=frost,
    )  # fmt: skip


# What is looked at. Each yields what is wrong.


def sensitivity() -> Iterator[str]:
    """One example more, however hostile."""
    magnitude, others = Magnitude("norms"), torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1))

    def exact(rows: Tensor) -> Tensor:
        loader = PoissonLoader(TensorDataset(rows), sample_rate=1.0)
        query = Query(Gaussian(noise_multiplier=0.0), Linear(), loader, Noise(), nullcontext)
        return magnitude.measured(query, PARTS, lambda model, batch: model(batch[0]).sum()).double()

    before = exact(others)
    for scale in (1e-20, 1.0, 1e20):
        moved = float((exact(torch.cat([others, scale * torch.ones(1, WIDTH)])) - before).norm())
        if moved > magnitude.sensitivity(PARTS) * (1 + 1e-6):
            yield f"an example moves the magnitudes by {moved}"


def noise() -> Iterator[str]:
    """Nobody is drawn: what is released in a round is noise, which fits its multiplier in every round."""
    found: dict[int, list[float]] = {t: [] for t in range(ROUNDS)}
    for _ in range(40):
        private = make(Examples(), sample_rate=1e-12)
        private.prepare()
        for t in found:
            found[t] += private.freezer.state()[f"0.{t}"].tolist()
    for t, values in found.items():
        low, high = chi2.ppf([1e-6, 1 - 1e-6], len(values)) * SIGMA**2
        if not low < float(np.square(values).sum()) < high:
            yield f"the noise of round {t} does not fit"


def accounting() -> Iterator[str]:
    """Every noisy sum was charged for, and is in the stated epsilon."""
    private, made = make(Examples()), []
    noised = Query._noised
    with Patch.context() as patch:
        patch.setattr(Query, "_noised", lambda self, *args: (made.append(self.event), noised(self, *args))[1])
        private.prepare()
    if list(private.account.releases.values()) != made:
        yield "rounds are not charged"
    if private.epsilon() < epsilon(made, 1e-5, "rdp"):
        yield "rounds are not in the stated epsilon"


def access() -> Iterator[str]:
    """No example is read outside of the Poisson samples."""
    data, drawn = Examples(), []
    private, draw = make(data), Poisson.draw

    def drawing(self: Poisson, *args: Any) -> Any:
        found = draw(self, *args)
        drawn.extend(found.tolist())
        return found

    with Patch.context() as patch:
        patch.setattr(Poisson, "draw", drawing)
        private.prepare()
    if data.read != drawn:
        yield "examples are read that were not drawn"


def room() -> Iterator[str]:
    """Of all numbers at most the ratio is trained, with the head."""
    private = make(Examples())
    private.prepare()
    private.optimizer.controller.apply()
    if private.optimizer.controller.live_share > RATIO:
        yield "more is trained than the ratio allows"


AUDITS: dict[str, Callable[[], Iterator[str]]] = {
    each.__name__: each for each in (sensitivity, noise, accounting, access, room)
}


# What can be wrong.


def no_clipping(patch: Patch) -> None:
    patch.setattr(query_module, "_factor", lambda *args, **settings: 1.0)


def one_example_is_lengthened_beyond_the_bound(patch: Patch) -> None:
    factor = query_module._factor
    patch.setattr(query_module, "_factor", lambda *args, **settings: 1.5 * factor(*args, **settings))


def noise_of_one_round_only(patch: Patch) -> None:
    noised, rounds = Query._noised, iter(range(10**6))

    def once(self: Query, exact: Tensor, sensitivity: float) -> Tensor:
        return exact.float() if next(rounds) % ROUNDS else noised(self, exact, sensitivity)

    patch.setattr(Query, "_noised", once)


def noise_for_half_the_sensitivity(patch: Patch) -> None:
    noised = Query._noised
    patch.setattr(Query, "_noised", lambda self, exact, sensitivity: noised(self, exact, sensitivity / 2))


def rounds_for_nothing(patch: Patch) -> None:
    @contextmanager
    def free(self: Account, event: Any, what: str, *, number: int | None = None) -> Iterator[str]:
        assert number is not None
        self._made[number] = "free"
        yield "free"

    patch.setattr(Account, "release", free)


def the_classifiers_share_is_not_counted(patch: Patch) -> None:
    layout_of = frost_module.layout_of

    def larger(*args: Any) -> Any:
        found = layout_of(*args)
        return replace(found, room=found.room + SIZES["head"])

    patch.setattr(frost_module, "layout_of", larger)


def a_look_at_the_dev_set(patch: Patch) -> None:
    """A part of the data that is set aside, by which the choice is made in the end."""
    prepare = Frost.prepare

    def looking(self: Frost, number: int, query: Query, info: Any) -> None:
        prepare(self, number, query, info)
        found = sum(query._loader.dataset[n][0].abs() for n in range(30, 40))
        self._found[0][-1] = torch.stack([p.mean() for p in found.split([*SIZES.values()])[:3]]).double()

    patch.setattr(Frost, "prepare", looking)


@dataclass(frozen=True)
class Fault:
    """How to seed it, and which audit must see it."""

    seed: Callable[[Patch], None]
    by: str


FAULTS = [
    Fault(no_clipping, "sensitivity"), Fault(one_example_is_lengthened_beyond_the_bound, "sensitivity"),
    Fault(noise_of_one_round_only, "noise"), Fault(noise_for_half_the_sensitivity, "noise"),
    Fault(rounds_for_nothing, "accounting"), Fault(the_classifiers_share_is_not_counted, "room"),
    Fault(a_look_at_the_dev_set, "access"),
]  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore:the noise of a round")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.seed.__name__)
def test_a_fault_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault.seed(monkeypatch)
    assert list(AUDITS[fault.by]())


@pytest.mark.parametrize("name", AUDITS)
def test_what_is_right_raises_no_alarm(name: str) -> None:
    assert list(AUDITS[name]()) == []
