"""Logits and labels, checked, and the scores that need no bins."""

import torch
from torch import Tensor

from hoarfrost.errors import InvalidValue


def checked_logits(logits: Tensor) -> Tensor:
    """Logits [N, K] in float64; from those of two classes, [N] or [N, 1], which are the second class's, [N, 2].

    >>> checked_logits(torch.tensor([3.0, -1.0])).tolist()
    [[0.0, 3.0], [0.0, -1.0]]
    """
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        got = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
        raise InvalidValue(f"logits must be a tensor of floating point numbers, got {got}")
    if logits.ndim not in (1, 2) or (logits.ndim == 2 and logits.shape[1] == 0):
        raise InvalidValue(f"logits must have the shape [N, K], or [N] for two classes, got {list(logits.shape)}")
    if len(logits) == 0:
        raise InvalidValue("logits have no examples: there is nothing to measure")
    if not logits.isfinite().all():
        raise InvalidValue("logits must be finite, got NaN or infinity: the model has diverged, or overflowed")
    wide = logits.detach().double()
    if wide.ndim == 1 or wide.shape[1] == 1:
        wide = torch.stack([torch.zeros_like(wide.flatten()), wide.flatten()], dim=1)
    return wide


def checked(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [N, K] in float64, and labels [N] in int64 on the same device."""
    wide = checked_logits(logits)
    count, classes = wide.shape
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
        got = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise InvalidValue(f"labels must be a tensor of integers (the classes), got {got}")
    if labels.shape != (count,):
        raise InvalidValue(f"labels must have the shape [{count}], one for each example, got {list(labels.shape)}")
    labels = labels.to(wide.device, torch.int64)
    if labels.min() < 0 or labels.max() >= classes:
        raise InvalidValue(
            f"labels must lie from 0 to {classes - 1}, got {int(labels.min())} to {int(labels.max())}: "
            f"the logits are of {classes} classes"
        )
    return wide, labels


def nll(logits: Tensor, labels: Tensor) -> float:
    """The mean negative log-likelihood of the labels, in nats: the cross-entropy loss.

    Args:
        logits: [N, K]; for two classes also [N] or [N, 1], the second class's logit.
        labels: [N], integers from 0 to K - 1.

    >>> round(nll(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1])), 4)
    0.6931
    """
    return nll_of(*checked(logits, labels))


def brier(logits: Tensor, labels: Tensor) -> float:
    """The Brier score, from 0 (perfect) to 2 (sure, and always wrong).

    It is the squared distance between the predicted probabilities and the label's one-hot vector, summed over all
    classes, and averaged over examples. For two classes this is twice the squared error of the second class's
    probability, which others call the Brier score then.

    >>> brier(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]))
    0.5
    """
    return brier_of(*checked(logits, labels))


def nll_of(logits: Tensor, labels: Tensor) -> float:
    """`nll` of what is checked."""
    likely = logits.log_softmax(dim=1).gather(1, labels[:, None])
    return -likely.mean().item() + 0.0  # not -0.0


def brier_of(logits: Tensor, labels: Tensor) -> float:
    """`brier` of what is checked."""
    off = logits.softmax(dim=1)
    off.scatter_add_(1, labels[:, None], off.new_full((len(labels), 1), -1.0))
    return off.square().sum(dim=1).mean().item()
