"""The Gaussian mechanism by itself: noise by names and blocks, several processes, and other ways to write gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hoarfrost.clipping import Block, Clipper, Clipping, Statistic
from hoarfrost.errors import InvalidValue, NotPrivate
from hoarfrost.gradients import ClippedSum
from hoarfrost.gradients.contributions import Contribution, Dense
from hoarfrost.gradients.encoding import Encoding
from hoarfrost.info import RunInfo
from hoarfrost.masks import Channels, resolve_mask
from hoarfrost.mechanism import GaussianMechanism
from hoarfrost.noise import Noise
from tests import oracle
from tests.clipping.settings import TABLE, Style
from tests.support.clipping import CASES, Case, Run

SIZE = 200_000
SIGMA = 1.5


class Recording(Noise):
    """Keeps what it is asked for."""

    def __init__(self, seed: int | None = 5) -> None:
        super().__init__(seed)
        self.asked: list[list[tuple[torch.Size, float]]] = []

    def add_(self, tensors: Sequence[Tensor], stds: Sequence[float]) -> None:
        self.asked.append([(t.shape, std) for t, std in zip(tensors, stds, strict=True)])
        super().add_(tensors, stds)


def two_blocks(count: bool = False) -> Clipping:
    """Deviations in the proportion 1 : 4, and one of a statistic."""
    blocks = (Block("a", ("w", "v"), bound=3.0, noise_weight=1.0), Block("b", ("u",), bound=2.0, noise_weight=4.0))
    statistic = Statistic("count", lambda norms: torch.ones(len(norms)), bound=1.0, noise_weight=2.0)
    return Clipping(blocks, torch.ones_like, (statistic,) if count else ())


def like() -> dict[str, Tensor]:
    return {"u": torch.zeros(SIZE), "w": torch.zeros(SIZE // 2, 2), "v": torch.zeros(3, SIZE // 3)}


def test_every_name_has_the_noise_of_its_block() -> None:
    mechanism = GaussianMechanism(noise := Recording(), SIGMA, Encoding())
    sums = {"w": torch.full((SIZE // 2, 2), 100.0), "u": torch.full((SIZE,), -100.0)}  # no example reached v
    released = mechanism.release(ClippedSum(two_blocks(), sums), like(), {})
    scale = SIGMA * math.hypot(3.0, 2.0 / 4)
    want = {"w": scale, "v": scale, "u": 4 * scale}
    assert released.stds == pytest.approx(want)
    assert len(noise.asked) == 1  # one draw: one release
    for name, centre in {"w": 100.0, "v": 0.0, "u": -100.0}.items():
        values = released.values[name].double()
        assert values.shape == like()[name].shape
        assert float(values.mean()) == pytest.approx(centre, abs=5 * want[name] / values.numel() ** 0.5)
        assert float(values.std()) == pytest.approx(want[name], rel=0.01)
    joint = (3.0 / want["w"]) ** 2 + (2.0 / want["u"]) ** 2
    assert joint**-0.5 == pytest.approx(SIGMA)


def test_statistics_are_part_of_the_same_draw() -> None:
    mechanism = GaussianMechanism(noise := Recording(), SIGMA, Encoding())
    small = {"u": torch.zeros(2), "w": torch.zeros(3), "v": torch.zeros(())}
    total = ClippedSum(two_blocks(count=True), {}, {"count": torch.tensor(7.0, dtype=torch.float64)})
    released = mechanism.release(total, small, {})
    scale = SIGMA * math.sqrt(3.0**2 + (2.0 / 4) ** 2 + (1.0 / 2) ** 2)
    asked = {(2,): 4 * scale, (3,): scale}
    assert [std for _, std in noise.asked[0]] == pytest.approx([4 * scale, scale, scale, 2 * scale])
    assert {tuple(shape): std for shape, std in noise.asked[0][:2]} == pytest.approx(asked)
    assert len(noise.asked) == 1
    assert released.statistics["count"] not in (0.0, 7.0)
    assert total.statistics["count"] == 7.0  # the exact one is left as it is
    assert isinstance(released.statistics["count"], float)


def test_only_what_is_live_is_released_and_gets_noise() -> None:
    mechanism = GaussianMechanism(noise := Recording(), SIGMA, Encoding())
    shapes = {"u": torch.zeros(6), "w": torch.zeros(4, 3), "v": torch.zeros(5)}
    some = resolve_mask(Channels(torch.tensor([1, 3])), shapes["w"])
    released = mechanism.release(ClippedSum(two_blocks(), {"w": torch.ones(4, 3)}), shapes, {"w": some, "v": False})
    assert {name: tuple(t.shape) for name, t in released.values.items()} == {"u": (6,), "w": (6,), "v": (0,)}
    assert [shape.numel() for shape, _ in noise.asked[0]] == [6, 6, 0]


def test_no_noise_is_no_noise() -> None:
    released = GaussianMechanism(Noise(), 0.0, Encoding()).release(
        ClippedSum(two_blocks(count=True), {"u": torch.ones(4)}, {"count": torch.tensor(2.0)}),
        {"u": torch.zeros(4), "w": torch.zeros(2), "v": torch.zeros(1)},
        {},
    )
    assert released.values["u"].tolist() == [1.0] * 4
    assert released.values["w"].tolist() == [0.0] * 2
    assert released.statistics == {"count": 2.0}


def test_the_noise_multiplier_cannot_be_changed() -> None:
    mechanism = GaussianMechanism(Noise(), SIGMA, Encoding())
    with pytest.raises(AttributeError):
        mechanism.noise_multiplier = 0.1  # type: ignore[misc]


class Cheap(Clipping):
    """Asks for less noise than its bounds need."""

    def stds(self, noise_multiplier: float, live: Any = None) -> tuple[tuple[float, ...], tuple[float, ...]]:
        blocks, statistics = super().stds(noise_multiplier, live)
        return (0.99 * blocks[0], *blocks[1:]), statistics


def test_deviations_that_do_not_add_up_to_the_multiplier_are_refused() -> None:
    cheap = Cheap(two_blocks().blocks, torch.ones_like)
    with pytest.raises(NotPrivate, match="multiplier"):
        GaussianMechanism(noise := Recording(), SIGMA, Encoding()).release(ClippedSum(cheap), like(), {})
    assert noise.asked == []


@pytest.mark.parametrize("noise_multiplier", [SIGMA, 0.0])
def test_a_weight_that_makes_deviations_infinite_is_refused(noise_multiplier: float) -> None:
    blocks = (Block("a", ("w", "v"), bound=3.0), Block("b", ("u",), bound=1.0, noise_weight=1e-320))
    mechanism = GaussianMechanism(noise := Recording(), noise_multiplier, Encoding())
    with pytest.raises(NotPrivate, match="multiplier"):
        mechanism.release(ClippedSum(Clipping(blocks, torch.ones_like)), like(), {})
    assert noise.asked == []


# Several processes.


def halves(clipping: Clipping) -> list[ClippedSum]:
    """What two processes have summed; no example of the second one reached u."""
    first = ClippedSum(clipping, {"w": torch.full((2, 2), 1.0), "u": torch.ones(3)}, {"count": torch.tensor(4.0)})
    second = ClippedSum(clipping, {"w": torch.full((2, 2), 10.0)}, {"count": torch.tensor(5.0)})
    return [first, second]


@dataclass
class Adding:
    """Adds what the other process has summed, as an all-reduce does."""

    other: ClippedSum
    calls: int = 0

    def __call__(self, total: ClippedSum) -> ClippedSum:
        self.calls += 1
        names = {**total.sums, **self.other.sums}
        sums = {n: sum(each.sums[n] for each in (total, self.other) if n in each.sums) for n in names}
        counts = {n: total.statistics[n] + self.other.statistics[n] for n in total.statistics}
        return ClippedSum(total.clipping, sums, counts)


def test_the_sums_of_two_processes_are_added_before_noise_that_is_drawn_once() -> None:
    clipping = two_blocks(count=True)
    shapes = {"u": torch.zeros(3), "w": torch.zeros(2, 2), "v": torch.zeros(2)}
    mine, others = halves(clipping)
    mechanism = GaussianMechanism(noise := Recording(seed=5), SIGMA, Encoding(), reduce := Adding(others))
    released = mechanism.release(mine, shapes, {})
    assert reduce.calls == len(noise.asked) == 1
    stds, (count_std,) = clipping.stds(SIGMA)
    assert [std for _, std in noise.asked[0]] == [stds[1], stds[0], stds[0], count_std]  # not twice as large
    only = [torch.zeros(3), torch.zeros(2, 2), torch.zeros(2), torch.zeros((), dtype=torch.float64)]
    Noise(5).add_(only, [std for _, std in noise.asked[0]])
    torch.testing.assert_close(released.values["u"], only[0] + 1)
    torch.testing.assert_close(released.values["w"], only[1] + 11)
    torch.testing.assert_close(released.values["v"], only[2])
    assert released.statistics["count"] == pytest.approx(9 + float(only[3]))


def test_a_run_that_reduces_over_two_processes_equals_the_oracle_on_both_batches() -> None:
    """The other process' sum is that of another model's step on other data, with the same weights."""
    (style,) = (style for style in TABLE if style.name == "PerLayer(Local)")
    one, other = Run(style), Run(style, inputs=Case("other").new_inputs().flip(0) * 0.8)
    for x in other.private.loader:
        _, theirs = other.expected(x)
        other.backward(x)
        total = other.private.optimizer.engine.release()
    one.private.optimizer.mechanism.reduce = Adding(total)
    (step,) = one.steps(1)
    for name, mine in step.clipped.sums.items():
        torch.testing.assert_close(step.gradients[name], mine + theirs.sums[name], rtol=2e-4, atol=1e-5)


# Other ways to write gradients.

SPLIT = "body.weight"


class Halves(Encoding):
    """One matrix's gradient in two parts: the first coordinates, and the rest."""

    def __init__(self, parameter: Tensor) -> None:
        self.shape, self.first = parameter.shape, parameter.numel() // 3

    def split(self, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """[..., *shape] to [..., a] and [..., b]."""
        flat = gradients.flatten(-len(self.shape))
        return flat[..., : self.first], flat[..., self.first :]

    def join(self, first: Tensor, rest: Tensor) -> Tensor:
        return torch.cat([first, rest]).view(self.shape)

    def like(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        others = {name: p for name, p in parameters.items() if name != SPLIT}
        if SPLIT not in parameters:
            return others
        first, rest = self.split(parameters[SPLIT])
        return {**others, "first": first, "rest": rest}

    def encode(self, uses: dict[str, Contribution]) -> dict[str, Contribution]:
        if SPLIT not in uses:
            return uses
        first, rest = self.split(uses.pop(SPLIT).instantiate())
        return {**uses, "first": Dense(first), "rest": Dense(rest)}

    def decode(self, released: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        others = {name: t for name, t in released.items() if name not in ("first", "rest")}
        if "first" not in released:
            return others
        return {**others, SPLIT: self.join(released["first"], released["rest"])}


class Projection(Halves):
    """A few coefficients in an orthonormal basis, and what is orthogonal to it."""

    def __init__(self, parameter: Tensor) -> None:
        super().__init__(parameter)
        torch.manual_seed(8)
        self.basis = torch.linalg.qr(torch.randn(parameter.numel(), 4)).Q

    def split(self, gradients: Tensor) -> tuple[Tensor, Tensor]:
        flat = gradients.flatten(-len(self.shape))
        found = flat @ self.basis.to(flat)
        return found, flat - found @ self.basis.to(flat).T

    def join(self, first: Tensor, rest: Tensor) -> Tensor:
        return (self.basis.to(first) @ first + rest).view(self.shape)


@dataclass(frozen=True)
class ByPart(Clipper):
    """The first part, and all the rest: two bounds and two levels of noise."""

    names: tuple[str, ...]

    def begin(self, step: int, info: RunInfo) -> Clipping:
        others = tuple(name for name in self.names if name != "first")
        blocks = (Block("first", ("first",), 0.2, noise_weight=0.5), Block("others", others, 0.6))
        return Clipping(blocks, lambda norms: (torch.tensor([0.2, 0.6]) / norms).clamp(max=1))


def by_part(names: list[str]) -> oracle.Rule:
    blocks = [["first"], [name for name in names if name != "first"]]
    return oracle.Rule(
        blocks,
        [0.2, 0.6],
        lambda norms: [min(1.0, b / max(n, 1e-30)) for n, b in zip(norms, (0.2, 0.6), strict=True)],
        [0.5, 1.0],
    )


def encoded_run(kind: type[Halves], case: Case, **options: Any) -> tuple[Run, Halves, list[str]]:
    model = case.new_model()
    encoding = kind(model.get_parameter(SPLIT).detach())
    names = list(encoding.like(dict(model.named_parameters())))
    run = Run(Style("by part", ByPart(tuple(names)), lambda known: by_part(names)), case, **options)
    run.private.optimizer.engine.encoding = run.private.optimizer.mechanism.encoding = encoding
    return run, encoding, names


PLACES = ["plain", "chunks, mean", "views in chunks", "Poisson", "Adam"]
PLACES += ["elements frozen", "channels frozen", "layers frozen"]
SPLIT_CASES = [*(case for case in CASES if case.name in PLACES), Case("the matrix is frozen", frozen=SPLIT)]


@pytest.mark.parametrize("kind", [Halves, Projection])
@pytest.mark.parametrize("case", SPLIT_CASES, ids=repr)
def test_parts_are_clipped_by_themselves_and_put_together_again(kind: type[Halves], case: Case) -> None:
    run, encoding, names = encoded_run(kind, case)

    def want(rows: Tensor) -> tuple[dict[str, Tensor], list[list[float]]]:
        parts = run.gradients(rows)
        for gradient in parts:
            gradient["first"], gradient["rest"] = encoding.split(gradient.pop(SPLIT))
        clipped = oracle.clip(parts, by_part(names))
        joined = encoding.join(clipped.sums.pop("first"), clipped.sums.pop("rest"))
        return {**clipped.sums, SPLIT: torch.where(run.masks[SPLIT], joined, 0.0)}, clipped.factors

    rows: list[Tensor] = []
    cut = [False, False]
    while run.private.steps_taken < 2:
        for x in run.private.loader:
            rows.append(x)
            taken, (sums, factors) = run.private.steps_taken, want(torch.cat(rows))
            run.backward(x)
            run.private.optimizer.step()
            if run.private.steps_taken == taken:
                continue
            rows = []
            cut = [before or any(each[i] < 1 for each in factors) for i, before in enumerate(cut)]
            for name, p in run.model.named_parameters():
                got = torch.zeros_like(p) if p.grad is None else p.grad * run.private.expected_batch
                torch.testing.assert_close(got, sums[name], rtol=2e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    assert cut == [case.frozen != SPLIT, True]


@pytest.mark.parametrize("kind", [Halves, Projection])
def test_parts_have_two_levels_of_noise(kind: type[Halves]) -> None:
    case = Case("wide", model=lambda: Wide(), inputs=lambda: torch.zeros(3, 1))
    run, encoding, names = encoded_run(kind, case, noise_multiplier=SIGMA, scale=1e-30)
    for x in run.private.loader:
        run.backward(x)
        run.private.optimizer.step()
    stds, _ = oracle.stds(by_part(names), SIGMA)
    assert stds[0] == pytest.approx(0.5 * stds[1])
    _, noisy = run._released[-1]
    assert noisy.stds == pytest.approx({"first": stds[0], "rest": stds[1], "body.bias": stds[1]})
    first, rest = encoding.split(run.model.body.weight.grad * run.private.expected_batch)
    if kind is Halves:
        assert float(first.std()) == pytest.approx(stds[0], rel=0.02)
        assert float(rest.std()) == pytest.approx(stds[1], rel=0.02)
    else:  # along the basis both noises meet
        assert float(first.double().norm()) < 8 * math.hypot(*stds)
        assert float(rest.std()) == pytest.approx(stds[1], rel=0.02)


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(1, 60_000)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).sum(1, keepdim=True)


def test_an_encoding_by_itself_releases_live_coordinates_after_it_is_undone() -> None:
    weight, bias = torch.arange(12.0).view(4, 3), torch.ones(2)
    encoding = Halves(weight)
    clipping = ByPart(("first", "rest", "bias")).begin(0, RunInfo({}))
    live = {SPLIT: resolve_mask(Channels(torch.tensor([1, 2])), weight), "bias": resolve_mask(bias > 2, bias)}
    sums = dict(zip(("first", "rest"), encoding.split(weight.clone()), strict=True)) | {"bias": bias}
    released = GaussianMechanism(Noise(), 0.0, encoding).release(
        ClippedSum(clipping, sums), {SPLIT: weight, "bias": bias}, live
    )
    assert released.values[SPLIT].tolist() == [3, 4, 5, 6, 7, 8]
    assert released.values["bias"].tolist() == []
    assert released.stds.keys() == {"first", "rest", "bias"}


def test_a_part_in_no_block_is_refused_by_name() -> None:
    run, _, names = encoded_run(Halves, CASES[0])
    run.private.optimizer.engine.clipper = ByPart(tuple(name for name in names if name != "rest"))
    with pytest.raises(InvalidValue, match="rest in no block"):
        run.backward(next(iter(run.private.loader)))
