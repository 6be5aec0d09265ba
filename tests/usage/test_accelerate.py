"""A plain loop of accelerate's, around what make_private returns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import hoarfrost
from hoarfrost.errors import NotPrivate
from tests.usage.small import assert_same, data, small, weights

accelerate = pytest.importorskip("accelerate")

STEPS = 10


@pytest.fixture(autouse=True)
def _its_state_is_reset(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    yield
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)


def run(prepare: Any = None, backward: Any = None, **options: Any) -> hoarfrost.Private:
    """Trains; ``prepare`` gets model, optimizer, loader and scheduler, and gives them back."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    settings = {"sample_rate": 0.2, "delta": 1e-4, "steps": STEPS, "noise_multiplier": 1.0, "seed": 3}
    private = hoarfrost.make_private(model, optimizer, data(), **({"accountant": "rdp"} | settings | options))
    schedule = torch.optim.lr_scheduler.LambdaLR(private.optimizer, lambda step: 1 - step / STEPS)
    parts = (private.model, private.optimizer, private.loader, schedule)
    model, optimizer, loader, schedule = parts if prepare is None else prepare(*parts)
    while private.steps_taken < STEPS:
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward() if backward is None else backward(loss)
            optimizer.step()
            if private.stepped:
                schedule.step()
    return private


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("chunks", [None, 5])
def test_a_prepared_loop_takes_the_steps_of_a_plain_one(chunks: int | None) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    found = run(accelerator.prepare, accelerator.backward, max_physical_batch=chunks)
    plain = run(max_physical_batch=chunks)
    assert_same(weights(found.model), weights(plain.model))
    assert (found.steps_taken, found.charged, found.epsilon()) == (STEPS, STEPS, plain.epsilon())
    assert found.optimizer.param_groups[0]["lr"] == pytest.approx(0)


@pytest.mark.filterwarnings("ignore:gradients of a mean loss")
def test_half_precision_ends_with_the_model() -> None:
    """accelerate's autocast is one object around the model's forward: entered twice, it would stay on for good."""
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    found = run(accelerator.prepare, accelerator.backward, loss_reduction="mean", noise_multiplier=0.0)
    assert not torch.is_autocast_enabled("cpu")
    full = run(noise_multiplier=0.0)
    pairs = list(zip(weights(found.model), weights(full.model), strict=True))
    assert all(torch.allclose(a, b, atol=0.02) for a, b in pairs)
    assert not all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)


def test_its_state_counts_what_was_spent(tmp_path: Any) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    first = run(accelerator.prepare, accelerator.backward)
    accelerator.save_state(str(tmp_path / "state"))
    model = small()
    settings = {"sample_rate": 0.2, "delta": 1e-4, "noise_multiplier": 1.0, "accountant": "rdp"}
    later = hoarfrost.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), data(), **settings)
    schedule = torch.optim.lr_scheduler.LambdaLR(later.optimizer, lambda step: 1.0)
    again = accelerate.Accelerator(cpu=True)
    again.prepare(*later, schedule)
    again.load_state(str(tmp_path / "state"))
    assert later.epsilon() == first.epsilon()
    assert_same(weights(later.model), weights(first.model))


def test_accumulation_over_batches_is_refused() -> None:
    """With accelerate's own accumulation, two Poisson batches would meet in one step."""
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = small()
    private = hoarfrost.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), data(), sample_rate=0.5, delta=1e-4, noise_multiplier=1.0
    )
    model, optimizer, loader = accelerator.prepare(*private)

    def loop() -> None:
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()

    with pytest.raises(NotPrivate, match="max_physical_batch="):
        loop()
