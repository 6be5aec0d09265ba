"""Takes audited steps: the real `make_private` on the linear loss, with all inputs and outputs recorded."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hoarfrost.audit.canaries import (
    TENSORS,
    ByFreezer,
    Examples,
    Freezing,
    LinearLoss,
    total_sensitivity,
    worst_case_norms,
)
from hoarfrost.clipping import Clipper
from hoarfrost.private import make_private

OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]


@dataclass
class StepObservation:
    """What was observed of one step. Coordinates are those of all tensors, one after the other."""

    canaries: int  # that took part; as many others did not
    false_negatives: int  # canaries that took part and were not detected
    false_positives: int  # canaries that did not take part and were detected
    noise: Tensor  # [coordinates], (release - clipped sum) / standard deviation of the noise
    live: Tensor  # [coordinates], bool
    faults: list[str]  # violations of what must always hold


class StepHarness:
    """Takes audited steps, one at a time.

    A canary's gradient has one coordinate in every group of the clipper, in proportion to the groups' sensitivities: it
    uses the whole sensitivity. The release is read from the gradients that the inner optimizer receives. A reference
    copy of the model with a plain optimizer receives the same gradients, and must end up with the same weights.
    """

    def __init__(
        self,
        clip: Clipper,
        optimizer: OptimizerFactory,
        freeze: Freezing,
        *,
        noise_multiplier: float,
        delta: float,
        canaries: int,
        seed: int | None,
        device: torch.device | str,
    ):
        self._freeze, self._canaries, self._steps = freeze, canaries, 0
        names = [f"parts.{i}.weight" for i in range(TENSORS)]
        groups = list(clip.groups(names))
        widths = [math.ceil(2 * canaries / freeze.share / groups.count(group)) for group in groups]
        with torch.random.fork_rng(devices=[]):
            self.model = LinearLoss(widths).to(device)
        self.coordinates = [f"{name}[{i}]" for name, width in zip(names, widths, strict=True) for i in range(width)]
        self._group = torch.tensor(groups, device=device).repeat_interleave(torch.tensor(widths, device=device))

        norms, stated, total = worst_case_norms(clip), torch.tensor(clip.sensitivity), total_sensitivity(clip)
        self._norms = norms.tolist()
        self._clipped_norms = (clip.factors(norms[None])[0] * norms).tolist()
        self._direction = (stated / total).tolist()
        self._threshold = (stated.square() / total / 2).tolist()  # half of a group's share of a canary's score
        self._noise_std = noise_multiplier * total

        options = freeze.options(self.model)
        self._reference = copy.deepcopy(self.model)
        inner, self._reference_optimizer = optimizer(self.model.parameters()), optimizer(self._reference.parameters())
        self.optimizer_name = type(inner).__name__
        self._placement: _CanaryPlacement | None = None
        self._examples = Examples(torch.zeros(canaries, sum(widths), device=device))
        self._private = make_private(
            self.model, inner, self._examples.loader(), sample_rate=1.0, noise_multiplier=noise_multiplier,
            delta=delta, clip=clip, seed=seed, **options,
        )  # fmt: skip
        if isinstance(freeze, ByFreezer) and self._private.optimizer.switch is not None:
            freeze.freezer = self._private.optimizer.switch.freezer  # the run's own copy, which observes its releases
        # Before its step: some optimizers reuse the gradient's memory.
        self._received: list[list[Tensor | None]] = []
        inner.register_step_pre_hook(lambda *_: self._received.append([_copy(p.grad) for p in self.model.parameters()]))

    def take_step(self) -> StepObservation:
        """One training step on the canaries."""
        placement = self._place_canaries()
        before = [p.detach().clone() for p in self.model.parameters()]
        self._received.clear()
        for x in self._private.loader:
            self._private.optimizer.zero_grad()
            self._private.model(x).mean().backward()
            self._private.optimizer.step()
        self._steps += 1

        received: list[Tensor | None] = self._received[-1] if self._received else [None for _ in before]
        pairs = zip(received, before, strict=True)
        gradient = torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])
        release = gradient * self._private.expected_batch
        scores = sum(release[at] * self._direction[group] for group, at in placement.at.items())
        threshold = sum(self._threshold[group] for group in placement.at)
        assert isinstance(scores, Tensor)
        present, absent = scores.chunk(2)
        return StepObservation(
            canaries=len(present),
            false_negatives=int((present <= threshold).sum()),
            false_positives=int((absent > threshold).sum()),
            noise=torch.where(placement.live, release - placement.clipped_sum, 0.0) / self._noise_std,
            live=placement.live,
            faults=self._faults(placement.live, gradient, received, before),
        )

    def _faults(self, live: Tensor, gradient: Tensor, received: list[Tensor | None], before: list[Tensor]) -> list[str]:
        found = []
        if len(self._received) != 1:
            found.append(f"one step was asked for, and the optimizer took {len(self._received)}")
        if gradient[~live].count_nonzero():
            found.append("frozen coordinates get a gradient or noise")
        for g, p in zip(received, self._reference.parameters(), strict=True):
            p.grad = _copy(g)
        self._reference_optimizer.step()
        new = torch.cat([p.detach().flatten() for p in self.model.parameters()])
        old = torch.cat([p.flatten() for p in before])
        reference = torch.cat([p.detach().flatten() for p in self._reference.parameters()])
        if not torch.equal(new[~live], old[~live]):
            found.append("frozen weights change")
        if not torch.equal(new[live], reference[live]):
            found.append("the weights differ from those of the plain optimizer with the same gradients")
        with torch.no_grad():  # so that a difference is reported once
            for p, q in zip(self._reference.parameters(), self.model.parameters(), strict=True):
                p.copy_(q)
        self._reference_optimizer.load_state_dict(copy.deepcopy(self._private.optimizer.inner.state_dict()))
        return found

    def _place_canaries(self) -> _CanaryPlacement:
        """Puts canaries on coordinates that are live in the next step, and large values on frozen ones as well."""
        masks = self._freeze.live(self.model, self._steps)
        live = torch.cat([masks[name].flatten() for name, _ in self.model.named_parameters()])
        if self._placement is not None and torch.equal(self._placement.live, live):
            return self._placement
        order = torch.randperm(len(live), generator=torch.Generator().manual_seed(0)).to(live.device)
        live_order = order[live[order]]
        of_group = {group: live_order[self._group[live_order] == group] for group in self._group.unique().tolist()}
        of_group = {group: at for group, at in of_group.items() if len(at)}
        count = min([self._canaries, *(len(at) // 2 for at in of_group.values())])
        rows, clipped_sum = self._examples.rows.zero_(), torch.zeros_like(live, dtype=torch.float32)
        canary = torch.arange(count, device=live.device)
        for group, at in of_group.items():
            rows[canary, at[:count]] = self._norms[group]
            clipped_sum[at[:count]] = self._clipped_norms[group]
        frozen = (~live).nonzero().squeeze(1)
        if len(frozen):
            rows[canary, frozen[canary % len(frozen)]] = max(self._norms)
        self._placement = _CanaryPlacement(
            live, clipped_sum, {group: at[: 2 * count] for group, at in of_group.items()}
        )
        return self._placement


@dataclass
class _CanaryPlacement:
    """Where the canaries are: in each group, ``at`` lists the coordinates of those in the batch, then of the others."""

    live: Tensor
    clipped_sum: Tensor  # [coordinates]
    at: dict[int, Tensor]


def _copy(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient.detach().clone()
