"""The neural tangent kernel (NTK) of a batch, and what clipping makes of it.

In gradient flow, w moves by -(1/n) Σ_i C_i ∇ℓ_i, and the loss by dL/dt = -∂L/∂f · HC · ∂L/∂fᵀ: H = ∂f/∂w · ∂f/∂wᵀ is
the NTK, and C the diagonal matrix of the clipping factors. Where layers are clipped apart from each other, Σ_r H_r C_r
stands in its place. A model with K outputs has K rows for each example.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap
from torch.nn import functional as F

from hoarfrost.clipping import Clipper
from hoarfrost.errors import InvalidValue
from hoarfrost.info import RunInfo
from hoarfrost.measure.loss_at import Loss
from hoarfrost.untrusted import free_memory, line, shown

ROUNDING = 1e-10  # of a matrix's norm in float64: what is smaller counts as none
# Of a matrix that is not symmetric, two eigenvalues that are equal may be off by the root of that (where examples are
# dropped, C has zeros, and HC has many an eigenvalue 0).
EIGENVALUES = 1e-7
SHARE = 0.5  # of the free memory that a Jacobian may take


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """H, HC or Σ_r H_r C_r of one batch, [n·K, n·K] in float64.

    Args:
        matrix: as it is.
        slope: ∂L/∂f, [n·K].
        factors: the clipping factors, [n, blocks]; ones without clipping.
    """

    matrix: Tensor
    slope: Tensor
    factors: Tensor

    @property
    def decay(self) -> float:
        """∂L/∂f · HC · ∂L/∂fᵀ: in gradient flow the loss falls so fast, dL/dt = -decay. Below 0 it rises."""
        return float(self.slope @ self.matrix @ self.slope)

    @property
    def asymmetry(self) -> float:
        """‖A - Aᵀ‖ / ‖A‖ of the matrix: 0 if it is symmetric, and of zeros."""
        size = float(torch.linalg.matrix_norm(self.matrix))
        return float(torch.linalg.matrix_norm(self.matrix - self.matrix.T)) / size if size > 0 else 0.0

    @cached_property
    def least_quadratic(self) -> float:
        """The smallest xᵀAx of any x of length 1. Below 0, the matrix is not positive in quadratic form."""
        return float(torch.linalg.eigvalsh((self.matrix + self.matrix.T) / 2)[0])

    @cached_property
    def least_eigenvalue(self) -> float:
        """The smallest real part of an eigenvalue. Below 0, the matrix is not positive in eigenvalues."""
        return float(torch.linalg.eigvals(self.matrix).real.min())

    @property
    def symmetric(self) -> bool:
        """Whether A = Aᵀ, but for rounding."""
        return self.asymmetry <= ROUNDING

    @property
    def positive_in_quadratic_form(self) -> bool:
        """Whether xᵀAx ≥ 0 for every x, but for rounding."""
        return self.least_quadratic >= -ROUNDING * self._norm

    @property
    def positive_in_eigenvalues(self) -> bool:
        """Whether no eigenvalue has a negative real part, but for rounding."""
        return self.least_eigenvalue >= -(ROUNDING if self.symmetric else EIGENVALUES) * self._norm

    @property
    def _norm(self) -> float:
        return float(torch.linalg.matrix_norm(self.matrix, 2))


class TangentKernels:
    """The Jacobian of a batch, from which come the kernels of all ways to clip it.

    Args:
        model: is evaluated in evaluation mode, in float64.
        inputs: the batch [n, ...], which the model takes as one tensor.
        targets: of the loss, [n, ...].
        loss: of outputs and targets, a mean over examples.
        parameters: patterns of names, such as ``["head.*"]``: the kernel of this part of the parameters. By default all
            that can be trained.

    >>> batch = TangentKernels(nn.Linear(3, 2), torch.ones(4, 3), torch.tensor([0, 1, 1, 0]))
    >>> batch.kernel().matrix.shape, batch.kernel().symmetric, batch.kernel().positive_in_quadratic_form
    (torch.Size([8, 8]), True, True)

    Guarantees:
        None: on private examples this is not private. The model does not change.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Tensor,
        targets: Tensor,
        *,
        loss: Loss = F.cross_entropy,
        parameters: Sequence[str] = ("*",),
    ) -> None:
        if not isinstance(inputs, Tensor) or len(inputs) != len(targets) or len(targets) == 0:
            raise InvalidValue("an NTK needs one tensor of examples or more, with a target for each")
        self._flow = Flow(model, inputs, targets, loss, chosen(model, parameters))
        outputs = self._flow.outputs(self._flow.weights)
        if outputs.dim() != 2:
            raise InvalidValue(
                f"the model's outputs must have the shape [examples, outputs], got {list(outputs.shape)}"
            )
        need, most = jacobian_bytes(outputs.numel(), self._flow.weights), SHARE * _free_on(outputs.device)
        if need > most:
            raise InvalidValue(
                f"the Jacobian of {len(inputs)} examples with {outputs.shape[1]} outputs by "
                f"{need // 8 // outputs.numel():,} parameters takes {need / 2**30:.2g} GiB, and no more than "
                f"{most / 2**30:.2g} may be taken: give fewer examples, or name a part of the parameters"
            )
        self.slope = grad(lambda f: loss(f, self._flow.targets))(outputs).flatten()
        try:
            jacobian = self._flow.jacobian()
        except RuntimeError as error:
            raise InvalidValue(line(f"torch.func cannot differentiate this model's outputs: {error}")) from error
        self._rows_of = {name: each.flatten(2).flatten(0, 1) for name, each in jacobian.items()}  # each [n·K, its size]

    def kernel(self, clip: Clipper | None = None) -> Kernel:
        """The kernel as this clipping makes it: H without any, HC of a flat one, Σ_r H_r C_r of blocks."""
        blocks, factors = self._flow.clipped(self._flow.weights, clip)
        rows = len(self.slope)
        matrix = torch.zeros(rows, rows, dtype=torch.float64, device=self.slope.device)
        for names, column in zip(blocks, factors.T, strict=True):
            of_block = sum((self._rows_of[n] @ self._rows_of[n].T for n in names), torch.zeros_like(matrix))
            matrix += of_block * column.repeat_interleave(rows // len(column))
        return Kernel(matrix=matrix, slope=self.slope, factors=factors)

    @property
    def longest_gradient(self) -> float:
        """The largest ‖∇ℓ_i‖ of the batch, over these parameters."""
        gradients = self._flow.gradients(self._flow.weights)
        return float(torch.cat([each.flatten(1) for each in gradients.values()], 1).norm(dim=1).max())

    def measured_decay(self, clip: Clipper | None = None, step: float = 1e-5) -> float:
        """How fast the loss falls where w moves as in gradient flow, by the losses a small step ahead and behind.

        It equals `Kernel.decay` up to an error of the order of the step's square.
        """
        way = self._flow.velocity(self._flow.weights, clip)
        ahead, behind = (
            self._flow.loss({n: w + sign * step * way[n] for n, w in self._flow.weights.items()}) for sign in (1, -1)
        )
        return (behind - ahead) / (2 * step)

    def descent(self, clip: Clipper | None = None, *, steps: int, step: float) -> tuple[float, ...]:
        """The losses of the batch when w follows the flow for so many steps of this size: the first, and all after."""
        weights, losses = self._flow.weights, [self._flow.loss(self._flow.weights)]
        for _ in range(steps):
            way = self._flow.velocity(weights, clip)
            weights = {name: w + step * way[name] for name, w in weights.items()}
            losses.append(self._flow.loss(weights))
        return tuple(losses)


class Flow:
    """Gradient flow on one batch, with clipping and without noise."""

    def __init__(self, model: nn.Module, inputs: Tensor, targets: Tensor, loss: Loss, names: Sequence[str]) -> None:
        self.model = copy.deepcopy(model).eval().double().requires_grad_(False)
        held = dict(self.model.named_parameters())
        self.weights = {name: held[name].detach() for name in names}
        device = next(iter(self.weights.values())).device
        self.inputs = (inputs.double() if inputs.is_floating_point() else inputs).to(device)
        self.targets = (targets.double() if targets.is_floating_point() else targets).to(device)
        self._loss = loss

    def outputs(self, weights: Mapping[str, Tensor]) -> Tensor:
        """f, [n, K]."""
        with torch.no_grad():
            found: Tensor = functional_call(self.model, dict(weights), (self.inputs,))
        return found

    def loss(self, weights: Mapping[str, Tensor]) -> float:
        """L."""
        return self._loss(self.outputs(weights), self.targets).item()

    def jacobian(self) -> dict[str, Tensor]:
        """∂f/∂w for each parameter, [n, K, *its shape]."""
        one: Callable[..., Tensor] = lambda w, x: functional_call(self.model, w, (x[None],))[0]  # noqa: E731
        found: dict[str, Tensor] = vmap(jacrev(one), in_dims=(None, 0))(self.weights, self.inputs)
        return found

    def gradients(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """∇ℓ_i for each parameter, [n, *its shape]."""

        def one(w: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return self._loss(functional_call(self.model, w, (x[None],)), y[None])

        found: dict[str, Tensor] = vmap(grad(one), in_dims=(None, 0, 0))(dict(weights), self.inputs, self.targets)
        return found

    def clipped(
        self, weights: Mapping[str, Tensor], clip: Clipper | None, gradients: Mapping[str, Tensor] | None = None
    ) -> tuple[tuple[tuple[str, ...], ...], Tensor]:
        """The names in each block, and the factors [n, blocks]."""
        if clip is None:
            return (tuple(weights),), torch.ones(len(self.targets), 1, dtype=torch.float64, device=self.targets.device)
        gradients = self.gradients(weights) if gradients is None else gradients
        clipping = clip.begin(0, RunInfo({name: w.shape for name, w in weights.items()}))
        blocks = tuple(block.parameters for block in clipping.blocks)
        norms = torch.stack(
            [torch.cat([gradients[n].flatten(1) for n in names], 1).norm(dim=1) for names in blocks], dim=1
        )
        return blocks, clipping.factors(norms)

    def velocity(self, weights: Mapping[str, Tensor], clip: Clipper | None) -> dict[str, Tensor]:
        """dw/dt = -(1/n) Σ_i C_i ∇ℓ_i for each parameter."""
        gradients = self.gradients(weights)
        blocks, factors = self.clipped(weights, clip, gradients)
        return {
            name: -torch.einsum("n,n...->...", factors[:, number], gradients[name]) / len(self.targets)
            for number, names in enumerate(blocks)
            for name in names
        }


def chosen(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """The trained parameters whose names match one of the patterns.

    >>> chosen(nn.Linear(2, 2), ["b*"])
    ['bias']
    """
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    found = [name for name in trained if any(fnmatchcase(name, pattern) for pattern in patterns)]
    if not found:
        raise InvalidValue(
            f"no trained parameter is named like {', '.join(map(shown, patterns))}; there are "
            f"{', '.join(trained) or 'none'}"
        )
    return found


def jacobian_bytes(rows: int, weights: Mapping[str, Tensor]) -> int:
    """How much memory a Jacobian in float64 takes, with so many rows (examples × outputs).

    >>> jacobian_bytes(10, {"w": torch.zeros(3, 4)})
    960
    """
    return 8 * rows * sum(math.prod(w.shape) for w in weights.values())


def _free_on(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()
