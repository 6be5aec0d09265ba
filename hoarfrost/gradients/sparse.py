"""Arithmetic for live elements only. Where one element in ten is live, a full product is mostly thrown away."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from hoarfrost.masks import PartialMask

# Row sums are best taken for so many examples at a time, whose table stays in a core's cache.
EXAMPLES_AT_ONCE = 128


def row_sums(table: Tensor, mask: PartialMask) -> Tensor:
    """For each row of the parameter the sum of ``table`` [columns, B] over the row's live columns: [rows, B].

    >>> mask = PartialMask(torch.tensor([[True, False], [True, True], [False, False]]))
    >>> row_sums(torch.tensor([[1.0], [10.0]]), mask)
    tensor([[ 1.],
            [11.],
            [ 0.]])
    """
    starts, columns = mask.csr
    return F.embedding_bag(columns, table, starts[:-1], mode="sum")


def sampled_products(lefts: Tensor, rights: Iterable[Tensor], mask: PartialMask) -> Tensor:
    """⟨left[i], right[j]⟩ of each example at every live element (i, j), in the order of ``mask.indices``: [B, live].

    Args:
        lefts: [B, rows, T].
        rights: as many times [columns, T].

    >>> mask = PartialMask(torch.tensor([[True, False], [True, True]]))
    >>> sampled_products(torch.eye(2)[None], [torch.tensor([[1.0, 2.0], [3.0, 4.0]])], mask)
    tensor([[1., 2., 4.]])
    """
    matrix, found = _csr_matrix(mask, lefts.dtype), []
    for left, right in zip(lefts, rights, strict=True):
        found.append(torch.sparse.sampled_addmm(matrix, left, right.T, beta=0.0).values())
    return torch.stack(found) if found else lefts.new_zeros(0, mask.count)


def _csr_matrix(mask: PartialMask, dtype: torch.dtype) -> Tensor:
    """The live elements of the parameter, as a sparse matrix whose values do not matter."""
    starts, columns = mask.csr
    values = torch.zeros(len(columns), dtype=dtype, device=columns.device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        size = (len(mask.mask), mask.mask[0].numel())
        return torch.sparse_csr_tensor(starts, columns, values, size, check_invariants=False)
