"""Only the optimizer changes what is saved: what could carry data out of a step without noise stays as it was.

These are buffers, parameters that the coming step does not move (those that the optimizer does not hold, and those
whose ``requires_grad`` is off, whoever switched it), and names that appear. Parameters that it does move may be changed
between steps (a clamp, an average: that is post-processing of what was released), but not while the model runs forward
or backward on a batch. What is set before the loader hands over its first batch has seen no data of it.

Buffers that a state_dict does not hold (``persistent=False``) may appear and change their size, as tables of positions
do that grow with the longest sequence: the probe sees to it that what they hold does not depend on data. Written over
at the same size, they are refused like others. Plain attributes are in no state_dict and are not compared; the probe
sees to it that they hand nothing on from one batch to the next, unless a module puts them into the state_dict itself
(`extra_state.py`).
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hoarfrost.errors import InvalidValue, NotPrivate
from hoarfrost.gradients.extra_state import ExtraState
from hoarfrost.gradients.reference import SLICE, Reference
from hoarfrost.kept import Entry, matches, plain, refusal, registered, version

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


_guards: weakref.WeakKeyDictionary[nn.Module, weakref.ref[StateGuard]] = weakref.WeakKeyDictionary()


def _loaded(module: nn.Module, _: Any) -> None:
    """After load_state_dict: what was loaded is what there is. A copy of the model has this hook and no guard."""
    guard = _guards[module]() if module in _guards else None
    if guard is not None:
        guard.loaded(module)


class StateGuard:
    """Sees to it that what the optimizer does not move stays as it was when the first batch was handed over.

    Args:
        trained: the names of the parameters that the optimizer holds.
        allowed: patterns of names that were declared to be public.

    Guarantees:
        A release is refused if the model has another name than before, if a tensor that the step does not move is
        another object, lies elsewhere or has another version than before and does not hold the same numbers, or if a
        trained parameter was written to while the model ran (`.data`, which has no version, is seen by the probe
        alone). Numbers that may have been written through `.data` are compared before every release, as many as fit
        into a hundredth of a step's work, in turn, and all of them at every save. Loading a state_dict, moving to
        another device and casting are no changes.
    """

    def __init__(self, model: nn.Module, trained: Iterable[str], allowed: Sequence[str] = ()) -> None:
        self.allowed = tuple(allowed)
        self.flowing: Collection[str] = ()  # moved by the optimizer although they are out of autograd
        self._model, self._names = model, set(trained)
        self._settled = False  # a batch was handed over: from here on nothing is set from outside
        self._stepped = False
        self._refusal: str | None = None
        self._references: list[Reference] = []
        self._extra: ExtraState | None = None
        self._keys: list[tuple[nn.Module, tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = []
        self._trained: list[Entry] = []
        self._movable: list[Tensor] = []  # the tensors of these, each once
        self._live: list[bool] = []  # which of them a step moves
        # What was trained when the model began to run, with its version.
        self._running: list[tuple[Entry, Tensor | None, int]] = []
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

    def settle(self) -> None:
        """A batch is about to be handed over: what was set from outside until now is taken as it is."""
        if not self._settled:
            self._settled = True
            self._extra = ExtraState(self._model, self.allowed)
            self.refer()

    def refer(self) -> None:
        """What there is now is what shall stay."""
        entries = list(registered(self._model))
        moved = {id(e.tensor) for e in entries if e.name in self._names}
        self._trained = [e for e in entries if id(e.tensor) in moved and not matches(e.name, self.allowed)]
        others = [e for e in entries if id(e.tensor) not in moved and not matches(e.name, self.allowed)]
        self._references = [Reference.of(e) for e in others]
        self._keys = [(m, *_keys_of(m)) for m in self._model.modules()]
        self._movable = list({id(e.tensor): e.tensor for e in self._trained if e.tensor is not None}.values())
        self._live = [True] * len(self._movable)
        self._work = max(LEAST, sum(t.numel() for t in self._movable if plain(t)) // 50)
        self._follow_autograd(later=False)

    def _follow_autograd(self, *, later: bool = True) -> None:
        """Watches what the coming step does not move, and no more what it moves again."""
        live = [t.requires_grad for t in self._movable]
        if live == self._live:
            return
        self._live = live
        entries = {id(e.tensor): e for e in reversed(self._trained)}
        still = {id(t): entries[id(t)] for t, moves in zip(self._movable, live, strict=True) if not moves}
        still = {key: e for key, e in still.items() if e.name not in self.flowing}
        movable = {id(t) for t in self._movable}
        known = {id(r.entry.tensor) for r in self._references}
        self._references = [r for r in self._references if (key := id(r.entry.tensor)) in still or key not in movable]
        self._references += [Reference.of(e, later=later) for key, e in still.items() if key not in known]

    def loaded(self, module: nn.Module) -> None:
        """What ``module`` itself holds has come from a state_dict."""
        if module is self._model:
            self._refusal, self._running = None, []
        if self._extra is not None:
            self._extra.follow(module)
        for index, reference in enumerate(self._references):
            entry = reference.entry
            if entry.module is module:
                self._references[index] = Reference.of(entry._replace(tensor=_now(entry)))

    def begin(self) -> None:
        """The model is about to run on a batch."""
        self._raise()
        self.settle()
        self._follow_autograd()
        self._running = [(entry, now := _now(entry), version(now)) for entry in self._trained]

    def ran(self) -> None:
        """The model ran forward or backward on a batch."""
        for entry, before, number in self._running:
            now = _now(entry)
            if now is not before or version(now) != number:
                self._refuse(entry, "changes")
        if not self._stepped:
            self._compare(everything=False)

    def check(self, *, everything: bool = False) -> None:
        """Refuses a release, or a save, if something changed by itself."""
        self._raise()
        if everything and not self._settled:
            return  # nobody has seen any data
        self.settle()
        self._follow_autograd()
        self._compare(everything)
        if not everything:
            self._stepped, self._running = True, []

    def _compare(self, everything: bool) -> None:
        for module, *before in self._keys:
            if [*_keys_of(module)] != before:
                self._refuse_new_names()
                break
        for index, reference in enumerate(self._references):
            now = _now(reference.entry)
            if reference.touched(now):
                grown = not reference.entry.saved and (now is None or _shape(now) != _shape(reference.entry.tensor))
                if not grown and not reference.holds(now):
                    self._refuse(reference.entry, "changes")
                self._references[index] = reference.follow(now)
            elif everything and not reference.holds(now):
                self._refuse(reference.entry, "changes")
        if self._extra is not None:
            self._extra.check()
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
        still = entry.name in self._names and entry.tensor is not None and not entry.tensor.requires_grad
        self._refusal = str(refusal(entry.kind, entry.name, what, " (whose requires_grad is off)" if still else ""))
        self._raise()

    def _raise(self) -> None:
        if self._refusal is not None:
            raise NotPrivate(self._refusal)


def _now(entry: Entry) -> Tensor | None:
    module, key, _, kind, _, _ = entry
    return (module._parameters if kind == "parameter" else module._buffers).get(key)


def _keys_of(module: nn.Module) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    return tuple(module._parameters), tuple(module._buffers), tuple(module._modules)


def _shape(t: Tensor | None) -> tuple[int, ...] | None:
    return None if t is None else tuple(t.shape)
