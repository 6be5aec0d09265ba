"""Only the optimizer changes what is saved: what else a model holds is compared, and put back after a probe.

**Around a probe** (`Kept`) everything is: parameters and buffers with their names, plain attributes, lists of them, and
generators. What a run added, replaced or wrote is taken back before anything is refused.

**In training** (`StateGuard`) it is what could carry data out of a step without noise: buffers, parameters that the
optimizer does not move, and names that appear. Parameters that it does move may be changed between steps (a clamp, an
average: that is post-processing of what was released), but not while the model runs forward or backward on a batch.

Buffers that a state_dict does not hold (``persistent=False``) may appear and change their size, as tables of positions
do that grow with the longest sequence: the probe sees to it that what they hold does not depend on data. Written over
at the same size, they are refused like others. Plain attributes are in no state_dict and are not compared; the probe
sees to it that they hand nothing on from one batch to the next.
"""

from __future__ import annotations

import random
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hoarfrost.errors import InvalidValue, NotPrivate

SMALL = 1 << 14  # elements up to which a tensor is copied and compared at once; larger ones by fingerprints of slices
SLICE = 1 << 16  # elements of such a slice
A_CALL = 1 << 12  # what a comparison costs however small the tensor is, in elements
LEAST = 1 << 15  # elements that are compared before every release, however small the model is
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def check_patterns(allow_state: object) -> tuple[str, ...]:
    """What `make_private` was told may change: names of parameters and buffers, with * and ?."""
    if isinstance(allow_state, str) or not isinstance(allow_state, Iterable):
        raise InvalidValue(f'allow_state is a list of names, such as ["steps", "*.codebook"], not {allow_state!r}')
    patterns = tuple(allow_state)
    if not all(isinstance(pattern, str) and pattern for pattern in patterns):
        raise InvalidValue(f'allow_state is a list of names, such as ["steps", "*.codebook"], not {list(patterns)!r}')
    return patterns


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns means this name."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def refusal(kind: str, name: str, what: str) -> NotPrivate:
    """The error for something that is not the optimizer's and became another."""
    return NotPrivate(
        f"the {kind} {name} {what} when the model runs, and not by the optimizer: it would carry data out of the step "
        "without noise. Compute it before make_private from public data and leave it as it is, or replace the module "
        "that keeps it by one without running statistics. If it does not depend on private data at all (a count of "
        f'steps), declare it: make_private(..., allow_state=["{name}"])'
    )


class Entry(NamedTuple):
    """A registered parameter or buffer, and where it is."""

    module: nn.Module
    key: str
    name: str
    kind: str
    saved: bool  # in a state_dict
    tensor: Tensor | None


def registered(model: nn.Module) -> Iterator[Entry]:
    """All parameters and buffers, under all their names."""
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        for key, p in module._parameters.items():
            yield Entry(module, key, prefix + key, "parameter", True, p)
        for key, b in module._buffers.items():
            saved = key not in module._non_persistent_buffers_set
            yield Entry(module, key, prefix + key, "buffer", saved, b)


