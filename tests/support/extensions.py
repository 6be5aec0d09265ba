"""Components as users write them: two clipping styles that change from step to step, and a freezer that looks."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from hoarfrost.budget import Gaussian, PlannedRelease
from hoarfrost.clipping import Clipper, Clipping, Local, Statistic
from hoarfrost.freezing import Freezer, Live, RunInfo
from hoarfrost.query import Query


@dataclass
class FollowsQuantile(Clipper):
    """The norm moves towards a quantile of the gradient norms, by a noisy count of those that are shorter."""

    norm: float = 1.0
    quantile: float = 0.5
    rate: float = 0.3
    now: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.now = self.norm

    def begin(self, step: int, info: RunInfo) -> Clipping:
        now = self.now
        # One half less: a count has then half the sensitivity. Its noise does not depend on the norm: otherwise a norm
        # that happens to be large makes the count so noisy that it grows without end.
        weight = 5 / now
        short = Statistic("short", lambda norms: _shorter(norms[:, 0], now) - 0.5, bound=0.5, noise_weight=weight)
        return Clipping.flat(info.shapes, now, lambda norms: (now / norms).clamp(max=1), (short,))

    def observe(self, step: int, statistics: Mapping[str, float], info: RunInfo) -> None:
        share = statistics["short"] / info.expected_batch + 0.5
        self.now *= math.exp(self.rate * (self.quantile - share))

    def state(self) -> dict[str, Tensor]:
        return {"now": torch.tensor(self.now, dtype=torch.float64)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.now = float(state["now"])

    def fresh(self) -> Clipper:
        return type(self)(self.norm, self.quantile, self.rate)


def _shorter(norms: Tensor, than: float) -> Tensor:
    """1 or 0, and a number between where a norm is about equal: a count must not jump."""
    return ((1.05 * than - norms) / (0.1 * than)).clamp(0, 1)


@dataclass(frozen=True)
class TwoNorms(Clipper):
    """One norm before a step, and another one from it on."""

    first: float = 1.0
    then: float = 0.25
    change: int = 3

    def begin(self, step: int, info: RunInfo) -> Clipping:
        return Local(self.first if step < self.change else self.then).begin(step, info)


class ByGradientNorm(Freezer):
    """Trains the layers with the longest gradients: noisy sums of their norms, at the start and again at one step.

    Args:
        keep: how many layers are live.
        again: the step before which it looks again.
    """

    def __init__(self, keep: int = 1, again: int = 5, noise_multiplier: float = 4.0) -> None:
        self.keep, self.again, self.noise_multiplier = keep, again, noise_multiplier
        self.looks: dict[str, Tensor] = {}  # what each release found, by its number

    def __repr__(self) -> str:
        return f"ByGradientNorm(keep={self.keep}, again={self.again}, noise_multiplier={self.noise_multiplier})"

    def fresh(self) -> Freezer:
        new = copy.copy(self)
        new.looks = {}
        return new

    def releases(self, info: RunInfo) -> tuple[PlannedRelease, ...]:
        event = Gaussian(noise_multiplier=self.noise_multiplier, sample_rate=0.5)
        return tuple(PlannedRelease(event=event, what="layer gradient norms", step=step) for step in (0, self.again))

    def prepare(self, number: int, query: Query, info: RunInfo) -> None:
        layers = layers_of(info)

        def norms(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
            named = dict(model.named_parameters())
            found = [torch.autograd.grad(loss, [named[n] for n in names], retain_graph=True) for names in layers]
            return torch.stack([torch.cat([g.flatten() for g in each]).norm() for each in found])

        self.looks[str(number)] = query.sum(norms, size=len(layers), bound=1.0)

    def key(self, step: int, info: RunInfo) -> bool:
        return step >= self.again

    def live(self, step: int, info: RunInfo) -> Live:
        found = self.looks["1" if step >= self.again else "0"]
        chosen = found.argsort(descending=True)[: self.keep].tolist()
        return {name: number in chosen for number, names in enumerate(layers_of(info)) for name in names}

    def state(self) -> dict[str, Tensor]:
        return dict(self.looks)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.looks = dict(state)


def layers_of(info: RunInfo) -> list[list[str]]:
    """Parameter names by layer. By name: in which order the model uses its layers is not known before it has run."""
    layers: dict[str, list[str]] = {}
    for name in info.shapes:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    return list(layers.values())
