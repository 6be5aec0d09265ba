"""All that a model holds, kept to be compared and put back: what a run added, replaced or wrote is taken back."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hoarfrost.errors import NotPrivate

SMALL = 1 << 14  # elements up to which a tensor is compared every time, whatever its version says
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns means this name."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@contextmanager
def random_states_held(devices: Iterable[torch.device] = ()) -> Iterator[None]:
    """Whatever is drawn meanwhile, the random numbers of torch, numpy and Python that follow are the same."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=list(devices)):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def refusal(kind: str, name: str, what: str, note: str = "") -> NotPrivate:
    """The error for something that is not the optimizer's and became another."""
    return NotPrivate(
        f"the {kind} {name}{note} {what} after the first batch was handed over, and not by the optimizer: it would "
        "carry data out of the step without noise. Set it before that, from public data, and leave it as it is; or "
        "replace the module that keeps it by one without running statistics. If it does not depend on private data at "
        f'all (a count of steps), declare it: make_private(..., allow_state=["{name}"])'
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
    if not plain(a) or not plain(b):
        return a is b
    b = b.to(a.device)
    return torch.equal(a, b) or (a.is_floating_point() and torch.equal(bits(a), bits(b)))


def plain(t: Tensor) -> bool:
    """Whether its elements lie in memory, one by one."""
    return t.layout == torch.strided and not (t.is_quantized or t.is_meta or t.is_nested or is_lazy(t))


def bits(t: Tensor) -> Tensor:
    """Its elements as whole numbers, in a row."""
    t = t.detach().contiguous()
    t = torch.view_as_real(t) if t.is_complex() else t
    return t.reshape(-1).view(INTEGERS[t.element_size()])


def version(t: Tensor | None) -> int:
    """How often it was written to, as far as torch counts that."""
    return 0 if t is None or t.is_inference() else t._version


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
            if plain(value):
                self._tensors[id(value)] = (value, value.detach().clone(), value.requires_grad, version(value))
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
        return t.numel() > SMALL and version(t) == self._tensors[id(t)][3]

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
    if not container and not contents:  # most are: a module has a dozen dictionaries of hooks
        return
    if isinstance(container, dict):
        if list(container) != list(contents) or any(container[key] is not v for key, v in contents.items()):
            container.clear()
            container.update(contents)
    elif len(container) != len(contents) or any(a is not b for a, b in zip(container, contents, strict=False)):
        container.clear()
        container.update(contents) if isinstance(container, set) else container.extend(contents)
