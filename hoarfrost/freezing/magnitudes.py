"""How large the gradients of partitions are, in the ways of DP-FROST, and how far one example moves that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from hoarfrost import validate
from hoarfrost.errors import InvalidValue
from hoarfrost.freezing.partitions import Partition
from hoarfrost.models.calling import outputs_of
from hoarfrost.nested import map_tensors

if TYPE_CHECKING:
    from hoarfrost.query import Query

Kind = Literal["clipped", "normalised", "absolute", "norms"]
SMALL, LARGE = 1e-12, 1e12  # norms between which float32 is trusted

LossOfOne = Callable[[nn.Module, Any], Tensor]
"""From the model and a batch of one example to that example's loss."""


@dataclass(frozen=True)
class Magnitude:
    """What is measured of each partition P, with |P| numbers, on a sample of the examples x. a is the order.

    Every example's numbers are divided by their a-norm (2-norm for "norms"), so that each has the same say. With
    ``clip`` they are divided only if they are longer than that, as in the paper.

    Args:
        kind: of the paper, the a-norm of P's part of a sum over examples, of
            "clipped": the gradients g(x), divided by |P|^(1/a) after the sum (DP-MG);
            "normalised": the gradients with P's part divided by |P|^(1/a) (DP-MGN);
            "absolute": the absolute values of these (DP-MGNA).
            Ours: "norms", the sum of the numbers ‖g_P(x)‖_a / |P|^(1/a), of which each example has one for each P.
        order: a, 1 or 2; by default 1, and 2 for "norms".
        clip: c; of all but "clipped" the threshold is c divided by the a-th root of the partitions' mean size.

    Guarantees:
        One example moves the vector of magnitudes by at most `sensitivity` in 2-norm. For "absolute" of order 1 and for
        "norms" it is a sum of vectors that are bounded. For the others it moves each block's norm by at most the norm
        of what it adds to that block (the triangle inequality), and the 2-norm of these is at most their a-norm.
        No more than one example's gradient, and one sum of the model's size, is held.

    >>> parts = (Partition("a", ("a.weight",), 4), Partition("b", ("b.weight",), 100))
    >>> Magnitude("absolute").sensitivity(parts), Magnitude("clipped", order=2).sensitivity(parts)
    (1.0, 0.5)
    """

    kind: Kind = "absolute"
    order: Literal[1, 2] | None = None
    clip: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("clipped", "normalised", "absolute", "norms"):
            raise InvalidValue(f'magnitude is "clipped", "normalised", "absolute" or "norms", got {self.kind!r}')
        if self.order not in (1, 2, None) or isinstance(self.order, bool):
            raise InvalidValue(f"order is 1 or 2, got {self.order!r}")
        if self.clip is not None:
            validate.positive(clip=self.clip)
            validate.finite(clip=self.clip)

    @property
    def norm(self) -> Literal[1, 2]:
        """The order that counts."""
        return self.order or (2 if self.kind == "norms" else 1)

    def sensitivity(self, partitions: Sequence[Partition]) -> float:
        """By how much one example moves the magnitudes of these partitions, at most."""
        return self._bound(partitions) * max(self._weights(partitions))

    def measured(self, query: Query, partitions: Sequence[Partition], loss: LossOfOne) -> Tensor:
        """The noisy magnitudes of these partitions, summed over a sample."""
        bound, lengthen = self._bound(partitions), self.clip is None
        scales = [self._scale(each) for each in partitions]

        def norms(model: nn.Module, batch: Any) -> Tensor:
            found = gradients(model, batch, partitions, loss)
            return torch.stack([_norm(g, self.norm) * scale for g, scale in zip(found, scales, strict=True)])

        def vectors(model: nn.Module, batch: Any) -> list[Tensor]:
            found = [torch.cat([g.reshape(-1) for g in own]) for own in gradients(model, batch, partitions, loss)]
            if self.kind == "clipped":
                return found
            scaled = [g.mul_(scale) for g, scale in zip(found, scales, strict=True)]
            return [g.abs_() for g in scaled] if self.kind == "absolute" else scaled

        if self.kind == "norms":
            return query.sum(norms, size=len(partitions), bound=bound, lengthen=lengthen)
        if self.kind == "absolute" and self.norm == 1:  # sums of absolute values add up
            return query.sum(norms, size=len(partitions), bound=bound, order=1, lengthen=lengthen)
        return query.norms(
            vectors, sizes=[each.size for each in partitions], bound=bound, order=self.norm, lengthen=lengthen,
            weights=self._weights(partitions),
        )  # fmt: skip

    def _scale(self, partition: Partition) -> float:
        return float(partition.size ** (-1 / self.norm))

    def _weights(self, partitions: Sequence[Partition]) -> list[float]:
        return [self._scale(each) if self.kind == "clipped" else 1.0 for each in partitions]

    def _bound(self, partitions: Sequence[Partition]) -> float:
        if self.clip is None:
            return 1.0
        if self.kind == "clipped":
            return self.clip
        mean = sum(each.size for each in partitions) / len(partitions)
        return float(self.clip / mean ** (1 / self.norm))


def of_recipe(loss: Callable[[Tensor, Tensor], Tensor]) -> LossOfOne:
    """A recipe's loss, of outputs and targets, as one of a model and a batch."""

    def of_one(model: nn.Module, batch: Any) -> Tensor:
        device = next(model.parameters()).device
        x, y = map_tensors(lambda t: t.to(device), tuple(batch))
        return loss(outputs_of(model, x), y)

    return of_one


def gradients(model: nn.Module, batch: Any, partitions: Sequence[Partition], loss: LossOfOne) -> list[list[Tensor]]:
    """Of one example's loss, for each partition: one tensor for each of its parameters.

    The model is in evaluation mode (what called this puts it back): what dropout leaves out is no matter of a choice.
    """
    model.eval()
    named = dict(model.named_parameters())
    wanted = [named[name] for each in partitions for name in each.parameters]
    value = loss(model, batch)
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise InvalidValue(f"the loss of one example is one number, got {got}")
    if not value.requires_grad:
        raise InvalidValue(
            "the loss that magnitudes are measured with does not depend on the model's parameters: see that it is "
            "computed from the model's output, and not detached or under torch.no_grad()"
        )
    found = torch.autograd.grad(value.reshape(()), wanted, allow_unused=True)
    filled = iter([torch.zeros_like(p) if g is None else g.to_dense() for g, p in zip(found, wanted, strict=True)])
    return [[next(filled) for _ in each.parameters] for each in partitions]


def _norm_of_one(g: Tensor, order: Literal[1, 2]) -> Tensor:
    """In the tensor's own precision, which is many times faster, unless its squares might overflow or vanish there.

    How it is rounded is no matter of privacy: the vector of these norms is what is clipped.
    """
    quick = (g.abs().sum() if order == 1 else torch.linalg.vector_norm(g)).double()
    return quick if SMALL < quick < LARGE else torch.linalg.vector_norm(g, order, dtype=torch.float64)


def _norm(own: Sequence[Tensor], order: Literal[1, 2]) -> Tensor:
    norms = torch.stack([_norm_of_one(g, order) for g in own])
    total: Tensor = torch.linalg.vector_norm(norms, order)
    return total
