"""Where a freezer's word becomes deed: before a step, parameters leave autograd or come back, and masks change."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hoarfrost.errors import InvalidValue
from hoarfrost.freezing.base import Facts, Freezer
from hoarfrost.freezing.live import Part, part_of

if TYPE_CHECKING:
    from hoarfrost.gradients import Engine

Masks = Mapping[nn.Parameter, bool | Part]  # of parameters that are not wholly live: False, or what is live of them
_NEVER = object()


class Switch:
    """Keeps engine and optimizer to what the freezer says.

    Args:
        parameters: those that the optimizer moves, by name.
        facts: what the freezer may know; asked once, when the model has been seen on a batch.
        step: the number of the step that comes next.
    """

    def __init__(
        self,
        freezer: Freezer,
        parameters: Mapping[str, nn.Parameter],
        engine: Engine,
        *,
        facts: Callable[[], Facts],
        step: Callable[[], int],
    ) -> None:
        self.freezer, self.parameters, self.engine = freezer, dict(parameters), engine
        self.masks: Masks = {}  # of those that are not wholly live
        self.share = 1.0  # of all coordinates that is live
        self.moved = 0.0  # the sum of these shares over the steps that were taken
        self._make_facts, self._step = facts, step
        self._facts: Facts | None = None
        self._ordered = False
        self._key: Hashable = _NEVER
        self._resting: set[nn.Parameter] = set()  # taken out of autograd here, and not by anybody else
        freezer.start({name: p.data for name, p in parameters.items()})
        engine.before_run = self.apply

    @property
    def facts(self) -> Facts:
        """What the freezer knows."""
        if self._facts is None or not self._ordered:
            # Until the model was seen on a batch, its layers are taken in the order in which it lists them.
            self._facts, self._ordered = self._make_facts(), bool(self.engine.order)
            self.freezer.check(self._facts)
            self._key = _NEVER
        return self._facts

    def state(self) -> dict[str, Tensor]:
        """What must be kept in a checkpoint."""
        kept = {f"freezer.{name}": value for name, value in self.freezer.state().items()}
        return kept | {"freezing.moved": torch.tensor(self.moved, dtype=torch.float64)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Takes back what `state` gave, from among other things; the freezer is asked anew."""
        kept = {name.removeprefix("freezer."): t for name, t in state.items() if name.startswith("freezer.")}
        self.freezer.load_state(kept)
        self.moved = float(state["freezing.moved"])
        self._key = _NEVER

    def apply(self) -> None:
        """Sees to it that what is live now is what shall be live in the coming step."""
        step, facts = self._step(), self.facts
        key = self.freezer.key(step, facts)
        if key == self._key:
            return
        live = self.freezer.live(step, facts)
        unknown = set(live) - set(self.parameters)
        if unknown:
            raise InvalidValue(f"the freezer speaks of {', '.join(sorted(unknown))}, which the optimizer does not move")
        parts = {p: part_of(live.get(name, False), p.shape, p.device) for name, p in self.parameters.items()}
        moving = sum(part.count if isinstance(part, Part) else part * p.numel() for p, part in parts.items())
        if moving == 0:
            raise InvalidValue(f"nothing is live in step {step}: it would spend budget and move nothing")
        self.share = moving / sum(p.numel() for p in self.parameters.values())
        self.masks = {p: part for p, part in parts.items() if part is not True}
        if not self.freezer.clips_everything:
            self.engine.masks = self.masks
            self._take_out_of_autograd()
        self._key = key

    def _take_out_of_autograd(self) -> None:
        for p in self.parameters.values():
            rests = self.masks.get(p) is False
            if rests and p.requires_grad:
                p.requires_grad_(False)
                self._resting.add(p)
            elif not rests and p in self._resting:
                p.requires_grad_(True)
                self._resting.discard(p)

    def observe(self, gradients: Mapping[str, Tensor]) -> None:
        """Hands the freezer what the step under way releases (whose number is behind us by now)."""
        self.freezer.observe(self._step() - 1, gradients, self.facts)


class Held:
    """While it is entered, frozen coordinates of these parameters, and of their optimizer state, stand still.

    Whatever the optimizer does to them (momentum, weight decay) is undone, bit for bit.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, masks: Masks) -> None:
        self.optimizer = optimizer
        self.masks = {p: part.mask for p, part in masks.items() if isinstance(part, Part)}
        self._before: dict[nn.Parameter, dict[Any, Tensor]] = {}

    def __enter__(self) -> None:
        for p in self.masks:
            self._before[p] = {name: t.clone() for name, t in self._tensors(p).items()}

    def __exit__(self, *_: object) -> None:
        for p, mask in self.masks.items():
            for name, t in self._tensors(p).items():
                # A state that did not exist before begins at zero where the coordinate rests.
                before = self._before[p].get(name)
                torch.where(mask, t, torch.zeros_like(t) if before is None else before, out=t)

    def _tensors(self, p: nn.Parameter) -> dict[Any, Tensor]:
        """The parameter, and every state tensor that has an entry for each of its coordinates."""
        state = {n: t for n, t in self.optimizer.state.get(p, {}).items() if isinstance(t, Tensor)}
        return {None: p.data} | {name: t for name, t in state.items() if t.shape == p.shape and p.dim() > 0}
