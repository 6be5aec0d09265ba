"""Adaptive clipping: the norm goes to the quantile that was asked for and stays there, at no further cost.

The loss is linear in the weights, so that an example's gradient is its input, whose length is known and stays.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hoarfrost
from hoarfrost.clipping import Adaptive, Automatic, Clipper, Global, Local, PerGroup, PerLayer, Schedule
from hoarfrost.clipping.adaptive import LARGEST, SMALLEST
from hoarfrost.errors import InvalidValue
from hoarfrost.info import RunInfo
from hoarfrost.observers import Observer, Released

SPREAD = 1.5  # norms lie from exp(-1.5) to exp(1.5), as many between any two that differ by the same factor
LAYERS = 2


class Linear(nn.Module):
    """Two layers side by side. The gradient of each is its half of the input, the second one ten times as long."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 1, bias=False) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([layer(x[:, at] * 10**at) for at, layer in enumerate(self.layers)]).sum(0)


class Path(Observer):
    def __init__(self) -> None:
        self.norms: list[tuple[float, ...]] = []

    def on_release(self, released: Released) -> None:
        self.norms.append(released.clipping.bounds)


def follow(clip: Clipper, steps: int, *, size: int = 200, layers: int = 1, **options: Any) -> Any:
    """The norms of every step, as [steps, blocks], and the run."""
    torch.manual_seed(0)
    lengths = torch.exp(torch.linspace(-SPREAD, SPREAD, size))
    x = nn.functional.normalize(torch.randn(size, layers, 3), dim=2) * lengths[:, None, None]
    model = Linear(layers)
    given = {"sample_rate": 1.0, "noise_multiplier": 1.0, "delta": 1e-5, "steps": steps, "accountant": "rdp"} | options
    private = hoarfrost.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.0), TensorDataset(x), clip=clip, loss_reduction="sum",
        seed=1, **given,
    )  # fmt: skip
    path = Path()
    private.observe(path)
    while private.steps_taken < steps:
        for (batch,) in private.loader:
            private.optimizer.zero_grad()
            private.model(batch).sum().backward()
            private.optimizer.step()
    return torch.tensor(path.norms, dtype=torch.float64), private


def share_below(norms: Tensor) -> Tensor:
    """The share of lengths that are shorter than each norm; it goes on beyond 0 and 1, to tell how far away one is."""
    return (norms.log() + SPREAD) / (2 * SPREAD)


@pytest.mark.parametrize("start", [0.1, 9.0])
@pytest.mark.parametrize("style", ["local", "global"])
@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.9])
def test_the_norm_goes_to_the_quantile(quantile: float, style: Any, start: float) -> None:
    norms, _ = follow(Adaptive(quantile=quantile, start=start, rate=0.5, style=style), 300)
    assert norms[0] == start
    shares = share_below(norms[150:, 0])
    assert abs(float(shares.mean()) - quantile) < 0.02
    assert float((shares - quantile).abs().max()) < 0.08  # noise of 5 in a count of 200: 0.025 a step, times the rate


@pytest.mark.parametrize("style", ["local", "global"])
@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.9])
def test_every_layer_s_norm_goes_to_its_own_quantile(quantile: float, style: Any) -> None:
    norms, _ = follow(PerLayer(Adaptive(quantile=quantile, start=2.0, rate=0.5, style=style)), 300, layers=LAYERS)
    assert norms.shape == (300, LAYERS)
    for layer in range(LAYERS):
        shares = share_below(norms[150:, layer] / 10**layer)
        assert abs(float(shares.mean()) - quantile) < 0.03
        assert float((shares - quantile).abs().max()) < 0.12


def test_groups_follow_quantiles_of_their_own() -> None:
    groups = {"layers.0.*": Adaptive(quantile=0.3, rate=0.5), "layers.1.*": Adaptive(quantile=0.8, rate=0.5, start=5.0)}
    norms, _ = follow(PerGroup(groups, noise="proportional"), 300, layers=2)
    for layer, quantile in enumerate((0.3, 0.8)):
        assert abs(float(share_below(norms[150:, layer] / 10**layer).mean()) - quantile) < 0.03


def test_a_stage_of_a_schedule_follows_too() -> None:
    clip = Schedule((0, Local(0.5)), (20, Adaptive(quantile=0.7, start=0.1, rate=0.5)), by="step")
    norms, _ = follow(clip, 320)
    assert norms[:20].unique().tolist() == [0.5]
    assert norms[20] == 0.1
    assert abs(float(share_below(norms[170:, 0]).mean()) - 0.7) < 0.02


