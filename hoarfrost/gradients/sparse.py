"""Arithmetic for live elements only. Where one element in ten is live, a full product is mostly thrown away."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from hoarfrost.freezing.live import Part

# Row sums are best taken for so many examples at a time, whose table stays in a core's cache.
AT_ONCE = 128


def row_sums(table: Tensor, part: Part) -> Tensor:
    """For each row of the parameter the sum of ``table`` [columns, B] over the row's live columns: [rows, B].

    >>> row_sums(torch.tensor([[1.0], [10.0]]), Part(torch.tensor([[True, False], [True, True], [False, False]])))
    tensor([[ 1.],
            [11.],
            [ 0.]])
    """
    starts, columns = part.pattern
    return F.embedding_bag(columns, table, starts[:-1], mode="sum")


def products(left: Tensor, right: Tensor, part: Part) -> Tensor:
    """⟨left[i], right[j]⟩ for every live element (i, j), in the order of their places; [rows, T] and [columns, T].

    >>> part = Part(torch.tensor([[True, False], [True, True]]))
    >>> products(torch.eye(2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), part)
    tensor([1., 2., 4.])
    """
    found: Tensor = torch.sparse.sampled_addmm(_pattern(part, left.dtype), left, right.T, beta=0.0).values()
    return found


def each_product(lefts: Tensor, rights: Iterable[Tensor], part: Part) -> Tensor:
    """The same for every example, [B, live]."""
    out = lefts.new_empty(len(lefts), part.count)
    for row, left, right in zip(out, lefts, rights, strict=True):
        row.copy_(products(left, right, part))
    return out


def _pattern(part: Part, dtype: torch.dtype) -> Tensor:
    starts, columns = part.pattern
    size = (len(part.mask), part.mask[0].numel())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            starts, columns, torch.zeros(len(columns), dtype=dtype, device=columns.device), size, check_invariants=False
        )
