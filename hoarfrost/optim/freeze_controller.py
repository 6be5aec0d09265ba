"""Applies a freezer's answer: before a step, parameters leave autograd or come back, and masks change."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from torch import Tensor, nn

from hoarfrost.errors import InvalidValue
from hoarfrost.freezing.base import Freezer
from hoarfrost.gradients import Engine
from hoarfrost.info import RunInfo
from hoarfrost.masks import Live, Mask, Masks, PartialMask, copy_mask, resolve_mask, same_masks

_NEVER = object()


class FreezeController:
    """Keeps engine and optimizer to what the freezer says.

    Args:
        parameters: those that the optimizer moves, by name.
        info: what the freezer may know; asked until the order of the layers is known, and when it may have changed.
        step: the number of the step that comes next.
    """

    def __init__(
        self,
        freezer: Freezer,
        parameters: Mapping[str, nn.Parameter],
        engine: Engine,
        *,
        info: Callable[[], RunInfo],
        step: Callable[[], int],
    ) -> None:
        self.freezer, self.parameters, self.engine = freezer.fresh(), dict(parameters), engine
        self.freezer_repr = repr(self.freezer)  # before anything is found, which some show
        self.masks: Masks = {}  # of parameters that are not wholly live, by name
        self.frozen: set[str] = set()  # taken out of autograd here, and not by anybody else
        self.live_shares = 0.0  # the sum of the live shares of all steps that were taken
        self._info, self._step = info, step
        self._checked: RunInfo | None = None  # what the freezer was checked with
        self._key: Hashable = _NEVER
        self._live: Live = {}  # what the freezer said last
        self._start()
        engine.before_run = self.apply
        if self.freezer.velocity_flows:
            engine.state.flowing = self.frozen

    @property
    def live_share(self) -> float:
        """The share of all coordinates that is live. What somebody else took out of autograd is not."""
        live = 0
        for name, p in self.parameters.items():
            mask = self.masks.get(name, True)
            live += p.requires_grad * (mask.count if isinstance(mask, PartialMask) else mask * p.numel())
        return live / sum(p.numel() for p in self.parameters.values())

    def _start(self) -> None:
        self.freezer.start({name: p.data for name, p in self.parameters.items()})

    @property
    def info(self) -> RunInfo:
        """What the freezer knows."""
        info = self._info()
        if info is not self._checked:
            self._checked, self._key = info, _NEVER
            if info.ordered:
                self.freezer.check(info)
        return info

    def restore(self, freezer: str | None, live_shares: float, state: Mapping[str, Tensor]) -> bool:
        """Goes on where a checkpoint was taken; says whether what the freezer found then is back.

        Args:
            freezer: what froze until then, in words. If it was another one, or none, this one begins here, with the
                weights as they are now.
            live_shares, state: as they were.
        """
        same = freezer == self.freezer_repr
        if same:
            self.freezer.load_state(state)
        else:
            self._start()
        self.live_shares, self._key = live_shares, _NEVER
        return same

    def apply(self) -> None:
        """Sees to it that what is live now is what shall be live in the coming step."""
        step, info = self._step(), self.info
        key = self.freezer.key(step, info)
        if key == self._key:
            return
        live = self.freezer.live(step, info)
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
        masks = {name: self._resolve(name, live.get(name, False)) for name in self.parameters}
        if not any(mask and self._may_train(name) for name, mask in masks.items()):
            raise InvalidValue(f"nothing is live in step {step}: it would spend budget and move nothing")
        self._live = live
        self.masks = {name: mask for name, mask in masks.items() if mask is not True}
        if not self.freezer.clips_everything:
            self.engine.masks = self.masks
            self._take_out_of_autograd()
        self._key = key

    def thaw(self) -> None:
        """Brings back into autograd what was taken out of it here; `apply` takes it out again."""
        for name in self.frozen:
            self.parameters[name].requires_grad_(True)
        self.frozen.clear()
        self._key = _NEVER

    def _resolve(self, name: str, mask: Mask) -> bool | PartialMask:
        try:
            return resolve_mask(mask, self.parameters[name])
        except InvalidValue as error:
            raise InvalidValue(f"{self.freezer!r} for {name}: {error}") from error

    def _may_train(self, name: str) -> bool:
        return self.parameters[name].requires_grad or name in self.frozen

    def _take_out_of_autograd(self) -> None:
        for name, p in self.parameters.items():
            frozen = self.masks.get(name) is False
            if frozen and p.requires_grad:
                p.requires_grad_(False)
                self.frozen.add(name)
            elif not frozen and name in self.frozen:
                p.requires_grad_(True)
                self.frozen.discard(name)

    def observe(self, step: int, gradients: Mapping[str, Tensor]) -> None:
        """Hands the freezer what a step releases."""
        self.freezer.observe(step, gradients, self.info)
