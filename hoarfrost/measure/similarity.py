"""How alike two layers represent the same examples: PWCCA, and CKA as the control of today.

Both compare what two sets of neurons answer to the same data points, [points, neurons], and do not mind if the neurons
of one are rotated among themselves, shifted or scaled together.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hoarfrost.errors import InvalidValue

RANK = 1e-6  # of the largest singular value: directions below are rounding of float32 activations, and are left out


def pwcca(first: Tensor, second: Tensor) -> float:
    """The projection-weighted canonical correlation (Morcos et al., 2018), from 0 to 1: 1 is alike.

    Σ_i α_i ρ_i / Σ_i α_i, with the canonical correlations ρ and the weights α_i = Σ_j |⟨h_i, x_j⟩|: how much the first
    layer's canonical variate h_i is in all of its neurons x_j. The weights are the first layer's: it is not symmetric.

    Args:
        first, second: [points, neurons], on the same points. There must be more points than there are dimensions in
            both together: with fewer, some directions correlate perfectly whatever they hold.

    Two layers of which both are constant are alike (1); if only one of them is, they are not (0).

    >>> x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    >>> round(pwcca(x, 5 * x @ torch.tensor([[0.0, 1, 0], [1, 0, 0], [0, 0, -1]]) + 2), 6)
    1.0
    """
    x, y = _centered(first, second)
    basis_x, basis_y = _basis(x), _basis(y)
    if basis_x.shape[1] == 0 or basis_y.shape[1] == 0:
        return float(basis_x.shape[1] == basis_y.shape[1])
    dimensions = basis_x.shape[1] + basis_y.shape[1]
    if len(x) <= dimensions:
        raise InvalidValue(
            f"PWCCA of layers with {basis_x.shape[1]} and {basis_y.shape[1]} dimensions needs more than {dimensions} "
            f"data points, got {len(x)}: with fewer, some directions correlate perfectly whatever they hold. Take more "
            "examples, or CKA"
        )
    rotation, correlations, _ = torch.linalg.svd(basis_x.T @ basis_y, full_matrices=False)
    weights = ((basis_x @ rotation).T @ x).abs().sum(dim=1)
    return float((weights * correlations.clamp(0, 1)).sum() / weights.sum())


def cka(first: Tensor, second: Tensor) -> float:
    """The linear centered kernel alignment (Kornblith et al., 2019), from 0 to 1: 1 is alike.

    ‖YᵀX‖² / (‖XᵀX‖·‖YᵀY‖) of centered X and Y. It is symmetric, and is dominated by the directions of largest variance.

    Args:
        first, second: [points, neurons], on the same points.

    Two layers of which both are constant are alike (1); if only one of them is, they are not (0).

    >>> x = torch.eye(4)
    >>> round(cka(x, 3 * x + 1), 6), round(cka(x, x[:, :1]), 6)
    (1.0, 0.57735)
    """
    x, y = _centered(first, second)
    # Of the two ways to write a product of norms, the smaller matrices: [neurons, neurons] or [points, points].
    own_x, own_y = (torch.linalg.matrix_norm(t.T @ t if t.shape[1] <= len(t) else t @ t.T) for t in (x, y))
    if own_x == 0 or own_y == 0:
        return float(own_x == own_y)
    return float((torch.linalg.matrix_norm(y.T @ x) / own_x) * (torch.linalg.matrix_norm(y.T @ x) / own_y))


def _centered(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    for what, each in (("first", first), ("second", second)):
        if each.dim() != 2:
            raise InvalidValue(f"activations must have the shape [points, neurons], got {list(each.shape)} as {what}")
        if not bool(each.isfinite().all()):
            raise InvalidValue(f"the {what} activations hold NaN or infinity: the model has diverged")
    if len(first) != len(second):
        raise InvalidValue(
            f"layers are compared on the same data points, got {len(first)} for the first, {len(second)} for the second"
        )
    if len(first) < 2:
        raise InvalidValue(f"layers are compared by how their activations vary: {len(first)} data points are too few")
    x, y = first.double(), second.double().to(first.device)
    return _without_rounding(x - x.mean(0), x), _without_rounding(y - y.mean(0), y)


def _without_rounding(centered: Tensor, as_given: Tensor) -> Tensor:
    """Neurons that are constant but for rounding of float32 are constant."""
    return torch.where(centered.abs().amax(0) > RANK * as_given.abs().amax(0), centered, 0.0)


def _basis(centered: Tensor) -> Tensor:
    """An orthonormal basis of what the neurons span, [points, dimensions]."""
    left, values, _ = torch.linalg.svd(centered, full_matrices=False)
    basis: Tensor = left[:, values > RANK * values[0]]
    return basis
