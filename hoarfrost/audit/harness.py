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
    LENGTH,
    TENSORS,
    ByFreezer,
    Examples,
    Freezing,
    LinearLoss,
    clipping_of,
    worst_case_norms,
)
from hoarfrost.clipping import Clipper, Clipping
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

    A canary's gradient has one coordinate in every block of the clipping, in proportion to the blocks' bounds: it uses
    the whole sensitivity. The release is read from the gradients that the inner optimizer receives. A reference
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
        self._noise_multiplier = noise_multiplier
        with torch.random.fork_rng(devices=[]):
            block_of = clipping_of(clip, LinearLoss([1] * TENSORS)).block_of
        names = [f"parts.{i}.weight" for i in range(TENSORS)]
        blocks = [block_of[name] for name in names]
        widths = [math.ceil(2 * canaries / freeze.share / blocks.count(block)) for block in blocks]
        with torch.random.fork_rng(devices=[]):
            self.model = LinearLoss(widths).to(device)
        self.coordinates = [f"{name}[{i}]" for name, width in zip(names, widths, strict=True) for i in range(width)]
        self._block = torch.tensor(blocks, device=device).repeat_interleave(torch.tensor(widths, device=device))

        options = freeze.options(self.model)
        self._reference = copy.deepcopy(self.model)
        inner, self._reference_optimizer = optimizer(self.model.parameters()), optimizer(self._reference.parameters())
        self.optimizer_name = type(inner).__name__
        self._placement: _CanaryPlacement | None = None
        self._examples = Examples(torch.zeros(canaries, sum(widths), device=device))
        self._private = make_private(
            self.model, inner, self._examples.loader(), sample_rate=1.0, steps=LENGTH,
            noise_multiplier=noise_multiplier, delta=delta, clip=clip, seed=seed, **options,
        )  # fmt: skip
        if isinstance(freeze, ByFreezer) and self._private.optimizer.controller is not None:
            freeze.freezer = self._private.optimizer.controller.freezer  # the run's own copy, which observes releases
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
        noise_std = placement.noise_std[self._block]
        release = gradient * self._private.expected_batch / noise_std
        # The most powerful test: blocks count by how far a canary moves them, in units of their noise.
        moved = (torch.tensor(placement.clipping.bounds) / placement.noise_std.cpu()).tolist()
        scores = sum(release[at] * moved[block] for block, at in placement.at.items())
        threshold = sum(moved[block] ** 2 / 2 for block in placement.at)
        assert isinstance(scores, Tensor)
        present, absent = scores.chunk(2)
        return StepObservation(
            canaries=len(present),
            false_negatives=int((present <= threshold).sum()),
            false_positives=int((absent > threshold).sum()),
            noise=torch.where(placement.live, release - placement.clipped_sum / noise_std, 0.0),
            live=placement.live,
            faults=self._faults(placement, gradient, received, before),
        )

    def _faults(
        self,
        placement: _CanaryPlacement,
        gradient: Tensor,
        received: list[Tensor | None],
        before: list[Tensor],
    ) -> list[str]:
        found, live, clipping = [], placement.live, placement.clipping
        if len(self._received) != 1:
            found.append(f"one step was asked for, and the optimizer took {len(self._received)}")
        if gradient[~live].count_nonzero():
            found.append("frozen coordinates get a gradient or noise")
        for g, p in zip(received, self._reference.parameters(), strict=True):
            p.grad = _copy(g)
        for group in self._reference_optimizer.param_groups:
            group["lr"] *= clipping.learning_rate
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
        clipping = self._private.optimizer.engine.clipper.begin(self._steps, self._private.info())
        norms = worst_case_norms(clipping)
        last = self._placement
        same = last is not None and torch.equal(last.live, live) and torch.equal(last.norms, norms)
        if last is not None and same and clipping.blocks == last.clipping.blocks:
            return last
        order = torch.randperm(len(live), generator=torch.Generator().manual_seed(0)).to(live.device)
        live_order = order[live[order]]
        of_block = {block: live_order[self._block[live_order] == block] for block in self._block.unique().tolist()}
        of_block = {block: at for block, at in of_block.items() if len(at)}
        count = min([self._canaries, *(len(at) // 2 for at in of_block.values())])
        released = [name for name, mask in masks.items() if mask.any()]
        rows, clipped_sum = self._examples.rows.zero_(), torch.zeros_like(live, dtype=torch.float32)
        canary = torch.arange(count, device=live.device)
        kept = clipping.factors(norms[None])[0] * norms
        for block, at in of_block.items():
            rows[canary, at[:count]] = float(norms[block])
            clipped_sum[at[:count]] = float(kept[block])
        frozen = (~live).nonzero().squeeze(1)
        if len(frozen):
            rows[canary, frozen[canary % len(frozen)]] = float(norms.max())
        self._placement = _CanaryPlacement(
            clipping=clipping,
            norms=norms,
            noise_std=torch.tensor(clipping.stds(self._noise_multiplier, released)[0], device=live.device),
            live=live,
            clipped_sum=clipped_sum,
            at={block: at[: 2 * count] for block, at in of_block.items()},
        )
        return self._placement


@dataclass
class _CanaryPlacement:
    """Where the canaries are: in each block, ``at`` lists the coordinates of those in the batch, then of the others."""

    clipping: Clipping
    norms: Tensor  # [blocks], of a canary's gradient
    noise_std: Tensor  # [blocks]
    live: Tensor
    clipped_sum: Tensor  # [coordinates]
    at: dict[int, Tensor]


def _copy(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient.detach().clone()
