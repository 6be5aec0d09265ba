"""What a model is handed, row by row: how long each row is without its padding, and a key that knows it again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from hoarfrost.gradients.arguments import ArgumentDims, map_examples
from hoarfrost.nested import map_tensors, parts

MASK = "attention_mask"  # 1 where a text is, and 0 where it is padded: the name that all of transformers uses


@dataclass(frozen=True)
class Inputs:
    """The arguments of one run of a model.

    Args:
        arguments: positional and by name.
        dims: which dimension of each of their tensors counts rows.
        rows: how many there are.
        width: how many places a row has with its padding; None where no mask tells, or none may be cut off.
        lengths: how many of them are each row's own: the first ones.
    """

    arguments: Any
    dims: ArgumentDims
    rows: int
    width: int | None = None
    lengths: tuple[int, ...] = ()

    @classmethod
    def of(cls, forward: Callable[..., Any], arguments: Any, dims: ArgumentDims, rows: int, *, cut: bool) -> Inputs:
        """Those of a call of ``forward``; ``cut`` if padding may be cut off."""
        mask = _mask(forward, arguments) if cut else None
        lengths = None if mask is None or mask.shape[:1] != (rows,) else _own_lengths(mask)
        if mask is None or lengths is None:
            return cls(arguments, dims, rows)
        return cls(arguments, dims, rows, int(mask.shape[1]), tuple(lengths))

    def pick(self, rows: Sequence[int]) -> Inputs:
        """Some of the rows, cut to the longest of them."""
        lengths = tuple(self.lengths[row] for row in rows) if self.width is not None else ()
        width = None if self.width is None else max(lengths)

        def picked(t: Tensor, dim: int | None) -> Tensor:
            if dim is None:
                return t
            t = t.index_select(dim, torch.tensor(rows, device=t.device))
            return t.narrow(1, 0, width) if width is not None and self._has_places(t, dim) else t

        return Inputs(map_examples(picked, self.arguments, self.dims), self.dims, len(rows), width, lengths)

    @property
    def padded(self) -> bool:
        """Whether a row has places that are not its own."""
        return self.width is not None and min(self.lengths) < self.width

    def signature(self) -> tuple[Any, ...]:
        """The shapes of everything, without the number of rows."""
        return tuple(
            tuple(size for d, size in enumerate(t.shape) if d != dim)
            for t, dim in zip(_tensors(self.arguments), self.dims, strict=True)
        )

    def keys(self) -> list[bytes]:
        """A digest of each row: of all that the model is handed of it, and of what all rows share.

        Guarantees:
            Rows with the same key are the same, but for padding (blake2b, 16 bytes: nobody can make two).
        """
        tensors = list(zip(_tensors(self.arguments), self.dims, strict=True))
        shared = blake2b(repr(map_tensors(lambda t: (str(t.dtype), t.dim()), self.arguments)).encode())
        for t, dim in tensors:
            if dim is None:
                shared.update(_bytes(t))
        own = [shared.copy() for _ in range(self.rows)]
        for t, dim in tensors:
            if dim is None:
                continue
            places = self.width is not None and self._has_places(t, dim)
            for row, (found, entries) in enumerate(zip(own, t.detach().movedim(dim, 0).cpu(), strict=True)):
                entries = entries[: self.lengths[row]] if places else entries
                found.update(repr(tuple(entries.shape)).encode())
                found.update(_bytes(entries))
        return [found.digest()[:16] for found in own]

    def _has_places(self, t: Tensor, dim: int) -> bool:
        """Whether its second dimension counts the places of a row (and not, by chance, classes)."""
        return dim == 0 and t.dim() > 1 + t.is_floating_point() and t.shape[1] == self.width


def _tensors(arguments: Any) -> list[Tensor]:
    found: list[Tensor] = []
    map_tensors(found.append, arguments)
    return found


def _bytes(t: Tensor) -> bytes:
    return t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _mask(forward: Callable[..., Any], arguments: Any) -> Tensor | None:
    args, kwargs = arguments
    try:
        named = dict(inspect.signature(forward).bind_partial(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        named = dict(kwargs)
    found = [t for t in _called(MASK, named) if isinstance(t, Tensor) and t.dim() == 2]
    return found[0] if len(found) == 1 else None


def _called(name: str, item: Any) -> Iterator[Any]:
    for key, child in (parts(item) or {}).items():
        if key == name:
            yield child
        else:
            yield from _called(name, child)


def _own_lengths(mask: Tensor) -> list[int] | None:
    """How many places of each row are its own; None unless they are the first ones."""
    there = mask.detach() != 0
    lengths = there.sum(1)
    first = torch.arange(mask.shape[1], device=mask.device) < lengths.unsqueeze(1)
    return lengths.tolist() if bool((there == first).all()) and bool((lengths > 0).all()) else None
