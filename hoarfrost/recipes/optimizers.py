"""The optimizers that a recipe can name. Torch is imported when one is built."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hoarfrost.errors import InvalidValue
from hoarfrost.recipes import schema
from hoarfrost.registry import NotNegative, Positive, Probability, Share, component

if TYPE_CHECKING:
    import torch

    Parameters = Iterable[torch.nn.Parameter]


def build(wanted: schema.ComponentTable, params: Parameters) -> torch.optim.Optimizer:
    """The torch optimizer; the recipe's keys are its arguments.

    >>> import torch
    >>> wanted = schema.table("optimizer", "sgd")(lr=0.1, momentum=0.9)
    >>> type(build(wanted, [torch.nn.Parameter(torch.zeros(2))])).__name__
    'SGD'
    """
    optimizer: torch.optim.Optimizer = schema.build(wanted, "optimizer", params=params)
    return optimizer


def _check_nesterov(momentum: float, dampening: float, nesterov: bool, **_: Any) -> None:
    if nesterov and (momentum == 0 or dampening != 0):
        raise InvalidValue("nesterov needs a momentum above 0 and no dampening")


@component(
    "optimizer",
    "sgd",
    check=_check_nesterov,
    examples=lambda: [
        ("SGD", {"lr": 0.1}),
        ("momentum", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
        ("Nesterov", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ],
)
def sgd(
    params: Parameters,
    lr: Positive,
    momentum: NotNegative = 0.0,
    dampening: NotNegative = 0.0,
    nesterov: bool = False,
    weight_decay: NotNegative = 0.0,
) -> torch.optim.Optimizer:
    """Stochastic gradient descent (`torch.optim.SGD`).

    Args:
        lr: the learning rate.
        momentum: the share of the last step's direction that the next one keeps.
        dampening: the share of a gradient that does not enter the momentum.
        nesterov: look ahead along the momentum; needs a momentum and no dampening.
        weight_decay: this times the weights is added to the gradient.
    """
    from torch.optim import SGD

    return SGD(
        params, lr=lr, momentum=momentum, dampening=dampening, nesterov=nesterov, weight_decay=weight_decay
    )  # fmt: skip


@component("optimizer", "rmsprop", examples=lambda: [("RMSprop", {"lr": 0.01, "momentum": 0.5})])
def rmsprop(
    params: Parameters,
    lr: Positive = 1e-2,
    alpha: Probability = 0.99,
    eps: Positive = 1e-8,
    momentum: NotNegative = 0.0,
    weight_decay: NotNegative = 0.0,
) -> torch.optim.Optimizer:
    """RMSprop (`torch.optim.RMSprop`).

    Args:
        lr: the learning rate.
        alpha: the share of the mean of squares that a step keeps.
        eps: what is added to the root of that mean, so that nothing is divided by zero.
        momentum: the share of the last step's direction that the next one keeps.
        weight_decay: this times the weights is added to the gradient.
    """
    from torch.optim import RMSprop

    return RMSprop(params, lr=lr, alpha=alpha, eps=eps, momentum=momentum, weight_decay=weight_decay)


@component("optimizer", "adam", examples=lambda: [("Adam", {"lr": 0.01})])
def adam(
    params: Parameters,
    lr: Positive = 1e-3,
    betas: tuple[Share, Share] = (0.9, 0.999),
    eps: Positive = 1e-8,
    weight_decay: NotNegative = 0.0,
) -> torch.optim.Optimizer:
    """Adam (`torch.optim.Adam`).

    Args:
        lr: the learning rate.
        betas: the shares of the means of gradients and of their squares that a step keeps.
        eps: what is added to the root of the mean of squares, so that nothing is divided by zero.
        weight_decay: this times the weights is added to the gradient.
    """
    from torch.optim import Adam

    return Adam(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


@component("optimizer", "adamw", examples=lambda: [("AdamW", {"lr": 0.01, "weight_decay": 0.1})])
def adamw(
    params: Parameters,
    lr: Positive = 1e-3,
    betas: tuple[Share, Share] = (0.9, 0.999),
    eps: Positive = 1e-8,
    weight_decay: NotNegative = 0.01,
) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay (`torch.optim.AdamW`).

    Args:
        lr: the learning rate.
        betas: the shares of the means of gradients and of their squares that a step keeps.
        eps: what is added to the root of the mean of squares, so that nothing is divided by zero.
        weight_decay: this times the learning rate is the share by which the weights shrink in a step.
    """
    from torch.optim import AdamW

    return AdamW(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
