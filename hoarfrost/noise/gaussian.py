"""Gaussian noise for the releases, from a cryptographic generator."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor
from torch._utils import _unflatten_dense_tensors

from hoarfrost import validate
from hoarfrost.errors import InvalidValue
from hoarfrost.noise import chacha
from hoarfrost.noise.boxmuller import WORD, box_muller
from hoarfrost.noise.keystream import SPARE, Keystream

CPU_CHUNK = 1 << 21
"""Bytes of keystream per chunk on a CPU: small enough for the cache, large enough to occupy torch's threads. (One
Python thread per chunk was measured too, and is slower: encryption holds the interpreter lock.)"""

DEVICE_CHUNK = 1 << 22
"""Numbers per chunk on other devices: enough to fill the device, few enough to bound the scratch memory."""


class Noise:
    """Adds independent Gaussian noise to tensors, on the device where they are.

    The random bits are AES-256 in counter mode on a CPU and ChaCha20 on any other device, under a secret key
    from the operating system.

    Args:
        seed: makes the noise repeatable, for experiments only. The same seed, tensors and standard deviations
            give the same noise, whatever the number of threads.

    Guarantees:
        Every element of every tensor gets its own number; none is used twice over the life of this object.
        Without the key the bits cannot be distinguished from fair coin flips. Tails are cut at 6.66 standard
        deviations for float32, 9.42 for float64. Noise is rounded to floating-point numbers: the privacy
        proof is for real numbers, as everywhere in the field. The caller decides how much noise is needed.

    >>> noise = Noise()
    >>> gradient = torch.zeros(3, 4)
    >>> noise.add_([gradient], [0.5])
    >>> bool((gradient != 0).all())
    True
    """

    def __init__(self, seed: int | None = None, *, _chacha: bool = False) -> None:
        self._stream = Keystream("noise", seed)
        self._chacha = _chacha  # also on the CPU, so that it can be tested without a GPU
        # Not where the noise shall be repeatable: what a call gets would depend on the calls before.
        self._reserve = None if self.seeded or _chacha else _Reserve(self._draw)

    @property
    def seeded(self) -> bool:
        """Whether the noise can be repeated by anyone who knows the seed."""
        return self._stream.seeded

    @property
    def draws(self) -> int:
        """The number of calls so far."""
        return self._stream.draws

    def skip_to(self, draw: int) -> None:
        """Continue a seeded run: the next call is number `draw`. Going back is refused."""
        self._stream.skip_to(draw)

    def add_(self, tensors: Sequence[Tensor], stds: Sequence[float]) -> None:
        """Add N(0, std²) to every element, in place; a standard deviation of 0 leaves its tensor untouched.

        All tensors together are one draw: many small tensors cost little more than one large one of their
        total size.

        Args:
            tensors: floating, of any shape, layout and device, not overlapping. Half precision takes float32
                noise.
            stds: one standard deviation per tensor.
        """
        if self._reserve is not None and self._reserve.add_(tensors, stds):
            return
        afterwards: list[tuple[Tensor, Tensor]] = []
        self._draw(_by_kind(tensors, stds, afterwards))
        for tensor, noise in afterwards:
            tensor.detach().add_(noise)

    def _draw(self, kinds: Kinds) -> None:
        draw, numbers = self._stream.next_draw(), count()
        for (device, dtype), pieces in kinds.items():
            on_cpu = device.type == "cpu" and not self._chacha
            add = partial(_add_aes, self._stream) if on_cpu else partial(_add_chacha, self._stream.subkey("chacha"))
            for parts in _chunks(pieces, CPU_CHUNK // dtype.itemsize if on_cpu else DEVICE_CHUNK):
                add(draw, next(numbers), dtype, parts)

    def standard(
        self, shape: Sequence[int], device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """A new tensor of N(0, 1) numbers.

        >>> Noise(seed=1).standard((2, 3)).shape
        torch.Size([2, 3])
        """
        out = torch.zeros(tuple(shape), device=device, dtype=dtype)
        self.add_([out], [1.0])
        return out


class _Piece(NamedTuple):
    """A tensor laid out flat, or the part of it from `start` to `stop`."""

    flat: Tensor
    start: int
    stop: int
    std: float


Kinds = dict[tuple[torch.device, torch.dtype], list[_Piece]]


class _Reserve:
    """Numbers that are drawn ahead, for tensors so small that drawing takes longer than adding.

    Guarantees:
        None of them is handed out twice. They are used by the process that drew them: a forked child, which has the
        same ones, draws its own.
    """

    SIZE = 1 << 15
    MOST = SIZE // 16  # that one call may take
    KIND = (torch.device("cpu"), torch.float32)

    def __init__(self, draw: Callable[[Kinds], None]) -> None:
        self._draw = draw
        self._numbers, self._next, self._owner = torch.empty(0), 0, os.getpid()
        self._lock = threading.Lock()

    def add_(self, tensors: Sequence[Tensor], stds: Sequence[float]) -> bool:
        """Adds noise to a few small tensors of one kind; False if they are others, and nothing is done."""
        sizes = [t.numel() for t in tensors]
        wanted = sum(sizes)
        if not 0 < wanted <= self.MOST or len(stds) != len(sizes):
            return False
        spans = []
        for t, size, std in zip(tensors, sizes, stds, strict=True):
            plain = t.dtype is torch.float32 and t.is_cpu and t.is_contiguous() and not t.requires_grad
            if not (plain and size and 0 < std < math.inf):
                return False
            spans.append((start := t.data_ptr(), start + 4 * size))
        _refuse_overlap(spans)
        targets = list(tensors)
        noise = _unflatten_dense_tensors(self._take(wanted), targets)
        if stds.count(stds[0]) == len(stds):
            torch._foreach_add_(targets, noise, alpha=stds[0])
        else:
            torch._foreach_add_(targets, torch._foreach_mul(noise, stds))
        return True

    def _take(self, wanted: int) -> Tensor:
        with self._lock:
            if self._next + wanted > len(self._numbers) or self._owner != os.getpid():
                fresh = torch.zeros(self.SIZE)  # not over the old ones, which another thread may be adding
                self._draw({self.KIND: [_Piece(fresh, 0, self.SIZE, 1.0)]})
                self._numbers, self._next, self._owner = fresh, 0, os.getpid()
            start, self._next = self._next, self._next + wanted
            return self._numbers[start : self._next]


def _by_kind(tensors: Sequence[Tensor], stds: Sequence[float], afterwards: list[tuple[Tensor, Tensor]]) -> Kinds:
    """The tensors as flat pieces, by device and by the precision of their noise.

    A tensor with gaps gets its noise in a buffer of its own: the pair of them goes to `afterwards`.
    """
    if len(tensors) != len(stds):
        raise InvalidValue(f"give one standard deviation for each tensor: got {len(tensors)} tensors, {len(stds)} stds")
    kinds: Kinds = {}
    for tensor, std in zip(tensors, stds, strict=True):
        if not 0 <= std < math.inf:
            validate.not_negative(std=std)
            validate.finite(std=std)
        if not tensor.is_floating_point():
            raise InvalidValue(f"noise needs a floating-point tensor, got {tensor.dtype}")
        if std == 0 or tensor.numel() == 0:
            continue
        flat = _flat(tensor.detach() if tensor.requires_grad else tensor)
        dtype = torch.float64 if tensor.dtype == torch.float64 else torch.float32
        if flat is None:
            buffer = torch.zeros(tensor.shape, dtype=dtype, device=tensor.device)
            afterwards.append((tensor, buffer))
            flat = buffer.view(-1)
        kinds.setdefault((tensor.device, dtype), []).append(_Piece(flat, 0, flat.numel(), std))
    for pieces in kinds.values():
        starts = [(piece.flat.data_ptr(), piece) for piece in pieces]
        _refuse_overlap([(start, start + p.flat.numel() * p.flat.element_size()) for start, p in starts])
    return kinds


def _flat(tensor: Tensor) -> Tensor | None:
    """A flat view, whatever the order of the dimensions in memory; None for a tensor with gaps."""
    if tensor.is_contiguous():
        return tensor if tensor.dim() == 1 else tensor.view(-1)
    outermost_first = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    in_memory_order = tensor.permute(outermost_first)
    return in_memory_order.view(-1) if in_memory_order.is_contiguous() else None


def _refuse_overlap(spans: list[tuple[int, int]]) -> None:
    """Threads that add to the same memory at once would lose noise; ``spans`` are first and last address of each."""
    end = 0
    for start, stop in sorted(spans):
        if start < end:
            raise InvalidValue("two of the tensors share memory (tied weights?): pass each tensor once")
        end = stop


def _chunks(pieces: list[_Piece], size: int) -> Iterator[list[_Piece]]:
    """The pieces as one long stream, cut every `size` elements."""
    parts: list[_Piece] = []
    room = size
    for flat, start, stop, std in pieces:
        while start < stop:
            taken = min(room, stop - start)
            parts.append(_Piece(flat, start, start + taken, std))
            start += taken
            room -= taken
            if room == 0:
                yield parts
                parts, room = [], size
    if parts:
        yield parts


class _Scratch(threading.local):
    """Each thread's buffers for one chunk, kept from call to call: fresh pages cost as much as arithmetic."""

    def __init__(self) -> None:
        self.buffers: dict[torch.dtype, tuple[bytearray, Tensor, Tensor]] = {}

    def of(self, dtype: torch.dtype) -> tuple[bytearray, Tensor, Tensor]:
        """Raw bytes, the same bytes as words, scratch numbers."""
        if dtype not in self.buffers:
            numbers = CPU_CHUNK // dtype.itemsize
            raw = bytearray(CPU_CHUNK + SPARE)
            words = torch.frombuffer(raw, dtype=WORD[dtype], count=numbers)
            self.buffers[dtype] = (raw, words, torch.empty(numbers // 2, dtype=dtype))
        return self.buffers[dtype]


_scratch = _Scratch()


def _add_aes(stream: Keystream, draw: int, number: int, dtype: torch.dtype, parts: list[_Piece]) -> None:
    even = _even(parts)
    raw, words, scratch = _scratch.of(dtype)
    normals = words.view(dtype)  # the words are not needed once they are numbers
    stream.fill(raw, even * dtype.itemsize, draw, number)
    box_muller(words[:even], scratch[: even // 2], normals[:even])
    _add(parts, normals)


def _add_chacha(key: bytes, draw: int, number: int, dtype: torch.dtype, parts: list[_Piece]) -> None:
    even = _even(parts)
    words = chacha.words(key, draw, number, even * dtype.itemsize // 4, parts[0].flat.device).view(WORD[dtype])
    normals = torch.empty(even, dtype=dtype, device=words.device)
    box_muller(words, torch.empty_like(normals[: even // 2]), normals)
    _add(parts, normals)


def _even(parts: list[_Piece]) -> int:
    """How many numbers the parts need, rounded up: they are made in pairs."""
    total = sum(part.stop - part.start for part in parts)
    return total + total % 2


def _add(parts: list[_Piece], normals: Tensor) -> None:
    sizes = [part.stop - part.start for part in parts]
    for (flat, start, stop, std), noise in zip(parts, normals[: sum(sizes)].split(sizes), strict=True):
        target = flat if stop - start == flat.numel() else flat[start:stop]
        target.add_(noise, alpha=std)
