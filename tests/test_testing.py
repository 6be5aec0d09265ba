"""hoarfrost.testing: what is right passes, and seeded faults are found and named."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hoarfrost
from hoarfrost import budget
from hoarfrost.audit import battery
from hoarfrost.budget import Account, Gaussian, PlannedRelease
from hoarfrost.clipping import (
    Adaptive,
    Block,
    Clipper,
    Clipping,
    FlatStyle,
    Global,
    Local,
    PerGroup,
    Piece,
    Statistic,
)  # fmt: skip
from hoarfrost.errors import HoarfrostError
from hoarfrost.freezing import Freezer, Largest, Layers, Live, Random, RandomTensors, Ranked, RunInfo
from hoarfrost.gradients.rules import Dense, LayerRule, NamedContributions, Outer, flatten_positions, registry
from hoarfrost.gradients.uses import Uses
from hoarfrost.mechanism import GaussianMechanism
from hoarfrost.observers import Observer
from hoarfrost.optim.frozen_guard import FrozenGuard
from hoarfrost.query import Query
from hoarfrost.testing import ContractBroken, check_clipper, check_freezer, check_rule
from tests import oracle
from tests.support.extensions import ByGradientNorm, FollowsQuantile, TwoNorms

# Clipping styles.

CLIPPERS = {name: style for name, style in battery.clipping().items() if name != "per-group"}
CLIPPERS |= {"quantile": FollowsQuantile(0.5), "two norms": TwoNorms()}


@dataclass(frozen=True)
class ByLayer(Clipper):
    """Each layer in a block of its own."""

    norm: float = 0.5

    def begin(self, step: int, info: RunInfo) -> Clipping:
        blocks = tuple(Block(names[0], names, self.norm * (1 + i)) for i, names in enumerate(info.layers))
        bounds = torch.tensor([block.bound for block in blocks])
        return Clipping(blocks, lambda norms: (bounds / norms).clamp(max=1))


@pytest.mark.parametrize("name", [*CLIPPERS, "by layer"])
def test_right_clippers_pass(name: str) -> None:
    check_clipper({**CLIPPERS, "by layer": ByLayer()}[name])


@pytest.mark.parametrize("name", ["quantile", "two norms"])
def test_right_clippers_pass_the_whole_battery(name: str) -> None:
    check_clipper(CLIPPERS[name], quick=False)


def test_a_clipper_for_one_model() -> None:
    @dataclass(frozen=True)
    class HeadApart(Clipper):
        def begin(self, step: int, info: RunInfo) -> Clipping:
            blocks = (
                Block("body", ("body.weight", "body.bias"), 1.0),
                Block("head", ("head.weight", "head.bias"), 0.3),
            )
            return Clipping(blocks, lambda norms: (torch.tensor([1.0, 0.3]) / norms).clamp(max=1))

    model = nn.Sequential()
    model.body, model.head = nn.Linear(4, 4), nn.Linear(4, 2)
    check_clipper(HeadApart(), models=[(model, torch.randn(6, 4))])
    with pytest.raises(ContractBroken, match=r"puts 0\.weight, .* in no block"):
        check_clipper(HeadApart())


class Broken(Clipper):
    """A flat style to be broken in one place."""

    def rule(self, norms: Tensor) -> Tensor:
        return (1 / norms).clamp(max=1)

    def begin(self, step: int, info: RunInfo) -> Clipping:
        return Clipping.flat(info.shapes, 1.0, self.rule)


class RandomBegin(Broken):
    def begin(self, step: int, info: RunInfo) -> Clipping:
        return Clipping.flat(info.shapes, 1 + float(torch.rand(())), self.rule)


class Counting(Broken):
    asked = 0

    def begin(self, step: int, info: RunInfo) -> Clipping:
        self.asked += 1
        return Clipping.flat(info.shapes, 1 + self.asked / 100, self.rule)


class Forgetful(Broken):
    def begin(self, step: int, info: RunInfo) -> Clipping:
        return Clipping.flat(list(info.shapes)[:-1], 1.0, self.rule)


class NoClipping(Broken):
    def begin(self, step: int, info: RunInfo) -> Any:
        return self.rule


class ByBatch(Broken):
    def rule(self, norms: Tensor) -> Tensor:
        return (norms.nan_to_num(0, 0, 0).clamp(max=9).mean() / norms / 9).clamp(max=1)


class OneFactor(Broken):
    def rule(self, norms: Tensor) -> Tensor:
        return (1 / norms[:, 0]).clamp(max=1)


class Scribbling(Broken):
    def rule(self, norms: Tensor) -> Tensor:
        return norms.reciprocal_().clamp(max=1)


class TooLong(Broken):
    def rule(self, norms: Tensor) -> Tensor:
        return (2 / norms).clamp(max=1)


class SmallBound(Broken):
    def begin(self, step: int, info: RunInfo) -> Clipping:
        long = Statistic("long", lambda norms: (norms[:, 0] - 1).clamp(0, 1), bound=0.5)
        return Clipping.flat(info.shapes, 1.0, self.rule, (long,))


class RelativeStatistic(Broken):
    def begin(self, step: int, info: RunInfo) -> Clipping:
        long = Statistic("long", lambda norms: (norms[:, 0] > norms[:, 0].nanmean()).float(), bound=1.0)
        return Clipping.flat(info.shapes, 1.0, self.rule, (long,))


class Jumping(Broken):
    def rule(self, norms: Tensor) -> Tensor:
        return (norms <= 1).to(norms.dtype)


class JumpingFar(Broken):
    """Where the first batches of a run are not tried."""

    def rule(self, norms: Tensor) -> Tensor:
        return super().rule(norms) * (norms < 30)


class JumpingCount(Broken):
    def begin(self, step: int, info: RunInfo) -> Clipping:
        short = Statistic("short", lambda norms: (norms[:, 0] <= 2).float() - 0.5, bound=0.5)
        return Clipping.flat(info.shapes, 1.0, self.rule, (short,))


class JumpingBetween(Broken):
    """Drops examples whose first layer has the longer gradient: it jumps, and not if all blocks grow alike."""

    def rule(self, norms: Tensor) -> Tensor:
        return super().rule(norms) * (norms[:, :1] <= norms[:, -1:])

    def begin(self, step: int, info: RunInfo) -> Clipping:
        return Clipping(tuple(Block(name, (name,), 1.0) for name in info.shapes), self.rule)


class Unrestored(FollowsQuantile):
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        pass


class NumbersAsState(FollowsQuantile):
    def state(self) -> Any:
        return {"now": self.now}


class SharesState(FollowsQuantile):
    def fresh(self) -> Clipper:
        return self


@dataclass
class ShowsState(FollowsQuantile):
    now: float = field(init=False, repr=True)


class HidesSettings(FollowsQuantile):
    def __repr__(self) -> str:
        return "HidesSettings()"


class Unnamed(Broken):
    __repr__ = object.__repr__


class LateBound(FollowsQuantile):
    def begin(self, step: int, info: RunInfo) -> Clipping:
        right = super().begin(step, info)
        return Clipping.flat(info.shapes, self.now, lambda norms: (self.now / norms).clamp(max=1), right.statistics)


class Fragile(FollowsQuantile):
    """Takes a noisy count for a true one."""

    def observe(self, step: int, statistics: Mapping[str, float], info: RunInfo) -> None:
        self.now = statistics["short"]


class MoreThanStated(Clipping):
    """Clips to more than the noise is made for."""

    def factors(self, norms: Tensor) -> Tensor:
        return 3 * super().factors(norms)


class Overriding(Broken):
    def begin(self, step: int, info: RunInfo) -> Clipping:
        return MoreThanStated((Block("all", tuple(info.shapes), 1.0),), self.rule)


CLIPPER_FAULTS = [
    (RandomBegin, r"begin\(0, info\) gives another clipping when it is asked again"),
    (Counting, r"begin\(0, info\) gives another clipping when it is asked again"),
    (Forgetful, "puts 2.bias in no block: it would be trained without clipping"),
    (NoClipping, "not a Clipping"),
    (ByBatch, "the rule gives an example another value when other examples are in the batch"),
    (OneFactor, r"the rule gives \(64,\) for norms of shape \(64, 1\).*Return a tensor \(64, 1\)"),
    (Scribbling, "the rule changes the norms that it is handed"),
    (TooLong, "the rule keeps up to 2 .*times the bound"),
    (SmallBound, "statistic 'long' is up to 1, above its bound 0.5"),
    (RelativeStatistic, "statistic 'long' gives an example another value when other examples are in the batch"),
    (Jumping, r"the clipping's rule jumps.*Let it fall over a width.*Clipping\(jumps=True\)"),
    (JumpingFar, "the clipping's rule jumps"),
    (JumpingBetween, "the clipping's rule jumps"),
    (JumpingCount, "statistic 'short' jumps.*Let it fall over a width"),
    (Unrestored, r"goes on from a checkpoint clips otherwise.*take it back in load_state\(\)"),
    (NumbersAsState, r"state\(\).*torch\.tensor"),
    (SharesState, r"what one run observes changes the clipping of another one.*fresh\(\)"),
    (ShowsState, "its repr changes during a run"),
    (HidesSettings, "does not show norm(.|\n)*does not show quantile"),
    (Unnamed, "its repr is <.* at 0x"),
    (LateBound, "changes when later steps are observed"),
    (Fragile, "must be above 0"),
    (Overriding, r"factors\(\) of the clipping exceeds its bounds"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message"), CLIPPER_FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_faults_of_clippers_are_found(kind: Callable[[], Clipper], message: str) -> None:
    with pytest.raises(ContractBroken, match=message):
        check_clipper(kind())


@pytest.mark.parametrize("kind", [Jumping, JumpingFar, JumpingBetween, JumpingCount])
def test_a_jump_is_found_without_any_step_and_told_once(kind: Callable[[], Clipper]) -> None:
    with pytest.raises(ContractBroken) as caught:
        check_clipper(kind())
    (finding,) = caught.value.findings
    assert "jumps" in finding
    assert "NotPrivate" not in finding


def test_a_jump_that_is_stated_passes() -> None:
    class Stated(Jumping):
        def begin(self, step: int, info: RunInfo) -> Clipping:
            return replace(super().begin(step, info), jumps=True)

    with pytest.warns(UserWarning, match="for analysis, not for release"):
        check_clipper(Stated())


def two_layers() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential()
    model.body, model.head = nn.Linear(4, 4), nn.Linear(4, 2)
    return model


def test_groups_are_checked_on_the_models_that_they_name() -> None:
    groups = {"body.*": Local(1.0), "head.weight": Global(0.4), "head.bias": Adaptive(start=0.3, cost=0.1)}
    models = [(two_layers(), torch.randn(6, 4))]
    for noise in ("equal", "proportional"):
        check_clipper(PerGroup(groups, noise=noise), models=models)
    with pytest.raises(ContractBroken, match="no trained parameter is named like the group 'body"):
        check_clipper(PerGroup(groups))
    with pytest.raises(ContractBroken, match=r"head\.bias is in no group"):
        check_clipper(PerGroup({"body.*": Local(1.0), "head.weight": Global(0.4)}), models=models)


class JumpingPiece(FlatStyle):
    def piece(self) -> Piece:
        return Piece(0.4, lambda norms: (norms <= 0.4).to(norms.dtype))


def test_a_jump_of_one_group_is_found() -> None:
    style = PerGroup({"body.*": Local(1.0), "head.*": JumpingPiece()})
    with pytest.raises(ContractBroken, match="the clipping's rule jumps"):
        check_clipper(style, models=[(two_layers(), torch.randn(6, 4))])


def test_all_findings_are_told_at_once() -> None:
    class Several(SmallBound):
        def rule(self, norms: Tensor) -> Tensor:
            return (2 / norms).clamp(max=1)

    with pytest.raises(ContractBroken) as caught:
        check_clipper(Several())
    assert len(caught.value.findings) == 2
    assert str(caught.value).startswith("Several() does not pass:\n  1. the rule")
    assert isinstance(caught.value, AssertionError)
    assert isinstance(caught.value, HoarfrostError)


# Styles that change from step to step, written without any change of the library.


def new_run(**options: Any) -> Any:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    x = torch.randn(30, 4)
    data = TensorDataset(x, x[:, :3].argmax(1))
    given = {"sample_rate": 1.0, "noise_multiplier": 0.5, "delta": 1e-5, "steps": 12, "accountant": "rdp"} | options
    return hoarfrost.make_private(model, torch.optim.SGD(model.parameters(), lr=0.5), data, **given)


def train(private: Any, until: int) -> None:
    while private.steps_taken < until:
        for x, y in private.loader:
            private.optimizer.zero_grad()
            nn.functional.cross_entropy(private.model(x), y).backward()
            private.optimizer.step()
            if private.steps_taken == until:
                break


class Norms(Observer):
    """The norm that every step was clipped with, and its clipped sum."""

    def __init__(self) -> None:
        self.bounds: list[float] = []
        self.counts: list[float] = []
        self.clipped: dict[str, Tensor] = {}

    def on_release(self, released: Any) -> None:
        self.bounds.append(released.clipping.sensitivity)
        self.counts += released.statistics.values()
        self.clipped = dict(released.clipped)


def loss(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")


@pytest.mark.parametrize("clip", [FollowsQuantile(0.01), TwoNorms(0.5, 0.1)], ids=repr)
def test_a_style_that_changes_its_norm_trains_and_equals_the_oracle(clip: Clipper) -> None:
    private, seen = new_run(clip=clip, noise_multiplier=0.01), Norms()
    private.observe(seen)
    everything = next(iter(torch.utils.data.DataLoader(private.loader.dataset, batch_size=30)))
    before = float(loss(copy.deepcopy(private.model), everything).detach())
    wanted = clip.norm if isinstance(clip, FollowsQuantile) else None
    for step in range(12):
        plain = copy.deepcopy(private.model)
        train(private, step + 1)
        norm = wanted if isinstance(clip, FollowsQuantile) else (0.5 if step < 3 else 0.1)
        assert norm is not None
        assert seen.bounds[-1] == pytest.approx(norm, rel=1e-12)
        sums = oracle.clipped_sum(oracle.gradients(plain, everything, loss), norm)
        for name, total in sums.items():
            torch.testing.assert_close(seen.clipped[name], total, rtol=2e-4, atol=1e-5)
        if isinstance(clip, FollowsQuantile):
            share = seen.counts[-1] / 30 + 0.5
            wanted = norm * torch.tensor(0.3 * (0.5 - share), dtype=torch.float64).exp().item()
    assert len(set(seen.bounds)) > 1
    assert float(loss(copy.deepcopy(private.model), everything).detach()) < before


@pytest.mark.parametrize("clip", [FollowsQuantile(0.01), TwoNorms(0.5, 0.1)], ids=repr)
def test_a_style_that_changes_its_norm_resumes(clip: Clipper, tmp_path: Path) -> None:
    first = new_run(clip=clip)
    train(first, 5)
    first.save(tmp_path / "checkpoint.safetensors")
    later, seen = new_run(clip=clip), Norms()
    later.load(tmp_path / "checkpoint.safetensors")
    later.observe(seen)
    train(later, 6)
    wanted = first.optimizer.engine.clipper.begin(5, first.info()).sensitivity
    assert seen.bounds == [wanted]
    assert wanted != clip.begin(0, first.info()).sensitivity


# Freezers.

FREEZERS: list[Freezer] = [
    Random(rate=0.5),
    Random(rate=0.5, redraw="never"),
    Random(rate=0.6, cooling=2, redraw="step", granularity="channel"),
    Random(rate=0.5, velocity="flows"),
    Random(rate=0.5, posterior=True),
    RandomTensors(share=0.5),
    Layers(first=1, step=4),
    Layers(first=1, step=0),
    Largest(share=0.5),
    Ranked(rate=0.5),
    Random(rate=0.3) & Largest(share=0.5),
    ByGradientNorm(),
    ByGradientNorm() & Random(rate=0.2),
]


@pytest.mark.parametrize("freezer", FREEZERS, ids=repr)
def test_right_freezers_pass(freezer: Freezer) -> None:
    check_freezer(freezer)


def test_a_right_freezer_passes_the_whole_battery() -> None:
    check_freezer(ByGradientNorm(), quick=False)


def test_a_freezer_for_one_model_with_a_loss_of_its_own() -> None:
    data = TensorDataset(torch.randn(20, 4))
    check_freezer(
        Layers(names=["0"], step=3), models=[(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1)), data)],
        loss=lambda model, batch: model(batch[0]).square().sum(),
    )  # fmt: skip


class Half(Freezer):
    """All but the first parameter, to be broken in one place."""

    def live(self, step: int, info: RunInfo) -> Live:
        return {name: number > 0 for number, name in enumerate(info.shapes)}


class Unnoticed(Half):
    def key(self, step: int, info: RunInfo) -> None:
        return None

    def live(self, step: int, info: RunInfo) -> Live:
        return super().live(step, info) if step < 4 else dict.fromkeys(info.shapes, True)


class WrongShape(Half):
    def live(self, step: int, info: RunInfo) -> Live:
        return {name: torch.ones(7, dtype=torch.bool) for name in info.shapes}


class UnknownName(Half):
    def live(self, step: int, info: RunInfo) -> Live:
        return {**super().live(step, info), "body": True}


class Capricious(Half):
    def live(self, step: int, info: RunInfo) -> Live:
        return {name: torch.rand(shape) < 0.5 for name, shape in info.shapes.items()}


class MovesLater(Half):
    """Keeps the model's own weights, and changes them in later steps."""

    which = 0

    def fresh(self) -> Freezer:
        return copy.copy(self)

    def start(self, weights: Mapping[str, Tensor]) -> None:
        self.weight = list(weights.values())[self.which]

    def live(self, step: int, info: RunInfo) -> Live:
        if step > 2:
            self.weight.mul_(0.99)
        return super().live(step, info)


