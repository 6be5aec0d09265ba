"""One audited training run: the real `make_private` on the linear loss, with everything observed."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hoarfrost.audit.canaries import TENSORS, ByFreezer, Examples, Freezing, LinearLoss, loudest, total_sensitivity
from hoarfrost.clipping import Clipper
from hoarfrost.private import make_private

OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]


@dataclass
class Seen:
    """What one step showed. Coordinates are those of all tensors, one after the other."""

    canaries: int  # that were there; for as many directions there was none
    missed: int
    imagined: int
    noise: Tensor  # [coordinates], the release minus what it should hold, over the noise's standard deviation
    live: Tensor  # [coordinates], bool
    faults: list[str]  # what must never happen, and did


class StepHarness:
    """Takes audited steps, one at a time.

    A canary's direction has one coordinate in every group of the clipper, in proportion to the groups' sensitivities:
    it uses all that one example may move. What it leaves behind is read from what the inner optimizer is handed, and a
    twin, the plain optimizer on a plain copy of the model, shows that the weights are made of nothing else.
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

        norms, stated, total = loudest(clip), torch.tensor(clip.sensitivity), total_sensitivity(clip)
        self._norms = norms.tolist()
        self._kept = (clip.factors(norms[None])[0] * norms).tolist()
        self._along = (stated / total).tolist()
        self._half = (stated.square() / total / 2).tolist()  # half of what each group adds along a canary's direction
        self._noise_std = noise_multiplier * total

        options = freeze.options(self.model)
        self._twin = copy.deepcopy(self.model)
        inner, self._twin_optimizer = optimizer(self.model.parameters()), optimizer(self._twin.parameters())
        self.optimizer_name = type(inner).__name__
        self._placed: _Placed | None = None
        self._examples = Examples(torch.zeros(canaries, sum(widths), device=device))
        self._private = make_private(
            self.model, inner, self._examples.loader(), sample_rate=1.0, noise_multiplier=noise_multiplier,
            delta=delta, clip=clip, seed=seed, **options,
        )  # fmt: skip
        if isinstance(freeze, ByFreezer) and self._private.optimizer.switch is not None:
            freeze.freezer = self._private.optimizer.switch.freezer  # the run's own, which sees what it releases
        # Before it steps: some optimizers use the gradient's memory for sums of their own.
        self._handed: list[list[Tensor | None]] = []
        inner.register_step_pre_hook(lambda *_: self._handed.append([_copy(p.grad) for p in self.model.parameters()]))

    def take_step(self) -> Seen:
        """One step of plain training on the canaries."""
        placed = self._place()
        before = [p.detach().clone() for p in self.model.parameters()]
        self._handed.clear()
        for x in self._private.loader:
            self._private.optimizer.zero_grad()
            self._private.model(x).mean().backward()
            self._private.optimizer.step()
        self._steps += 1

        handed: list[Tensor | None] = self._handed[-1] if self._handed else [None for _ in before]
        pairs = zip(handed, before, strict=True)
        gradient = torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])
        release = gradient * self._private.expected_batch
        heard = sum(release[at] * self._along[group] for group, at in placed.at.items())
        threshold = sum(self._half[group] for group in placed.at)
        assert isinstance(heard, Tensor)
        present, absent = heard.chunk(2)
        return Seen(
            canaries=len(present),
            missed=int((present <= threshold).sum()),
            imagined=int((absent > threshold).sum()),
            noise=torch.where(placed.live, release - placed.expected, 0.0) / self._noise_std,
            live=placed.live,
            faults=self._faults(placed.live, gradient, handed, before),
        )

    def _faults(self, live: Tensor, gradient: Tensor, handed: list[Tensor | None], before: list[Tensor]) -> list[str]:
        found = []
        if len(self._handed) != 1:
            found.append(f"the optimizer makes {len(self._handed)} steps where one was asked for")
        if gradient[~live].count_nonzero():
            found.append("frozen coordinates get a gradient, or noise")
        for g, p in zip(handed, self._twin.parameters(), strict=True):
            p.grad = _copy(g)
        self._twin_optimizer.step()
        now = torch.cat([p.detach().flatten() for p in self.model.parameters()])
        held = torch.cat([p.flatten() for p in before])
        twin = torch.cat([p.detach().flatten() for p in self._twin.parameters()])
        if not torch.equal(now[~live], held[~live]):
            found.append("frozen weights move")
        if not torch.equal(now[live], twin[live]):
            found.append("the weights are not what the plain optimizer makes of the gradient that it was handed")
        with torch.no_grad():  # so that frozen coordinates go on from where they are, and a difference is told once
            for p, q in zip(self._twin.parameters(), self.model.parameters(), strict=True):
                p.copy_(q)
        self._twin_optimizer.load_state_dict(copy.deepcopy(self._private.optimizer.inner.state_dict()))
        return found

    def _place(self) -> _Placed:
        """Puts canaries on coordinates that are live in the coming step, and weight on frozen ones as well."""
        masks = self._freeze.live(self.model, self._steps)
        live = torch.cat([masks[name].flatten() for name, _ in self.model.named_parameters()])
        if self._placed is not None and torch.equal(self._placed.live, live):
            return self._placed
        mixed = torch.randperm(len(live), generator=torch.Generator().manual_seed(0)).to(live.device)
        mixed_live = mixed[live[mixed]]
        of_group = {group: mixed_live[self._group[mixed_live] == group] for group in self._group.unique().tolist()}
        of_group = {group: at for group, at in of_group.items() if len(at)}
        count = min([self._canaries, *(len(at) // 2 for at in of_group.values())])
        rows, expected = self._examples.rows.zero_(), torch.zeros_like(live, dtype=torch.float32)
        canary = torch.arange(count, device=live.device)
        for group, at in of_group.items():
            rows[canary, at[:count]] = self._norms[group]
            expected[at[:count]] = self._kept[group]
        frozen = (~live).nonzero().squeeze(1)
        if len(frozen):
            rows[canary, frozen[canary % len(frozen)]] = max(self._norms)
        self._placed = _Placed(live, expected, {group: at[: 2 * count] for group, at in of_group.items()})
        return self._placed


@dataclass
class _Placed:
    """Where canaries are: ``at`` lists, for each group, the coordinates of those that are there, then of the others."""

    live: Tensor
    expected: Tensor  # [coordinates], the clipped sum
    at: dict[int, Tensor]


def _copy(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient.detach().clone()
