"""The code of `benchmarks.measure` that trains and compares models, on a small scale and without any data set."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from benchmarks.measure import arms, clipping_and_noise, landscape, layers_converge, ntk, phases, pruning_ratio
from benchmarks.measure.rows import once
from benchmarks.measure.ways import Way, plain, seeded
from hoarfrost import data
from hoarfrost.data import Splits

SCRIPTS: dict[str, tuple[Callable[[Any], None], int]] = {
    "pruning-ratio": (pruning_ratio.main, 1),
    "ntk": (ntk.main, 2),
    "phases": (phases.main, 2),
    "landscape": (landscape.main, 5),
    "clipping-and-noise": (clipping_and_noise.main, 9),
    "layers-converge": (layers_converge.main, 2),
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is fetched: images of noise stand in for all data sets."""
    monkeypatch.chdir(tmp_path)
    x, y = torch.rand(2500, 1, 28, 28), torch.randint(10, (2500,))
    monkeypatch.setattr(data, "load", lambda name: Splits.of(x, y, x[:500], y[:500], 10))


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in ("pruning-ratio", "ntk") else pytest.mark.slow)
                                  for n in SCRIPTS])  # fmt: skip
def test_a_quick_run_has_all_rows_of_one_seed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    main, count = SCRIPTS[name]
    main(Namespace(quick=True, seed=None))
    assert sum(line.startswith('{"') for line in capsys.readouterr().out.splitlines()) == count


def test_a_row_that_is_there_is_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arms, "RESULTS", tmp_path)
    calls: list[int] = []

    def compute() -> dict[str, int]:
        calls.append(1)
        return {"value": len(calls)}

    for seed in (1, 2, 1):
        once(arms.Rows("some", Namespace(quick=False)), {"seed": seed}, compute)
    expected = [{"seed": 1, "value": 1}, {"seed": 2, "value": 2}]
    assert (
        list(arms.Rows("some", Namespace(quick=False))) == json.loads((tmp_path / "some.json").read_text()) == expected
    )
    assert list(arms.Rows("some", Namespace(quick=True))) == []


def fixed() -> tuple[nn.Module, TensorDataset]:
    torch.manual_seed(0)
    return nn.Linear(3, 2), TensorDataset(torch.randn(20, 3) * 3, torch.randint(2, (20,)))


def steps(clip: float | None, lr: float, count: int) -> nn.Module:
    """Full-batch descent, one example after the other."""
    model, examples = fixed()
    for _ in range(count):
        total = [torch.zeros_like(p) for p in model.parameters()]
        for x, y in examples:
            found = torch.autograd.grad(F.cross_entropy(model(x[None]), y[None]), list(model.parameters()))
            norm = torch.cat([g.flatten() for g in found]).norm().item()
            factor = 1.0 if clip is None else min(1.0, clip / norm)
            total = [t + factor * g for t, g in zip(total, found, strict=True)]
        with torch.no_grad():
            for p, t in zip(model.parameters(), total, strict=True):
                p -= lr * t / len(examples)
    return model


@pytest.mark.parametrize("clip", [None, 1.0, 0.3])
def test_sgd_and_clipping_only_are_what_they_say(clip: float | None) -> None:
    model, examples = fixed()
    trained = Way("", 0.5, 20, clip).train(plain(model), examples, 3, seed=1)
    for p, expected in zip(trained.parameters(), steps(clip, 0.5, 3).parameters(), strict=True):
        assert p.detach().allclose(expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("clip", [None, 1.0])
def test_the_noise_is_in_clipping_norms(clip: float | None) -> None:
    """Noise of deviation 2 on the sum over 20 examples, at learning rate 20: of deviation 2 on each weight."""
    torch.manual_seed(0)
    model, examples = nn.Linear(400, 2), TensorDataset(torch.zeros(20, 400), torch.randint(2, (20,)))
    trained = Way("", 20.0, 20, clip, 2.0).train(plain(model), examples, 1, seed=1)
    moved = trained.weight - model.weight  # type: ignore[operator]
    assert float(moved.detach().std()) == pytest.approx(2.0, rel=0.1)  # there is no gradient: the inputs are zero


def test_a_second_phase_begins_where_the_first_ends() -> None:
    model, examples = fixed()
    first = Way("", 0.5, 20).train(plain(model), examples, 2, seed=1)
    second = Way("", 0.5, 20).train(plain(first), examples, 1, seed=2)
    for p, expected in zip(second.parameters(), steps(None, 0.5, 3).parameters(), strict=True):
        assert p.detach().allclose(expected, rtol=1e-4, atol=1e-5)


def test_seeds_decide_the_initial_weights_alone() -> None:
    before = torch.random.get_rng_state()
    one, same, other = (seeded(lambda: nn.Linear(3, 2), seed) for seed in (1, 1, 2))
    assert torch.random.get_rng_state().equal(before)
    assert one.weight.equal(same.weight)  # type: ignore[operator]
    assert not one.weight.equal(other.weight)  # type: ignore[operator]
