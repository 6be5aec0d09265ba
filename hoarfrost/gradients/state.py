"""Only the optimizer changes what is saved: what could carry data out of a step without noise stays as it was.

These are buffers, parameters that the optimizer does not move, and names that appear. Parameters that it does move may
be changed between steps (a clamp, an average: that is post-processing of what was released), but not while the model
runs forward or backward on a batch.

Buffers that a state_dict does not hold (``persistent=False``) may appear and change their size, as tables of positions
do that grow with the longest sequence: the probe sees to it that what they hold does not depend on data. Written over
at the same size, they are refused like others. Plain attributes are in no state_dict and are not compared; the probe
sees to it that they hand nothing on from one batch to the next.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hoarfrost.errors import InvalidValue, NotPrivate
from hoarfrost.gradients.kept import SMALL, Entry, bits, matches, plain, refusal, registered, same, version

SLICE = 1 << 16  # elements of a slice of a tensor that is too large to be copied, and compared by fingerprints
A_CALL = 1 << 12  # what a comparison costs however small the tensor is, in elements
LEAST = 1 << 15  # elements that are compared before every release, however small the model is


def check_patterns(allow_state: object) -> tuple[str, ...]:
    """What `make_private` was told may change: names of parameters and buffers, with * and ?."""
    if isinstance(allow_state, str) or not isinstance(allow_state, Iterable):
        raise InvalidValue(f'allow_state is a list of names, such as ["steps", "*.codebook"], not {allow_state!r}')
    patterns = tuple(allow_state)
    if not all(isinstance(pattern, str) and pattern for pattern in patterns):
        raise InvalidValue(f'allow_state is a list of names, such as ["steps", "*.codebook"], not {list(patterns)!r}')
    return patterns


@dataclass
class _Reference:
    """What an entry was: the object, where its numbers lie, and the numbers, or fingerprints of them."""

    entry: Entry
    version: int
    pointer: int
    copy: Tensor | None
    fingerprints: list[int]

    @classmethod
    def of(cls, entry: Entry) -> _Reference:
        t = entry.tensor
        if t is None or not plain(t):
            return cls(entry, version(t), 0, None, [])
        if t.numel() <= SMALL:
            return cls(entry, version(t), t.data_ptr(), t.detach().clone(), [])
        slices = range(-(-t.numel() // SLICE))
        return cls(entry, version(t), t.data_ptr(), None, [_fingerprint(t, number) for number in slices])

    def touched(self, now: Tensor | None) -> bool:
        """Whether it may have been written to: another object, other memory, or another version."""
        t = self.entry.tensor
        if now is not t:
            return True
        return t is not None and (version(t) != self.version or (plain(t) and t.data_ptr() != self.pointer))

    def holds(self, now: Tensor | None, slices: Iterable[int] | None = None) -> bool:
        """Whether it holds the same numbers, in these slices or everywhere; a cast to another type is no change."""
        t = self.entry.tensor
        if now is None or t is None or not plain(now):
            return now is t
        if self.copy is not None:
            return same(now, self.copy if now.dtype == self.copy.dtype else self.copy.to(now.dtype))
        if not self.fingerprints or now.shape != t.shape:
            return False
        if now.dtype != t.dtype:
            return True
        every = range(len(self.fingerprints)) if slices is None else slices
        return all(_fingerprint(now, number) == self.fingerprints[number] for number in every)

    @property
    def pieces(self) -> int:
        """In how many comparisons it is compared."""
        return max(1, len(self.fingerprints))


def _fingerprint(t: Tensor, number: int) -> int:
    """Of the slice of this number: a sum of its bits with odd weights, which depends on every one of them."""
    numbers = bits(t.detach().reshape(-1)[number * SLICE : (number + 1) * SLICE]).long()
    weights = torch.arange(1, len(numbers) + 1, device=t.device) * -7046029254386353131 | 1
    return int((numbers * weights).sum())


_guards: weakref.WeakKeyDictionary[nn.Module, weakref.ref[StateGuard]] = weakref.WeakKeyDictionary()


def _loaded(module: nn.Module, _: Any) -> None:
    """After load_state_dict: what was loaded is what there is. A copy of the model has this hook and no guard."""
    guard = _guards[module]() if module in _guards else None
    if guard is not None:
        guard.loaded(module)


class StateGuard:
    """Sees to it that what the optimizer does not move stays as it was at the first step.

    Args:
        trained: the names of the parameters that the optimizer moves.
        allowed: patterns of names that were declared to be public.

    Guarantees:
        A release is refused if the model has another name than before, if a tensor that is not trained is another
        object, lies elsewhere or has another version than before and does not hold the same numbers, or if a trained
        parameter was written to while the model ran (`.data`, which has no version, is seen by the probe alone).
        Numbers that may have been written through `.data` are compared before every release, as many as fit into a
        hundredth of a step's work, in turn, and all of them at every save. Loading a state_dict, moving to another
        device and casting are no changes.
    """

    def __init__(self, model: nn.Module, trained: Iterable[str], allowed: Sequence[str] = ()) -> None:
        self.allowed = tuple(allowed)
        self._model, self._names = model, set(trained)
        self._settled = False  # a step was taken: from here on nothing is set from outside
        self._refusal: str | None = None
        self._references: list[_Reference] = []
        self._keys: list[tuple[nn.Module, tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = []
        self._trained: list[Entry] = []
        self._running: list[tuple[Entry, int]] = []  # what was trained when the model began to run
        self._turn = 0
        self._work = LEAST
        self._hooks: list[RemovableHandle] = []

    def attach(self) -> None:
        """Watches what is loaded."""
        for module in self._model.modules():
            _guards[module] = weakref.ref(self)
        self._hooks = [module.register_load_state_dict_post_hook(_loaded) for module in self._model.modules()]

    def detach(self) -> None:
        """Watches no more."""
        for hook in self._hooks:
            hook.remove()

    def refer(self) -> None:
        """What there is now is what shall stay."""
        entries = list(registered(self._model))
        moved = {id(e.tensor) for e in entries if e.name in self._names}
        self._trained = [e for e in entries if id(e.tensor) in moved and not matches(e.name, self.allowed)]
        others = [e for e in entries if id(e.tensor) not in moved and not matches(e.name, self.allowed)]
        self._references = [_Reference.of(e) for e in others]
        self._keys = [(m, *_keys_of(m)) for m in self._model.modules()]
        sizes = {id(e.tensor): e.tensor.numel() for e in self._trained if e.tensor is not None and plain(e.tensor)}
        self._work = max(LEAST, sum(sizes.values()) // 50)

    def loaded(self, module: nn.Module) -> None:
        """What ``module`` itself holds has come from a state_dict."""
        if module is self._model:
            self._refusal, self._running = None, []
        for index, reference in enumerate(self._references):
            entry = reference.entry
            if entry.module is module:
                self._references[index] = _Reference.of(entry._replace(tensor=_now(entry)))

    def begin(self) -> None:
        """The model is about to run on a batch. Before the first step, what was set from outside is taken as it is."""
        self._raise()
        if not self._settled:
            self._accept()
        self._running = []
        for entry in self._trained:
            now = _now(entry)
            self._running.append((entry if now is entry.tensor else entry._replace(tensor=now), version(now)))

    def _accept(self) -> None:
        if not self._keys or any(_keys_of(module) != tuple(before) for module, *before in self._keys):
            self.refer()
            return
        for index, reference in enumerate(self._references):
            now = _now(reference.entry)
            if reference.touched(now) or (reference.copy is not None and not reference.holds(now)):
                self._references[index] = _Reference.of(reference.entry._replace(tensor=now))

    def ran(self) -> None:
        """The model ran forward or backward on a batch."""
        for entry, before in self._running:
            now = _now(entry)
            if now is not entry.tensor or version(now) != before:
                self._refuse(entry, "changes")
        if not self._settled:
            self._compare(everything=False)

    def check(self, *, everything: bool = False) -> None:
        """Refuses a release, or a save, if something changed by itself."""
        self._raise()
        if everything and not self._settled:
            return  # nothing was released, and every run was looked at
        if not self._references and not self._keys:
            self.refer()
        self._compare(everything)
        if not everything:
            self._settled, self._running = True, []

    def _compare(self, everything: bool) -> None:
        for module, *before in self._keys:
            if list(_keys_of(module)) != before:
                self._refuse_new_names()
                break
        for index, reference in enumerate(self._references):
            now = _now(reference.entry)
            if reference.touched(now):
                grown = not reference.entry.saved and (now is None or _shape(now) != _shape(reference.entry.tensor))
                if not grown and not reference.holds(now):
                    self._refuse(reference.entry, "changes")
                self._references[index] = _Reference.of(reference.entry._replace(tensor=now))
            elif everything and not reference.holds(now):
                self._refuse(reference.entry, "changes")
        if not everything:
            self._compare_some()

    def _compare_some(self) -> None:
        """As many numbers as there is time for, from where the last comparison ended."""
        pieces = sum(reference.pieces for reference in self._references)
        left, start, number = self._work, self._turn % max(1, pieces), 0
        compared = 0
        # The place in the list of all pieces; a small model's are all compared every time.
        for reference in (*self._references, *self._references):
            for piece in range(reference.pieces):
                if number >= start:
                    if left <= 0 or compared == pieces:
                        self._turn = number
                        return
                    if not reference.holds(_now(reference.entry), [piece]):
                        self._refuse(reference.entry, "changes")
                    left -= A_CALL + (reference.copy.numel() if reference.copy is not None else SLICE)
                    compared += 1
                number += 1
        self._turn = number

    def _refuse_new_names(self) -> None:
        known = {e.name for e in self._trained} | {reference.entry.name for reference in self._references}
        for entry in registered(self._model):
            if entry.name not in known and entry.saved and not matches(entry.name, self.allowed):
                self._refuse(entry, "appears")
        gone = known - {entry.name for entry in registered(self._model)}
        for entry in [*self._trained, *(reference.entry for reference in self._references)]:
            if entry.name in gone and entry.saved:
                self._refuse(entry, "disappears")
        self.refer()  # caches, whose names may come and go

    def _refuse(self, entry: Entry, what: str) -> None:
        self._refusal = str(refusal(entry.kind, entry.name, what))
        self._raise()

    def _raise(self) -> None:
        if self._refusal is not None:
            raise NotPrivate(self._refusal)


def _now(entry: Entry) -> Tensor | None:
    held: Callable[..., Tensor | None] = (
        entry.module._parameters.get if entry.kind == "parameter" else entry.module._buffers.get
    )
    return held(entry.key)


def _keys_of(module: nn.Module) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    return tuple(module._parameters), tuple(module._buffers), tuple(module._modules)


def _shape(t: Tensor | None) -> tuple[int, ...] | None:
    return None if t is None else tuple(t.shape)