def same(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether both hold the same numbers, bit by bit where they are no numbers."""
    if a is None or b is None:
        return a is b
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not _plain(a) or not _plain(b):
        return a is b
    b = b.to(a.device)
    return torch.equal(a, b) or (a.is_floating_point() and torch.equal(_bits(a), _bits(b)))


def _plain(t: Tensor) -> bool:
    """Whether its elements lie in memory, one by one."""
    return t.layout == torch.strided and not (t.is_quantized or t.is_meta or t.is_nested or is_lazy(t))


def _bits(t: Tensor) -> Tensor:
    t = t.detach().contiguous()
    t = torch.view_as_real(t) if t.is_complex() else t
    return t.reshape(-1).view(_INTEGERS[t.element_size()])


class Kept:
    """All that a model's modules hold at this moment, to be compared and put back.

    >>> model = nn.Linear(2, 2)
    >>> kept = Kept(model)
    >>> model.register_buffer("last", torch.ones(2))
    >>> model.calls, model.weight.data = 3, torch.zeros(2, 2)
    >>> [f"{entry.name} {what}" for entry, what in kept.differences()]
    ['weight changes', 'last appears']
    >>> kept.put_back()
    >>> kept.differences(), hasattr(model, "calls")
    ([], False)
    """

    def __init__(self, model: nn.Module) -> None:
        self.set_aside: set[int] = set()  # ids of tensors that somebody changes on purpose for a while
        self._model = model
        self._entries = {entry.name: entry for entry in registered(model)}
        self._attributes: list[tuple[nn.Module, dict[str, Any]]] = []
        self._containers: list[tuple[Any, Any]] = []
        self._tensors: dict[int, tuple[Tensor, Tensor, bool, int]] = {}  # with copy, requires_grad and version
        self._generators: list[tuple[Any, Any]] = []
        self._known: set[int] = set()
        self._keep(model)

    def _keep(self, value: Any) -> None:
        if isinstance(value, str | int | float | type(None)) or id(value) in self._known:
            return
        self._known.add(id(value))
        if isinstance(value, nn.Module):
            attributes = dict(value.__dict__)
            self._attributes.append((value, attributes))
            inside: Iterable[Any] = attributes.values()
        elif isinstance(value, Tensor):
            if _plain(value):
                self._tensors[id(value)] = (value, value.detach().clone(), value.requires_grad, _version(value))
            return
        elif isinstance(value, dict):
            self._containers.append((value, dict(value)))
            inside = value.values()
        elif isinstance(value, list | set | deque):
            self._containers.append((value, list(value)))
            inside = list(value)
        elif isinstance(value, tuple):
            inside = value
        else:
            if isinstance(value, torch.Generator | random.Random | np.random.Generator | np.random.RandomState):
                self._generators.append((value, _state_of(value)))
            return
        for item in inside:
            self._keep(item)

    def differences(self, *, values: bool = True) -> list[tuple[Entry, str]]:
        """What is registered otherwise than before: "changes", "appears", "disappears".

        Args:
            values: whether numbers of large tensors are compared, too, where object and version are the same (what is
                written through `.data` has a version of its own).
        """
        now = {entry.name: entry for entry in registered(self._model)}
        found = []
        for name, before in self._entries.items():
            after = now.get(name)
            if after is None:
                found.append((before, "disappears"))
            elif after.tensor is not before.tensor and before.kind == "parameter":
                found.append((before, "is replaced"))
            elif not self._is_as_before(before.tensor, after.tensor, values):
                found.append((before, "changes"))
        return found + [(entry, "appears") for name, entry in now.items() if name not in self._entries]

    def _is_as_before(self, before: Tensor | None, after: Tensor | None, values: bool) -> bool:
        if before is None or id(before) not in self._tensors or id(before) in self.set_aside:
            return before is after
        if before is after and not values and self._seems_untouched(before):
            return True
        return after is not None and same(after, self._tensors[id(before)][1])

    def _seems_untouched(self, t: Tensor) -> bool:
        return t.numel() > SMALL and _version(t) == self._tensors[id(t)][3]

    @torch.no_grad()
    def put_back(self, names: Sequence[str] | None = None, *, values: bool = True) -> None:
        """Makes everything what it was; or what is registered under ``names`` (patterns) alone.

        Args:
            values: as for `differences`.
        """
        if names is not None:
            for name, entry in self._entries.items():
                if matches(name, names) and entry.tensor is not None:
                    held = entry.module._parameters if entry.kind == "parameter" else entry.module._buffers
                    held[entry.key] = entry.tensor  # type: ignore[assignment]
                    self._rewrite(entry.tensor)
            return
        for module, attributes in self._attributes:
            held_now = module.__dict__
            if held_now.keys() != attributes.keys() or any(held_now[key] is not v for key, v in attributes.items()):
                held_now.clear()
                held_now.update(attributes)
        for container, contents in self._containers:
            _refill(container, contents)
        for t, _, requires_grad, _ in self._tensors.values():
            if values or not self._seems_untouched(t):
                self._rewrite(t)
            if t.is_leaf and t.requires_grad != requires_grad:
                t.requires_grad_(requires_grad)
        for generator, state in self._generators:
            _set_state(generator, state)

    def _rewrite(self, t: Tensor) -> None:
        if id(t) not in self._tensors or id(t) in self.set_aside:
            return
        if not same(t, copy := self._tensors[id(t)][1]):
            if t.shape == copy.shape and t.dtype == copy.dtype and t.device == copy.device:
                t.data.copy_(copy)  # no new version: a graph that is under way may hold it
            else:
                t.data = copy.clone()

    def unsaved(self) -> dict[str, Tensor]:
        """Copies of the buffers that no state_dict holds, as they are now."""
        return {
            e.name: e.tensor.detach().clone() for e in registered(self._model) if not e.saved and e.tensor is not None
        }

    def seed(self, seed: int) -> None:
        """Seeds the generators that the model itself keeps."""
        for generator, _ in self._generators:
            if isinstance(generator, torch.Generator):
                generator.manual_seed(seed)
            elif isinstance(generator, np.random.Generator):
                generator.bit_generator.state = type(generator.bit_generator)(seed).state
            else:
                generator.seed(seed)

    def drawn(self) -> list[Any]:
        """What shows whether the model's own generators were used."""
        return [repr(_state_of(generator)) for generator, _ in self._generators]


def _state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state().tolist()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(torch.tensor(state, dtype=torch.uint8))
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def _refill(container: Any, contents: Any) -> None:
    if isinstance(container, dict):
        if list(container) != list(contents) or any(container[key] is not v for key, v in contents.items()):
            container.clear()
            container.update(contents)
    elif len(container) != len(contents) or any(a is not b for a, b in zip(container, contents, strict=False)):
        container.clear()
        container.update(contents) if isinstance(container, set) else container.extend(contents)


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
        if t is None or not _plain(t):
            return cls(entry, _version(t), 0, None, [])
        if t.numel() <= SMALL:
            return cls(entry, _version(t), t.data_ptr(), t.detach().clone(), [])
        slices = range(-(-t.numel() // SLICE))
        return cls(entry, _version(t), t.data_ptr(), None, [_fingerprint(t, number) for number in slices])

    def touched(self, now: Tensor | None) -> bool:
        """Whether it may have been written to: another object, other memory, or another version."""
        t = self.entry.tensor
        if now is not t:
            return True
        return t is not None and (_version(t) != self.version or (_plain(t) and t.data_ptr() != self.pointer))

    def holds(self, now: Tensor | None, slices: Iterable[int] | None = None) -> bool:
        """Whether it holds the same numbers, in these slices or everywhere; a cast to another type is no change."""
        t = self.entry.tensor
        if now is None or t is None or not _plain(now):
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


def _version(t: Tensor | None) -> int:
    return 0 if t is None or t.is_inference() else t._version


def _fingerprint(t: Tensor, number: int) -> int:
    """Of the slice of this number: a sum of its bits with odd weights, which depends on every one of them."""
    bits = _bits(t.detach().reshape(-1)[number * SLICE : (number + 1) * SLICE])
    weights = torch.arange(1, len(bits) + 1, device=bits.device) * -7046029254386353131 | 1
    return int((bits.long() * weights).sum())


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
        parameter was written to while the model ran (`.data`, which has no version, is seen by the probe alone). Numbers
        behind `.data` are compared before every release, as many as fit into a hundredth of a step's work, in turn, and
        all of them at every save. Loading a state_dict, moving to another device and casting are no changes.
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
        for module in model.modules():
            _guards[module] = weakref.ref(self)
        self._hooks = [module.register_load_state_dict_post_hook(_loaded) for module in model.modules()]

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
        sizes = {id(e.tensor): e.tensor.numel() for e in self._trained if e.tensor is not None and _plain(e.tensor)}
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
            self._running.append((entry if now is entry.tensor else entry._replace(tensor=now), _version(now)))

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
        for entry, version in self._running:
            now = _now(entry)
            if now is not entry.tensor or _version(now) != version:
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
