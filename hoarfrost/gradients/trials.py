"""How a model is run when it is looked at: with an example replaced, other seeds, open gates, made-up gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hoarfrost.errors import HoarfrostError
from hoarfrost.gradients import probe
from hoarfrost.gradients.few import Few
from hoarfrost.gradients.probe import MERGED, PAIRED, Seen
from hoarfrost.kept import Kept

if TYPE_CHECKING:
    from hoarfrost.gradients.prober import Prober

LOUD = 50.0  # how much the replaced example's gradient stands out
FORWARD, BACKWARD = 1 / 3, 2 / 3  # of a plain pass


class Trials:
    """Runs of a model on a few examples, each from the state at the beginning."""

    def __init__(self, prober: Prober, kept: Kept, few: Few) -> None:
        self.prober, self.engine, self.kept, self.few = prober, prober.engine, kept, few
        self.gradients = True  # until the model turns out to have none
        self.quiet = False  # in evaluation mode, for once

    def run(
        self, few: Few, *, seed: int = 0, backward: bool = True, loud: int | None = None, scale: Any = None
    ) -> Seen:
        """One run from the state at the beginning, and the gradients that arrive in it."""
        self.kept.put_back(values=False)
        if self.quiet:
            self.engine.model.eval()
        seen = self.prober.run(self.kept, few, seed=seed)
        if backward and self.gradients:
            self._differentiate(seen, few, loud, scale)
        seen.let_go()
        return seen

    def _next_batch(self) -> Seen:
        """The same examples right after another batch: whatever that one left behind is still there."""
        self.kept.put_back(self.engine.state.allowed)
        seen = self.prober.run(self.kept, self.few)
        seen.let_go()
        return seen

    def _run_replaced(self, example: int, seed: int, before: Seen) -> Seen | None:
        """With ``example`` replaced; None if the model does not take it, or then draws other random numbers."""
        for way in self.few.ways(example):
            seen = self._try(lambda way=way: self.run(way, seed=seed, loud=example))  # type: ignore[misc]
            # Dropout over packed sequences whose lengths are others now is another one.
            if seen is not None and seen.drawn == before.drawn:
                return seen
        return None

    def _try(self, run: Callable[[], Seen]) -> Seen | None:
        """A model may insist on sensible inputs, or on a batch that its collate function has sorted."""
        try:
            return run()
        except HoarfrostError:
            raise
        except Exception:
            return None

    def _draws(self, seen: Seen, seed: int) -> bool:
        """Whether the run drew random numbers."""
        devices = probe.cuda_devices(self.engine.model)
        probe.seed_all(seed, devices)
        self.kept.seed(seed)
        return seen.drawn != [*probe.random_states(devices), *self.kept.drawn()]

    @contextmanager
    def _opened_gates(self, wanted: bool) -> Iterator[None]:
        closed = [p for p in self.engine.model.parameters() if wanted and p.requires_grad and not p.detach().any()]
        data = [p.data for p in closed]
        try:
            for number, p in enumerate(closed):  # the same in every run, and nobody's version changes
                wave = torch.arange(1.0, p.numel() + 1, device=p.device).add(number).mul(2.3).sin()
                p.data = (0.1 + 0.1 * wave).view(p.shape).to(p.dtype)
            self.kept.set_aside = {id(p) for p in closed}
            yield
        finally:
            self.kept.set_aside = set()
            for p, before in zip(closed, data, strict=True):
                p.data = before

    def _differentiate(self, seen: Seen, few: Few, loud: int | None, scale: Any) -> None:
        """Sends made-up gradients into the model's outputs, and keeps what arrives at its layers."""
        pairs = [
            (t, cotangent)
            for dim, t in zip(self.prober.outputs, seen.outputs, strict=False)
            if t.requires_grad
            and t.is_floating_point()
            and (cotangent := self._cotangent(t, dim, few, loud, scale)) is not None
        ]
        at = [w.tensor for w in seen.watched if w.tensor is not None]
        if not pairs or not at:
            return
        seen.recording = False
        try:
            found = torch.autograd.grad([t for t, _ in pairs], at, [c for _, c in pairs], allow_unused=True)
        except HoarfrostError:
            raise
        except Exception:
            if loud is not None:
                raise
            self.gradients = False  # it has no backward pass of this kind: its own will tell
            return
        self.prober.passes += BACKWARD
        for watched, gradient in zip(seen.watched, found, strict=True):
            watched.arrived(gradient)

    def _cotangent(self, t: Tensor, dim: int | None, few: Few, loud: int | None, scale: Any) -> Tensor | None:
        if dim is None:
            if t.numel() != 1:
                return None
            factor = few.count if self.engine.loss_reduction == "mean" else 1
            return torch.full_like(t, factor if scale is None else scale(few.count))
        if dim in (MERGED, PAIRED):
            return _wave(t.numel(), t).view(t.shape)
        if t.shape[dim] != few.rows:
            return None
        rows = torch.ones(few.rows, dtype=t.dtype, device=t.device)
        if loud is not None:
            rows[few.rows_of([loud])] = -LOUD
        size = t.numel() // max(1, few.rows)
        by_row = rows[:, None] * _wave(size, t)
        others = [s for d, s in enumerate(t.shape) if d != dim]
        return by_row.view(few.rows, *others).movedim(0, dim)


def _wave(size: int, like: Tensor) -> Tensor:
    return torch.arange(size, dtype=torch.float32, device=like.device).mul(1.7).add(0.3).sin().to(like.dtype)