class MovesLiveWeights(MovesLater):
    which = 1


class KeepsAcrossRuns(Half):
    """Thaws after so many steps of all its runs."""

    observes = True

    def __init__(self) -> None:
        self.count = 0

    def observe(self, step: int, gradients: Mapping[str, Tensor], info: RunInfo) -> None:
        self.count += 1

    def live(self, step: int, info: RunInfo) -> Live:
        return super().live(step, info) if self.count < 8 else dict.fromkeys(info.shapes, True)


class ForgetsInCheckpoints(KeepsAcrossRuns):
    def fresh(self) -> Freezer:
        return type(self)()

    def live(self, step: int, info: RunInfo) -> Live:
        return super().live(step, info) if self.count < 5 else dict.fromkeys(info.shapes, True)


class ChangesItsName(ByGradientNorm):
    def __repr__(self) -> str:
        return f"{super().__repr__()} {len(self.looks)}"


class LosesItsLooks(ByGradientNorm):
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        pass


class SharesItsLooks(ByGradientNorm):
    def fresh(self) -> Freezer:
        return self


class LooksTooOften(ByGradientNorm):
    def prepare(self, number: int, query: Query, info: RunInfo) -> None:
        super().prepare(number, query, info)
        super().prepare(number, query, info)


class DeclaresOnly(Half):
    def releases(self, info: RunInfo) -> tuple[PlannedRelease, ...]:
        return (PlannedRelease(event=Gaussian(noise_multiplier=1.0), what="nothing"),)


