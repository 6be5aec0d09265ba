"""The usual losses, one for each example: what `PrivateOptimizer.backward` takes.

Torch's own losses end in a mean over the batch, and some of them divide by what examples have a say in: the summed
weights of their classes, or the number of tokens that are not padding. Here nothing is divided by anything but an
example's own numbers. Shapes that torch would broadcast, so that examples meet, are refused.

All functions return [B]. Their messages do not tell B: the size of a batch is private.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from hoarfrost.errors import InvalidValue

Weights = Tensor | Sequence[float] | None


def cross_entropy(logits: Tensor, targets: Tensor, *, weight: Weights = None, label_smoothing: float = 0.0) -> Tensor:
    """Cross entropy of the softmax of ``logits`` [B, classes] with ``targets``: classes [B], or shares [B, classes].

    Args:
        weight: a factor for each class. Unlike in `torch.nn.CrossEntropyLoss`, nothing is divided by the weights of the
            batch, which would mix examples: an example of a class of weight 100 counts 100 times, before clipping.
        label_smoothing: the share of the target that is spread over all classes.

    >>> cross_entropy(torch.zeros(2, 2), torch.tensor([0, 1]), weight=[1.0, 3.0])
    tensor([0.6931, 2.0794])
    """
    if logits.dim() != 2:
        raise InvalidValue(f"logits must have the shape [examples, classes], got {_shape(logits)}")
    if targets.is_floating_point():
        _check_same_shape(logits, targets, "logits")
    elif targets.shape != logits.shape[:1]:
        raise InvalidValue(f"targets must have the shape [examples], one class for each, got {_shape(targets)}")
    return F.cross_entropy(
        logits, targets, weight=_weights(weight, logits), label_smoothing=label_smoothing, reduction="none"
    )  # fmt: skip


def token_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum"] = "mean",
    weight: Weights = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross entropy of texts: ``logits`` [B, tokens, classes] and ``targets`` [B, tokens].

    Args:
        ignore_index: the target of tokens that do not count, such as padding.
        reduction: "mean" over each example's own tokens, or their "sum". An example without a token has the loss 0.
        weight, label_smoothing: as for `cross_entropy`.

    >>> token_cross_entropy(torch.zeros(3, 2, 4), torch.tensor([[0, 1], [2, -100], [-100, -100]]))
    tensor([1.3863, 1.3863, 0.0000])
    """
    if logits.dim() != 3 or targets.shape != logits.shape[:2]:
        raise InvalidValue(
            "logits must have the shape [examples, tokens, classes] and targets [examples, tokens], got "
            f"{_shape(logits)} and {_shape(targets)}: leave the tokens in a dimension of their own, not flattened"
        )
    if reduction not in ("mean", "sum"):
        raise InvalidValue(f'reduction must be "mean" or "sum", got {reduction!r}')
    each = F.cross_entropy(
        logits.movedim(2, 1), targets, weight=_weights(weight, logits), ignore_index=ignore_index,
        label_smoothing=label_smoothing, reduction="none",
    ).sum(1)  # fmt: skip
    return each if reduction == "sum" else each / (targets != ignore_index).sum(1).clamp(min=1)


def binary_cross_entropy(logits: Tensor, targets: Tensor, *, pos_weight: float | Weights = None) -> Tensor:
    """Binary cross entropy between the sigmoid of ``logits`` and ``targets`` in [0, 1], of the same shape: [B] for one
    label, [B, labels] for several, of which an example's loss is the mean.

    Args:
        pos_weight: the factor of the loss where the target is 1: one, or one for each label.

    >>> binary_cross_entropy(torch.zeros(2), torch.tensor([0, 1]), pos_weight=3.0)
    tensor([0.6931, 2.0794])
    >>> binary_cross_entropy(torch.zeros(1, 3), torch.tensor([[0.0, 1.0, 1.0]]))
    tensor([0.6931])
    """
    _check_same_shape(logits, targets, "logits")
    weights = _weights([pos_weight] if isinstance(pos_weight, int | float) else pos_weight, logits)
    targets = targets.to(logits.dtype)
    return _mean(F.binary_cross_entropy_with_logits(logits, targets, pos_weight=weights, reduction="none"))


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The squared difference between ``outputs`` and ``targets`` of the same shape: [B], or the mean of each example's
    own numbers [B, ...].

    >>> squared_error(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 5.0]))
    tensor([1., 9.])
    >>> squared_error(torch.zeros(4, 1), torch.zeros(4))
    Traceback (most recent call last):
        ...
    hoarfrost.errors.InvalidValue: outputs and targets must have the same shape, got [examples, 1] and [examples]: ...
    """
    _check_same_shape(outputs, targets, "outputs")
    return _mean(F.mse_loss(outputs, targets, reduction="none"))


def huber(outputs: Tensor, targets: Tensor, *, delta: float = 1.0) -> Tensor:
    """Half the squared difference up to ``delta``, and a straight line beyond it; shapes as for `squared_error`.

    >>> huber(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 5.0]))
    tensor([0.1250, 2.5000])
    """
    _check_same_shape(outputs, targets, "outputs")
    return _mean(F.huber_loss(outputs, targets, reduction="none", delta=delta))


def _mean(losses: Tensor) -> Tensor:
    """Over each example's own."""
    return losses if losses.dim() == 1 else losses.flatten(1).mean(1)


def _weights(weights: Weights, like: Tensor) -> Tensor | None:
    return None if weights is None else torch.as_tensor(weights, dtype=like.dtype, device=like.device)


def _check_same_shape(outputs: Tensor, targets: Tensor, name: str) -> None:
    if outputs.shape == targets.shape and outputs.dim():
        return
    if outputs.shape[:1] != targets.shape[:1]:
        raise InvalidValue(f"{name} and targets must have the same shape, with one row for each example")
    # [B, 1] against [B] is broadcast to [B, B]: every example would meet every other.
    raise InvalidValue(
        f"{name} and targets must have the same shape, got {_shape(outputs)} and {_shape(targets)}: write "
        f"{name}.squeeze(1), or targets[:, None]"
    )


def _shape(t: Tensor) -> str:
    return "[" + ", ".join(["examples", *map(str, t.shape[1:])][: t.dim()]) + "]"
