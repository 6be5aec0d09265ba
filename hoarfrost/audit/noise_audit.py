"""The noise audit: steps on empty batches release nothing but noise, whose size can be tested on any model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from hoarfrost import validate
from hoarfrost.audit import gaussianity
from hoarfrost.audit.canaries import Freezing, LastRelease, OneClipping
from hoarfrost.audit.no_op_optimizer import NoOpOptimizer
from hoarfrost.audit.result import Audit
from hoarfrost.clipping import Clipper, Local
from hoarfrost.models import outputs_of
from hoarfrost.private import make_private

MAX_COORDINATES = 20_000  # of a tensor that are tested


@dataclass(frozen=True, kw_only=True)
class NoiseAudit(Audit):
    """The noise that empty batches released, beside the stated one."""

    kind: ClassVar[str] = "noise"

    clip: str
    model: str
    freeze: str
    coordinates: int  # of the release: live ones of the model, and the clipping's statistics
    steps: int
    std_ratio: float  # measured standard deviation over the stated one

    def figures(self) -> tuple[str, ...]:
        return (
            f"noise audit: {self.clip}, {self.model}, {self.freeze}, {self.coordinates} coordinates, "
            f"{self.steps} steps on empty batches",
            f"measured standard deviation {self.std_ratio:.4f} times the stated one",
        )


def noise(
    *,
    model: nn.Module,
    shape: tuple[int, ...],
    clip: Clipper = Local(1.0),  # noqa: B008 - frozen
    freeze: Freezing = Freezing(),  # noqa: B008 - has no state
    dtype: torch.dtype = torch.float32,
    call: Callable[[nn.Module, torch.Tensor], torch.Tensor] = outputs_of,
    rounds: int = 20,
    device: torch.device | str = "cpu",
) -> NoiseAudit:
    """Takes steps on empty batches, and tests the noise on every parameter of the model.

    Args:
        model, shape: the model, and the shape of one of its inputs. A copy is audited.
        clip: the clipping style. All batches are clipped as its first one.
        freeze: what is frozen, the same in every step.
        call: how the model is called with a batch of inputs, and what its outputs are.

    Guarantees:
        Correct noise raises an alarm with probability below 1e-5. A pass says that every tensor (up to 20,000
        coordinates of it) and every statistic of the clipping gets independent Gaussian noise of the stated size, where
        it is live, and none where it is frozen, although no example took part.

    >>> noise(model=nn.Linear(30, 20), shape=(30,)).passed
    True
    """
    validate.whole(rounds=rounds)
    audited = copy.deepcopy(model).to(device)
    data = TensorDataset(torch.zeros(2, *shape, dtype=dtype))
    private = make_private(
        audited, NoOpOptimizer(audited.parameters()), data, sample_rate=1e-9, steps=rounds,
        noise_multiplier=1.0, delta=1e-5, clip=OneClipping(clip), **freeze.options(audited),
    )  # fmt: skip
    seen = LastRelease()
    private.observe(seen)
    named = {name: p for name, p in audited.named_parameters() if p.requires_grad}
    names = [f"{name}[{i}]" for name, p in named.items() for i in range(min(p.numel(), MAX_COORDINATES))]
    releases = []
    for (x,) in private.loader:
        private.optimizer.zero_grad()
        output = call(audited, x.to(device))
        if output.requires_grad:
            output.sum().backward()
        private.optimizer.step()
        parts = [_strided(torch.zeros_like(p) if p.grad is None else p.grad).double().cpu() for p in named.values()]
        counts = torch.tensor([*seen.last.statistics.values()], dtype=torch.float64)
        releases.append(torch.cat([*parts, counts]).numpy())
    # By the run's own info, which styles and freezers go by; and not by what the step says of itself.
    info = private.info()
    clipping, masks = private.optimizer.engine.clipper.begin(0, info), freeze.live(audited, 0, info)
    block_stds, count_stds = clipping.stds(1.0, freeze.released(masks))
    names += [statistic.name for statistic in clipping.statistics]
    stds = [block_stds[clipping.block_of[name]] / private.expected_batch for name in named]
    lengths = [min(p.numel(), MAX_COORDINATES) for p in named.values()]
    release = np.stack(releases) / np.concatenate([np.repeat(stds, lengths), count_stds])
    parts = [_strided(masks[name].flatten()).cpu() for name in named]
    live = torch.cat([*parts, torch.ones(len(count_stds), dtype=torch.bool)]).numpy()
    faults = list(gaussianity.faults(release, np.broadcast_to(live, release.shape), names))
    if release[:, ~live].any():
        faults.append("frozen coordinates get a gradient or noise")
    return NoiseAudit(
        alarms=tuple(faults), clip=str(clip), model=type(model).__name__, freeze=freeze.name,
        coordinates=int(live.sum()), steps=rounds, std_ratio=float(np.sqrt(np.square(release[:, live]).mean())),
    )  # fmt: skip


def _strided(t: torch.Tensor) -> torch.Tensor:
    """Evenly spaced coordinates of a tensor."""
    flat = t.flatten()
    chosen = torch.linspace(
        0, len(flat) - 1, min(len(flat), MAX_COORDINATES), device=flat.device, dtype=torch.float64
    ).long()
    return flat[chosen]
