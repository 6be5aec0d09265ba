"""Takes audited steps: the real `make_private` on the linear loss, with all inputs and outputs recorded."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hoarfrost.audit.canaries import (
    LENGTH,
    ByFreezer,
    Examples,
    Freezing,
    LastRelease,
    LinearLoss,
    clipping_of,
    tensors_for,
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
    statistics: dict[str, float]  # the same of the clipping's statistics: (release - sum) / standard deviation
    faults: list[str]  # violations of what must always hold


class StepHarness:
    """Takes audited steps, one at a time.

    A canary's gradient has one coordinate in every block of the clipping, in proportion to the blocks' bounds: it uses
    the whole sensitivity of the gradients. The release is read from the gradients that the inner optimizer receives,
    and from what observers are told of statistics. A reference copy of the model with a plain optimizer receives the
    same gradients, and must end up with the same weights.
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
        tensors = tensors_for(clip)
        with torch.random.fork_rng(devices=[]):
            block_of = clipping_of(clip, LinearLoss([1] * tensors)).block_of
        names = [f"parts.{i}.weight" for i in range(tensors)]
        blocks = [block_of[name] for name in names]
        widths = [math.ceil(2 * canaries / freeze.share / blocks.count(block)) for block in blocks]
        with torch.random.fork_rng(devices=[]):
            self.model = LinearLoss(widths).to(device)
        self.coordinates = [f"{name}[{i}]" for name, width in zip(names, widths, strict=True) for i in range(width)]

        options = freeze.options(self.model)
        self._reference = copy.deepcopy(self.model)
        inner, self._reference_optimizer = optimizer(self.model.parameters()), optimizer(self._reference.parameters())
        self.optimizer_name = type(inner).__name__
        self._placement: _CanaryPlacement | None = None
        self._examples = Examples(torch.zeros(canaries, sum(widths), device=device))
        # What moves although it should not is for the audit to see: a run would refuse to go on.
        self._private = make_private(
            self.model, inner, self._examples.loader(), sample_rate=1.0, steps=LENGTH,
            noise_multiplier=noise_multiplier, delta=delta, clip=clip, seed=seed, allow_state=["*"], **options,
        )  # fmt: skip
        if isinstance(freeze, ByFreezer) and self._private.optimizer.controller is not None:
            freeze.freezer = self._private.optimizer.controller.freezer  # the run's own copy, which observes releases
        self._private.prepare()  # what a freezer wants to find out: here nothing, for nothing is in the data yet
        self._seen = LastRelease()
        self._private.observe(self._seen)
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
        noise_std = placement.noise_std[placement.block]
        release = gradient * self._private.expected_batch / noise_std
        # The most powerful test: blocks count by how far a canary moves them, in units of their noise.
        moved = (torch.tensor(placement.clipping.bounds) / placement.noise_std.cpu()).tolist()
        scores = sum(release[at] * moved[block] for block, at in placement.at.items())
        assert isinstance(scores, Tensor)
        present, absent = (scores - sum(moved[block] ** 2 / 2 for block in placement.at)).chunk(2)
        statistics: dict[str, float] = {}
        for name, of in placement.statistics.items():
            statistics[name] = (self._seen.last.statistics.get(name, 0.0) - of.total) / of.std
            # One number for the whole batch. It tells of one canary of each kind: samples are independent.
            shift = of.canary / of.std
            present[0] += (statistics[name] + shift) * shift - shift**2 / 2
            absent[0] += statistics[name] * shift - shift**2 / 2
        return StepObservation(
            canaries=len(present),
            false_negatives=int((present <= 0).sum()),
            false_positives=int((absent > 0).sum()),
            noise=torch.where(placement.live, release - placement.clipped_sum / noise_std, 0.0),
            live=placement.live,
            statistics=statistics,
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
        info = self._private.info()
        masks = self._freeze.live(self.model, self._steps, replace(info, ordered=True))  # it uses tensors as listed
        live = torch.cat([masks[name].flatten() for name, _ in self.model.named_parameters()])
        clipping = self._private.optimizer.engine.clipper.begin(self._steps, info)
        last = self._placement
        if last is not None and torch.equal(last.live, live) and clipping == last.clipping:
            return last
        norms = worst_case_norms(clipping)
        blocks = [torch.full_like(p, clipping.block_of[n], dtype=torch.long) for n, p in self.model.named_parameters()]
        block_of = torch.cat([each.flatten() for each in blocks])
        order = torch.randperm(len(live), generator=torch.Generator().manual_seed(0)).to(live.device)
        live_order = order[live[order]]
        of_block = {block: live_order[block_of[live_order] == block] for block in block_of.unique().tolist()}
        of_block = {block: at for block, at in of_block.items() if len(at)}
        count = min([self._canaries, *(len(at) // 2 for at in of_block.values())])
        rows, clipped_sum = self._examples.rows.zero_(), torch.zeros_like(live, dtype=torch.float32)
        canary = torch.arange(count, device=live.device)
        kept = clipping.factors(norms[None])[0] * norms
        for block, at in of_block.items():
            rows[canary, at[:count]] = float(norms[block])
            clipped_sum[at[:count]] = float(kept[block])
        frozen = (~live).nonzero().squeeze(1)
        if len(frozen):
            rows[canary, frozen[canary % len(frozen)]] = float(norms.max())
        block_stds, statistic_stds = clipping.stds(self._noise_multiplier, self._freeze.released(masks))
        lengths = torch.tensor([float(norm) if block in of_block else 0.0 for block, norm in enumerate(norms)])
        statistics = {}
        for statistic, std in zip(clipping.statistics, statistic_stds, strict=True):
            canary_adds, nothing_adds = statistic.of(torch.stack([lengths, lengths * 0])).tolist()
            total = count * canary_adds + (len(rows) - count) * nothing_adds  # rows that are no canaries are zero
            statistics[statistic.name] = _Statistic(std, canary_adds, total)
        self._placement = _CanaryPlacement(
            clipping=clipping,
            block=block_of,
            noise_std=torch.tensor(block_stds, device=live.device),
            live=live,
            clipped_sum=clipped_sum,
            at={block: at[: 2 * count] for block, at in of_block.items()},
            statistics=statistics,
        )
        return self._placement


@dataclass
class _Statistic:
    """A statistic of the clipping: the deviation of its noise, what a canary adds to it, and its sum."""

    std: float
    canary: float
    total: float


@dataclass
class _CanaryPlacement:
    """Where the canaries are: in each block, ``at`` lists the coordinates of those in the batch, then of the others."""

    clipping: Clipping
    block: Tensor  # [coordinates], number of the block
    noise_std: Tensor  # [blocks]
    live: Tensor
    clipped_sum: Tensor  # [coordinates]
    at: dict[int, Tensor]
    statistics: dict[str, _Statistic]


def _copy(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient.detach().clone()
