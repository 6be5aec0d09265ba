"""docs/measurements.md is true: its program runs, its tables are complete, and what it says of the papers holds."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hoarfrost
from hoarfrost.cli.measure_runs import ABOUT
from hoarfrost.errors import InvalidValue
from hoarfrost.freezing import Layers
from hoarfrost.measure import (
    Clipped,
    Frozen,
    Outside,
    alignment_bound,
    clip_norm_for,
    gradient_ratio,
    momentum_scale,
    mse_bound,
)
from hoarfrost.measure.run_panels import FIGURES
from hoarfrost.registry import components
from hoarfrost.train import read_recipe
from tests.measure import slow_signals as slow

PAGE = (Path(__file__).parents[2] / "docs/measurements.md").read_text("utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def test_the_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    given: dict[str, Any] = {}
    exec(block("python"), given)
    assert given["private"].steps_taken == 20
    assert [row["step"] for row in given["distortion"].rows] == [0, 5, 10, 15]
    assert "'U'" in capsys.readouterr().out


def test_the_table_is_a_recipe_s(tmp_path: Path) -> None:
    recipe = read_recipe("digits", ["measure=[{kind='distortion', every=10}]"])
    (tmp_path / "digits.toml").write_text(
        '[data]\nname = "digits"\n[model]\nname = "cnn"\n[optimizer]\nkind = "sgd"\nlr = 1.0\n'
        "[privacy]\nepsilon = 3.0\ndelta = 1e-4\nbatch_size = 250\nepochs = 2\n" + block("toml")
    )
    assert read_recipe(tmp_path / "digits.toml").measure == recipe.measure


def test_every_kind_and_every_figure_is_on_the_page() -> None:
    named = set(re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE))
    own = {kind for kind, each in components("measure").items() if each.where.startswith("hoarfrost.")}
    assert named == own | set(FIGURES) == own | set(ABOUT)


class TwoParts(nn.Module):
    """Whose gradient is the example itself: a part below, and a part above."""

    def __init__(self) -> None:
        super().__init__()
        self.below, self.above = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.below(x[:, 1:]) + self.above(x[:, :1])


def test_freezing_can_shorten_the_clipped_mean() -> None:
    """The counterexample to Lemma 3.2 of the paper on layer freezing."""
    data = TensorDataset(torch.tensor([[2.0, 0.0], [-2.0, 10.0]]))
    model = TwoParts()
    private = hoarfrost.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), data, sample_rate=1.0, steps=1, noise_multiplier=1.0,
        delta=1e-5, clip=1.0, freeze=Layers(names=["below"], step=0),
    )  # fmt: skip
    frozen = Frozen(Outside(model, data, lambda m, batch: m(batch[0]).squeeze(1)), sample=2, every=1)
    private.observe(frozen)
    for (x,) in private.loader:
        private.optimizer.backward(model(x).squeeze(1))
        private.optimizer.step()
    (row,) = frozen.rows
    assert row["unfrozen"]["norm_B"] == pytest.approx(0.40, abs=0.005)
    assert row["frozen"]["norm_B"] == pytest.approx(0, abs=1e-6)
    assert row["frozen"]["angle_UB"] is None  # a mean of 0 has no direction
    assert (row["unfrozen"]["share_clipped"], row["live_share"]) == (1.0, 0.5)


# Functions of plain numbers.


@pytest.mark.parametrize("seed", range(20))
def test_the_bound_on_the_clipped_mean_holds_where_all_are_clipped(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(7, generator=generator) * 2
    rows = (mean + torch.randn(5, 7, generator=generator) * (0.2 + seed / 5)).double().tolist()
    clip_norm = 0.9 * min(slow.norm(row) for row in rows)
    clipped = [[x * clip_norm / slow.norm(row) for x in row] for row in rows]
    means = [[sum(column) / 5 for column in zip(*each, strict=True)] for each in (rows, clipped)]
    ratio = slow.ratio(rows)
    assert ratio is not None
    along = sum(x * y for x, y in zip(*means, strict=True)) / slow.norm(means[0])
    assert along >= alignment_bound(clip_norm, ratio) - 1e-9
    mean_square = sum(slow.norm(row) ** 2 for row in rows) / 5
    assert gradient_ratio(mean_square, slow.norm(means[0])) == pytest.approx(ratio)


def test_gradients_that_cancel_have_no_ratio() -> None:
    assert gradient_ratio(mean_square=1.0, mean_norm=0.0) is None


def test_the_bound_on_the_error_is_below_the_error_of_noise_that_covers_the_longest() -> None:
    torch.manual_seed(0)
    scales = torch.linspace(0.1, 1.0, 40).double()
    gradients = torch.randn(2000, 40, dtype=torch.float64) * scales
    trace, longest = float(scales.square().sum()), float(gradients.square().sum(1).max())
    assert mse_bound(trace, 40, 1.3) <= trace + 40 * 1.3**2 * longest
    assert mse_bound(trace, 40, 0.0) == trace


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.99])
def test_noise_gains_less_by_momentum_than_the_signal(momentum: float) -> None:
    signal = variance = 0.0
    for _ in range(5000):  # the velocity's signal of 1 in each step, and the variance of independent noise
        signal, variance = momentum * signal + 1, momentum**2 * variance + 1
    found = momentum_scale(2.0, momentum)
    assert found.signal == pytest.approx(2 * signal)
    assert found.noise_gain == pytest.approx(math.sqrt(variance))
    assert clip_norm_for(momentum, found) == pytest.approx(2.0)


@pytest.mark.parametrize("momentum", [1.0, 1.5, -0.1, math.nan])
def test_a_momentum_that_never_ends_is_refused(momentum: float) -> None:
    with pytest.raises(InvalidValue, match="momentum"):
        momentum_scale(1.0, momentum)


def test_clipped_gradients_of_a_measured_batch_keep_to_the_bound() -> None:
    torch.manual_seed(1)
    data = TensorDataset(torch.tensor([3.0, 0.5]) + 0.1 * torch.randn(40, 2))
    model = TwoParts()
    private = hoarfrost.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), data, sample_rate=1.0, steps=1, noise_multiplier=1.0,
        delta=1e-5, clip=0.5,
    )  # fmt: skip
    clipped = Clipped(every=1)
    private.observe(clipped)
    for (x,) in private.loader:
        private.optimizer.backward(model(x).squeeze(1))
        private.optimizer.step()
    (row,) = clipped.rows
    assert row["share_clipped"] == 1
    assert 0.4 < row["alignment_bound"] <= row["alignment"] <= 0.5
