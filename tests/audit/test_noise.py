"""The noise audit finds noise that is missing somewhere in a network of one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from torch import Tensor, nn

from hoarfrost import audit
from hoarfrost.noise import Noise


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 16, 10))


def only(wanted: Callable[[Tensor], bool]) -> Callable[..., None]:
    """Noise for some tensors alone."""
    add = Noise.add_

    def faulty(self: Noise, tensors: Sequence[Tensor], stds: Sequence[float]) -> None:
        add(self, tensors, [std if wanted(t) else 0.0 for t, std in zip(tensors, stds, strict=True)])

    return faulty


def test_right_noise_raises_no_alarm() -> None:
    for _ in range(5):
        result = audit.noise(model=net(), shape=(1, 6, 6))
        assert result.passed
        assert result.coordinates == 80 + 1290


FAULTS: dict[str, Callable[[Tensor], bool]] = {
    "no noise on biases": lambda t: t.dim() > 1,
    "no noise on convolutions": lambda t: t.dim() != 4,
    "no noise on matrices": lambda t: t.dim() != 2,
    "no noise at all": lambda t: False,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_missing_noise_is_caught_every_time(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Noise, "add_", only(FAULTS[fault]))
    for _ in range(20):
        assert not audit.noise(model=net(), shape=(1, 6, 6)).passed


def test_chunks_and_views_are_audited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is clipped in the first chunk alone, and norms that are divided by the number of views."""
    from hoarfrost.gradients import Engine

    model, shape = nn.Linear(6, 5), (6,)
    right = Engine._norms
    assert audit.sensitivity(model=model, shape=shape, views=3, max_physical_batch=6, rounds=1).passed
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "_norms", lambda self, *args: right(self, *args) / self.views)
        assert not audit.sensitivity(model=model, shape=shape, views=3, rounds=1).passed
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "_norms", lambda self, *args: right(self, *args) * float(self.batch.chunk.first))
        assert audit.sensitivity(model=model, shape=shape, rounds=1).passed
        assert not audit.sensitivity(model=model, shape=shape, max_physical_batch=1, rounds=1).passed