class NothingLive(Half):
    def live(self, step: int, info: RunInfo) -> Live:
        return {} if step > 2 else super().live(step, info)


FREEZER_FAULTS = [
    (Unnoticed, r"live\(\) changes in step 4 and key\(\) does not"),
    (WrongShape, "a boolean tensor in the parameter's shape"),
    (UnknownName, "the freezer speaks of body"),
    (Capricious, r"live\(0, info\) gives other masks when it is asked again"),
    (MovesLater, r"frozen coordinates of 0\.weight change in step 3.*start\(\) only"),
    (MovesLiveWeights, "are changed in step 3 by something else than the optimizer"),
    (KeepsAcrossRuns, r"two runs with the same weights, data and noise freeze differently.*fresh\(\)"),
    (ForgetsInCheckpoints, r"goes on from a checkpoint freezes otherwise.*load_state\(\)"),
    (ChangesItsName, "its repr changes during a run"),
    (LosesItsLooks, "KeyError"),
    (SharesItsLooks, "freeze differently|fresh"),
    (LooksTooOften, "allows 1 noisy sum"),
    (DeclaresOnly, r"declares a release, and has no prepare\(\)"),
    (NothingLive, "nothing is live in step 3"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message"), FREEZER_FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_faults_of_freezers_are_found(kind: Callable[[], Freezer], message: str) -> None:
    with pytest.raises(ContractBroken, match=message):
        check_freezer(kind())


def test_a_look_beside_the_query_is_not_seen() -> None:
    """Nobody can see it: the freezer holds the data itself. This says so, and would fail if somebody could."""

    class Peeking(Half):
        def __init__(self) -> None:
            self.private_data = torch.randn(5, 3)

        def live(self, step: int, info: RunInfo) -> Live:
            number = int(self.private_data.sum() > 0)
            return {name: place != number for place, name in enumerate(info.shapes)}

    check_freezer(Peeking())


# A freezer that looks at the data, written without any change of the library.


def test_a_freezer_that_looks_is_charged_before_and_resumes_without_looking_again(tmp_path: Path) -> None:
    ledger = budget.Ledger.create(tmp_path / "ledger.jsonl", epsilon=20.0, delta=1e-5)
    seen = []

    class Watched(ByGradientNorm):
        def prepare(self, number: int, query: Query, info: RunInfo) -> None:
            ledger.refresh()
            paid = [entry for entry in ledger.entries if entry.what == "layer gradient norms" and entry.reserved]
            seen.append((number, len(paid)))
            super().prepare(number, query, info)

    def run(name: str) -> Any:
        options = {"noise_multiplier": None, "epsilon": 3.0, "accountant": "pld", "sample_rate": 0.5}
        return new_run(freeze=Watched(), ledger=ledger, run=name, **options)

    first = run("first")
    assert first.plan.statement().epsilon <= 3.0
    assert seen == []
    train(first, 3)
    assert seen == [(0, 1)]
    first.save(tmp_path / "checkpoint.safetensors")
    del first
    later = run("first")
    later.load(tmp_path / "checkpoint.safetensors")
    train(later, 12)
    assert seen == [(0, 1), (1, 2)]  # the second look, and not the first one again
    assert len(later.account.releases) == 2
    assert 2.5 < later.epsilon() <= 3.0
    train(other := run("second"), 12)
    assert seen[2:] == [(0, 3), (1, 4)]
    assert set(other.account.releases).isdisjoint(later.account.releases)
    ledger.refresh()
    assert later.epsilon() < ledger.epsilon()


def test_it_trains_what_it_found() -> None:
    private = new_run(freeze=ByGradientNorm(noise_multiplier=0.01), noise_multiplier=0.1)
    before = {name: p.detach().clone() for name, p in private.model.named_parameters()}
    train(private, 4)
    moved = {name.partition(".")[0] for name, p in private.model.named_parameters() if not torch.equal(p, before[name])}
    assert len(moved) == 1


# Rules.


class Scaled(nn.Module):
    """y = 3 · x weightᵀ + shift."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.shift = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return 3 * (x @ self.weight.T) + self.shift


class ScaledRule(LayerRule):
    parameters = frozenset({"weight", "shift"})
    input_name = "x"
    factor = 3.0

    def contributions(self, module: Any, x: Tensor, g: Tensor, live: Any, *saved: Tensor) -> NamedContributions:
        x, g = flatten_positions(x), flatten_positions(g)
        if "weight" in live:
            yield "weight", Outer(x, self.factor * g)
        if "shift" in live:
            yield "shift", Dense(g.sum(1))


class ForgetsAFactor(ScaledRule):
    factor = 1.0


class FirstViewOnly(ScaledRule):
    def contributions(self, module: Any, x: Tensor, g: Tensor, live: Any, *saved: Tensor) -> NamedContributions:
        return super().contributions(module, x[:, :1], g[:, :1], live)


class MixesExamples(ScaledRule):
    def contributions(self, module: Any, x: Tensor, g: Tensor, live: Any, *saved: Tensor) -> NamedContributions:
        return super().contributions(module, x, g + 0.01 * g.mean(0, keepdim=True), live)


class StopsTheGradient(ScaledRule):
    def run(self, module: Any, original: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        return (original(*(each.detach() for each in args), **kwargs),)


class ChangesTheOutput(ScaledRule):
    def run(self, module: Any, original: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        return (1.01 * original(*args, **kwargs),)


class OnlyTheWeight(ScaledRule):
    parameters = frozenset({"weight"})


class ForgetsAParameter(ScaledRule):
    def contributions(self, *args: Any) -> NamedContributions:
        return (pair for pair in super().contributions(*args) if pair[0] != "shift")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    monkeypatch.setattr(registry, "RULES", dict(registry.RULES))


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "Linear": (lambda: nn.Linear(4, 4), lambda: torch.randn(6, 4)),
    "Linear on sequences": (lambda: nn.Linear(4, 3), lambda: torch.randn(5, 7, 4)),
    "Conv2d": (lambda: nn.Conv2d(2, 4, 3, padding=1), lambda: torch.randn(6, 2, 5, 4)),
    "Embedding": (lambda: nn.Embedding(11, 4), lambda: torch.randint(11, (6, 5))),
    "LayerNorm": (lambda: nn.LayerNorm(5), lambda: torch.randn(6, 3, 5)),
    "LSTM": (lambda: nn.LSTM(3, 4, batch_first=True), lambda: torch.randn(6, 5, 3)),
    "attention": (
        lambda: nn.MultiheadAttention(4, 2, batch_first=True),
        lambda: tuple(torch.randn(6, 3, 4) for _ in range(3)),
    ),
    "several layers": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 4)), lambda: torch.randn(6, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_built_in_rules_pass(name: str) -> None:
    module, inputs = LAYERS[name]
    check_rule(module(), inputs())


@pytest.mark.parametrize("shape", [(6, 4), (5, 3, 4)])
def test_a_right_rule_passes(shape: tuple[int, ...]) -> None:
    hoarfrost.register_rule(Scaled, ScaledRule())
    check_rule(Scaled(), torch.randn(*shape), quick=False)


RULE_FAULTS = [
    (ForgetsAFactor, r"norms are .*\(float32\)(.|\n)*the clipped sum of weight is not"),
    (FirstViewOnly, "two views"),
    (MixesExamples, "the clipped sum of weight is not that of one example at a time"),
    (StopsTheGradient, "in front of the module"),
    (ChangesTheOutput, r"the output by the rule is not that of forward\(\)"),
    (OnlyTheWeight, "Scaled has no rule of its own, and gets the fallback"),
    (ForgetsAParameter, "yields no contribution of the live parameter shift"),
]


@pytest.mark.parametrize(("rule", "message"), RULE_FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_faults_of_rules_are_found(rule: Callable[[], LayerRule], message: str) -> None:
    hoarfrost.register_rule(Scaled, rule())
    with pytest.raises(ContractBroken, match=message):
        check_rule(Scaled(), torch.randn(6, 4))


def test_too_few_examples_are_refused() -> None:
    with pytest.raises(ContractBroken, match="at least four"):
        check_rule(nn.Linear(4, 3), torch.randn(2, 4))


# Faults of the library itself are seen, too: the checks look at real steps.


def test_a_guard_that_guards_nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FrozenGuard, "__exit__", lambda *_: None)
    with pytest.raises(ContractBroken, match=r"frozen coordinates of .* change in step .*SGD with momentum(.|\n)*Adam"):
        check_freezer(Random(rate=0.5))


def test_a_release_that_is_charged_afterwards_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def late(self: Account, *args: Any, **kwargs: Any) -> Iterator[str]:
        yield ""
        with release(self, *args, **kwargs):
            pass

    release = Account.release
    monkeypatch.setattr(Account, "release", late)
    with pytest.raises(ContractBroken, match="release 0 is not in the ledger when it looks"):
        check_freezer(ByGradientNorm())


def test_statistics_without_noise_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def exact(self: GaussianMechanism, total: Any, *args: Any) -> Any:
        noisy = release(self, total, *args)
        return replace(noisy, statistics={name: float(value) for name, value in total.statistics.items()})

    release = GaussianMechanism.release
    monkeypatch.setattr(GaussianMechanism, "release", exact)
    with pytest.raises(ContractBroken, match="the noise on statistic 'short' has 0 times the stated size"):
        check_clipper(FollowsQuantile())


def test_sums_that_are_clipped_too_little_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    norms = Uses.norms
    monkeypatch.setattr(Uses, "norms", lambda self: 0.99 * norms(self))
    with pytest.raises(ContractBroken, match="the norms in step 0: not what"):
        check_clipper(Local(0.5))


def test_checks_leave_torchs_random_numbers_alone() -> None:
    module = nn.Linear(4, 3)
    torch.manual_seed(1)
    wanted = torch.rand(())
    torch.manual_seed(1)
    check_clipper(Local(1.0))
    check_freezer(Random(rate=0.5))
    check_rule(module, torch.ones(4, 4))
    assert torch.rand(()) == wanted
