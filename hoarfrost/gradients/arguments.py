"""The examples in what a model is handed: how many there are, and in which dimension of each tensor.

Tensors have them first, or second (`batch_first=False`). Some follow neither: the state of a recurrent network is
[layers, examples, width] beside words [examples, time]; and what all examples share may be as long as the batch by
chance. Which dimension of a tensor counts examples, if any, shows when the model runs on a few of them (`guesses`): a
wrong guess does not fit the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from hoarfrost.errors import NotPrivate
from hoarfrost.nested import map_tensors

ArgumentDims = tuple[int | None, ...]  # of each tensor, in the order of `map_tensors`; None: the examples share it
GUESSES = 64  # a model that fails at each of them has other reasons to


@dataclass(frozen=True)
class Examples:
    """The examples in a model's arguments."""

    rows: int
    batch_first: bool

    def dim(self, t: Tensor) -> int | None:
        """The dimension of ``t`` that counts them, if it is where it usually is."""
        dim = 0 if self.batch_first or t.dim() < 2 else 1
        if t.dim() > dim and t.shape[dim] == self.rows:
            return dim
        return list(t.shape).index(0) if self.rows == 0 and 0 in t.shape else None  # no mistaking a dimension of none

    def dims(self, arguments: Any) -> ArgumentDims:
        """The same for each of the arguments' tensors."""
        return tuple(self.dim(t) for t in _walk(arguments))

    def guesses(self, arguments: Any, known: ArgumentDims | None = None) -> Iterator[ArgumentDims]:
        """Where they could be, the likeliest first: where they are ``known`` to have been, and where they usually are.

        >>> words, state = torch.zeros(4, 9), torch.zeros(2, 4, 5)
        >>> list(Examples(4, batch_first=True).guesses((words, state)))
        [(0, None), (0, 1), (None, 1)]
        """
        tensors = _walk(arguments)
        usual = self.dims(arguments)
        likely = dict.fromkeys([known, usual] if known is not None and self.fit(tensors, known) else [usual])
        yield from likely
        options = [
            dict.fromkeys([dim, *(d for d, size in enumerate(t.shape) if size == self.rows), None])
            for t, dim in zip(tensors, usual, strict=True)
        ]
        found = [dims for dims in islice(product(*options), GUESSES) if dims not in likely and set(dims) != {None}]
        yield from sorted(found, key=lambda dims: dims.count(None))

    def fit(self, tensors: Sequence[Tensor], dims: ArgumentDims) -> bool:
        """Whether these dimensions have as many rows as there are."""
        pairs = zip(tensors, dims, strict=False)
        return len(tensors) == len(dims) and all(d is None or t.shape[d : d + 1] == (self.rows,) for t, d in pairs)

    def stand_in(self, arguments: Any, rows: int) -> Any:
        """Made-up examples, in so many rows, in place of none."""

        def filled(t: Tensor, dim: int | None) -> Tensor:
            if dim is None:
                return t
            # Whole numbers are words, masks or lengths, and a length of 0 is not allowed everywhere.
            fill = 0 if t.is_floating_point() else 1
            return t.new_full([rows if d == dim else size for d, size in enumerate(t.shape)], fill)

        return map_examples(filled, arguments, self.dims(arguments))


def map_examples(fn: Callable[[Tensor, int | None], Tensor], arguments: Any, dims: ArgumentDims) -> Any:
    """The arguments with ``fn(tensor, dim)`` in place of every tensor, whose examples are in dimension ``dim``."""
    following = iter(dims)
    return map_tensors(lambda t: fn(t, next(following)), arguments)


def pick(arguments: Any, dims: ArgumentDims, rows: Sequence[int]) -> Any:
    """The arguments with these rows only."""

    def picked(t: Tensor, dim: int | None) -> Tensor:
        return t if dim is None else t.index_select(dim, torch.tensor(rows, device=t.device))

    return map_examples(picked, arguments, dims)


def tensors_in(arguments: Any) -> list[Tensor]:
    """The tensors in a model's arguments that could hold examples."""
    if type(arguments) is tuple and len(arguments) == 1 and isinstance(arguments[0], Tensor):  # as mostly
        return [arguments[0]] if arguments[0].dim() else []
    return [t for t in tree_flatten(arguments)[0] if isinstance(t, Tensor) and t.dim()]


def examples_in(tensors: list[Tensor], expected: int | None, batch_first: bool) -> Examples:
    """How many examples a model's tensors hold: as many as the loader drew, or else as the first tensor says."""
    if any(t.is_nested for t in tensors):
        raise NotPrivate(
            "the model is given a nested tensor, whose examples have no dimension that could be followed through the "
            "model. Pad in the collate function (torch.nn.utils.rnn.pad_sequence) and pass lengths or a mask along."
        )
    if not tensors:
        raise NotPrivate(
            "the model was called without a tensor of examples, so gradients cannot be attributed to individual "
            "examples. Pass the batch to the model: a tensor, or a dict, list or tuple of tensors."
        )
    if expected is not None:
        examples = Examples(expected, batch_first)
        if any(examples.dim(t) is not None for t in tensors):
            return examples
    first = tensors[0]
    return Examples(first.shape[0 if batch_first or first.dim() < 2 else 1], batch_first)


def _walk(arguments: Any) -> list[Tensor]:
    found: list[Tensor] = []
    map_tensors(found.append, arguments)
    return found