SMALL = [(0.5, 0.01, "local"), (0.5, 0.1, "global"), (0.2, 0.1, "global"), (0.9, 0.1, "local")]
OTHER = [(0.5, 0.01, "global"), (0.5, 0.1, "local"), (0.2, 0.1, "local"), (0.9, 0.1, "global")]


@pytest.mark.parametrize(
    ("quantile", "cost", "style"), [*SMALL, *(pytest.param(*each, marks=pytest.mark.slow) for each in OTHER)]
)
def test_a_batch_of_four_does_not_carry_the_norm_away(quantile: float, cost: float, style: Any) -> None:
    """The count's noise is as large as the batch: a share that were cut to [0, 1] would drift without end."""
    norms, _ = follow(Adaptive(quantile=quantile, cost=cost, style=style), 1500, size=40, sample_rate=0.1)
    shares = share_below(norms[300:, 0])
    assert abs(float(shares.mean()) - quantile) < 0.2
    assert float((shares - quantile).abs().max()) < 1.3  # a factor of 50 in the norm


@pytest.mark.parametrize("quantile", [0.2, 0.9])
def test_large_noise_does_not_carry_the_norm_away(quantile: float) -> None:
    norms, _ = follow(Adaptive(quantile=quantile), 1500, size=64, noise_multiplier=4.0)
    assert abs(float(share_below(norms[300:, 0]).mean()) - quantile) < 0.05


def test_a_share_that_is_cut_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Adaptive.follow

    def cut(self: Adaptive, count: float, info: RunInfo) -> None:
        half = 0.495 * info.expected_batch
        original(self, max(-half, min(half, count)), info)

    monkeypatch.setattr(Adaptive, "follow", cut)
    with pytest.raises(AssertionError):
        test_large_noise_does_not_carry_the_norm_away(0.9)
    with pytest.raises(AssertionError):
        test_a_batch_of_four_does_not_carry_the_norm_away(0.9, 0.1, "local")


@pytest.mark.parametrize(("count", "end"), [(1e300, SMALLEST), (-1e300, LARGEST), (1e12, SMALLEST), (-1e12, LARGEST)])
def test_whatever_noise_says_the_norm_stays_a_number(count: float, end: float) -> None:
    style, info = Adaptive(start=1.0, rate=50.0), RunInfo({"weight": torch.Size([2])}, expected_batch=0.01)
    style.follow(count, info)
    assert style.norm == end
    again = style.fresh()
    assert again.norm == 1.0
    again.load_state(style.state())  # the ends themselves are within
    assert again.norm == end


@pytest.mark.parametrize("norm", [0.0, -1.0, math.nan, math.inf, 1e11])
def test_a_state_that_is_no_norm_is_refused(norm: float) -> None:
    with pytest.raises(InvalidValue, match="the norm of an adaptive clipping style is out of range"):
        Adaptive().load_state({"norm": torch.tensor(norm)})


STYLES: list[Clipper] = [
    Adaptive(),
    Adaptive(cost=0.5, style="global"),
    PerLayer(Adaptive(cost=0.3)),
    PerLayer(Local(0.5), noise="proportional"),
    PerGroup({"layers.0.*": Adaptive(), "layers.1.*": Global(0.4)}),
    Global(0.5),
    Automatic(0.5),
    Schedule((0, Local(0.5)), (2, Adaptive(), 0.1), by="step"),
]


@pytest.mark.parametrize("clip", STYLES, ids=repr)
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_every_style_costs_the_same(clip: Clipper, accountant: Any) -> None:
    options: dict[str, Any] = {"size": 40, "layers": 2, "sample_rate": 0.25, "accountant": accountant}
    _, private = follow(clip, 4, **options)
    _, plain = follow(Local(1.0), 4, **options)
    assert private.epsilon() == plain.epsilon() > 0
    assert private.events() == plain.events()
    said, plainly = private.statement(), plain.statement()
    assert replace(said, notes=()) == replace(plainly, notes=())
    how = "gradients clipped by "
    assert [line for line in said.lines() if how not in line] == [line for line in plainly.lines() if how not in line]
    assert any(line.startswith(f"{how}{clip!r}: ") for line in said.lines())


@pytest.mark.parametrize("clip", STYLES, ids=repr)
def test_a_calibrated_run_has_the_same_noise_whatever_the_style(clip: Clipper) -> None:
    options: dict[str, Any] = {"size": 40, "layers": 2, "sample_rate": 0.25, "noise_multiplier": None, "epsilon": 2.0}
    found = [follow(style, 4, **options)[1] for style in (clip, Local(1.0))]
    assert found[0].noise_multiplier == found[1].noise_multiplier > 0
    assert found[0].epsilon() == found[1].epsilon() <= 2.0
