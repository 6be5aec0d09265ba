"""Where a freezer's word becomes deed: before a step, parameters leave autograd or come back, and masks change."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hoarfrost.errors import InvalidValue
from hoarfrost.freezing.base import Facts, Freezer
from hoarfrost.masks import Live, Mask, Masks, PartialMask, copy_mask, resolve_mask, same_masks

if TYPE_CHECKING:
    from hoarfrost.gradients import Engine

_NEVER = object()
BEGINS_BY_ITSELF = {"step_size"}  # ... but for Rprop's, which a gradient of zero leaves at its beginning


class Switch:
    """Keeps engine and optimizer to what the freezer says.

    Args:
        parameters: those that the optimizer moves, by name.
        facts: what the freezer may know; asked until the order of the layers is known, and when it may have changed.
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
        self.freezer, self.parameters, self.engine = freezer.fresh(), dict(parameters), engine
        self.masks: Masks = {}  # of those that are not wholly live
        self.shares = 0.0  # the sum of the live shares of all steps that were taken
        self._make_facts, self._step = facts, step
        self._facts: Facts | None = None
        self._key: Hashable = _NEVER
        self._live: Live = {}  # what the freezer said last
        self.resting: set[nn.Parameter] = set()  # taken out of autograd here, and not by anybody else
        self._start()
        engine.before_run = self.apply

    @property
    def share(self) -> float:
        """The share of all coordinates that is live. What somebody else took out of autograd is not."""
        live = 0
        for p in self.parameters.values():
            part = self.masks.get(p, True)
            live += p.requires_grad * (part.count if isinstance(part, PartialMask) else part * p.numel())
        return live / sum(p.numel() for p in self.parameters.values())

    def _start(self) -> None:
        self.freezer.start({name: p.data for name, p in self.parameters.items()})

    @property
    def facts(self) -> Facts:
        """What the freezer knows."""
        if self._facts is None or not self._facts.ordered:
            # Until the model was seen on a batch, its layers are taken in the order in which it lists them.
            self._facts = self._make_facts()
            if self._facts.ordered:
                self.freezer.check(self._facts)
            self._key = _NEVER
        return self._facts

    def restore(self, freezer: str | None, shares: float, state: Mapping[str, Tensor]) -> None:
        """Goes on where a checkpoint was taken.

        Args:
            freezer: what froze until then, in words. If it was another one, or none, this one begins here, with the
                weights as they are now.
            shares, state: as they were.
        """
        if freezer == repr(self.freezer):
            self.freezer.load_state(state)
        else:
            self._start()
        self.shares = shares
        self.forget_facts()

    def forget_facts(self) -> None:
        """They may have changed: when so much is spent, say, is another step now."""
        self._facts, self._key = None, _NEVER

    def apply(self) -> None:
        """Sees to it that what is live now is what shall be live in the coming step."""
        step, facts = self._step(), self.facts
        key = self.freezer.key(step, facts)
        if key == self._key:
            return
        live = self.freezer.live(step, facts)
        if not isinstance(live, Mapping):
            raise InvalidValue(
                f"live() of {self.freezer!r} returned {live!r}, not the masks of parameters by their names"
            )
        if self._key is not _NEVER and same_masks(live, self._live):
            self._key = key
            return
        unknown = set(live) - set(self.parameters)
        if unknown:
            raise InvalidValue(f"the freezer speaks of {', '.join(sorted(unknown))}, which the optimizer does not move")
        live = {name: copy_mask(mask) for name, mask in live.items()}
        parts = {p: self._part(name, live.get(name, False)) for name, p in self.parameters.items()}
        if not any(part and (p.requires_grad or p in self.resting) for p, part in parts.items()):
            raise InvalidValue(f"nothing is live in step {step}: it would spend budget and move nothing")
        self._live = live
        self.masks = {p: part for p, part in parts.items() if part is not True}
        if not self.freezer.clips_everything:
            self.engine.masks = self.masks
            self._take_out_of_autograd()
        self._key = key

    def _part(self, name: str, mask: Mask) -> bool | PartialMask:
        try:
            return resolve_mask(mask, self.parameters[name])
        except InvalidValue as error:
            raise InvalidValue(f"{self.freezer!r} for {name}: {error}") from error

    def _take_out_of_autograd(self) -> None:
        for p in self.parameters.values():
            rests = self.masks.get(p) is False
            if rests and p.requires_grad:
                p.requires_grad_(False)
                self.resting.add(p)
            elif not rests and p in self.resting:
                p.requires_grad_(True)
                self.resting.discard(p)

    def observe(self, gradients: Mapping[str, Tensor]) -> None:
        """Hands the freezer what the step under way releases (whose number is behind us by now)."""
        self.freezer.observe(self._step() - 1, gradients, self.facts)


class Held:
    """While it is entered, frozen coordinates of these parameters, and of their optimizer state, stand still.

    Whatever the optimizer does to them (momentum, weight decay) is undone, bit for bit.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, masks: Masks) -> None:
        self.optimizer = optimizer
        self.masks = {p: part.mask for p, part in masks.items() if isinstance(part, PartialMask)}
        self._before: dict[nn.Parameter, dict[Any, Tensor]] = {}

    def __enter__(self) -> None:
        for p in self.masks:
            self._before[p] = {name: t.clone() for name, t in self._tensors(p).items()}

    def __exit__(self, *_: object) -> None:
        for p, mask in self.masks.items():
            for name, t in self._tensors(p).items():
                # A state that did not exist before begins at zero where the coordinate rests, ...
                before = self._before[p].get(name)
                if before is None and name in BEGINS_BY_ITSELF:
                    continue
                torch.where(_in_shape_of(t, mask), t, torch.zeros_like(t) if before is None else before, out=t)

    def _tensors(self, p: nn.Parameter) -> dict[Any, Tensor]:
        """The parameter, and every state tensor that has entries for its coordinates, or for rows or columns."""
        state = {n: t for n, t in self.optimizer.state.get(p, {}).items() if isinstance(t, Tensor)}
        return {None: p.data} | {name: t for name, t in state.items() if _is_like(t, p)}


def _is_like(state: Tensor, p: Tensor) -> bool:
    """Whether it has an entry for every coordinate, or one for all that lie along a dimension."""
    return state.dim() == p.dim() and all(a in (1, b) for a, b in zip(state.shape, p.shape, strict=True))


def _in_shape_of(state: Tensor, mask: Tensor) -> Tensor:
    """The mask in the state's shape: an entry for several coordinates is live if any of them is."""
    for dim, (a, b) in enumerate(zip(state.shape, mask.shape, strict=True)):
        mask = mask if a == b else mask.any(dim, keepdim=True)
    return mask
