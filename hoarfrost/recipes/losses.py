"""The losses that a recipe can name: what a model learns, and how well it did. Torch is imported when one is used."""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from hoarfrost import validate
from hoarfrost.errors import InvalidValue
from hoarfrost.recipes import schema
from hoarfrost.registry import Positive, Share, component

if TYPE_CHECKING:
    from torch import Tensor


class Loss(ABC):
    """What is minimized: the mean of losses that each depend on one example. One of your own needs `per_example` and
    `outputs`; if its targets are real numbers, derive it from `Regression`.

    Guarantees:
        An example moves its own term and no other. Training differentiates the sum (`PrivateOptimizer.backward`):
        nothing is divided by anything that other examples have a say in.
    """

    real_targets: ClassVar[bool] = False  # else targets are integers: the classes, from 0
    # What is measured on the test set in addition to the loss. The first is the one that is shown.
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "nll", "brier", "ece", "mce")
    unit = 1.0  # what 1 is in the own units of a real target, which may have been scaled: metrics are told in these

    @abstractmethod
    def per_example(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Each example's loss [B], from that example's outputs and target alone."""

    @abstractmethod
    def outputs(self, classes: int | None) -> int:
        """The number of outputs that a model needs; refuses targets that the loss does not take.

        Args:
            classes: the number of classes; None if the targets are real numbers.
        """

    def of_each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """`per_example`, seen to be one number for each."""
        losses = self.per_example(outputs, targets)
        if losses.shape != outputs.shape[:1]:
            raise InvalidValue(f"{type(self).__name__}.per_example must give one number for each example")
        return losses

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over the batch; NaN if it is empty."""
        return self.of_each(outputs, targets).mean()

    def logits(self, outputs: Tensor) -> Tensor | None:
        """A logit for each class [B, classes]; None if there are no classes."""
        return outputs

    def in_units(self, unit: float) -> Loss:
        """The same loss, whose metrics are told in units of the target's own.

        >>> SquaredError().in_units(2.5).unit
        2.5
        """
        other = copy(self)
        object.__setattr__(other, "unit", unit)  # most are frozen
        return other


class Regression(Loss):
    """A loss of one output [B, 1] and a real number [B]."""

    real_targets = True
    metrics = ("mse", "r2")

    def outputs(self, classes: int | None) -> int:
        if classes is not None:
            raise InvalidValue(
                "the loss takes real numbers, and the data set has classes: use loss.kind = cross_entropy, or data "
                "with real-valued targets"
            )
        return 1

    def logits(self, outputs: Tensor) -> Tensor | None:
        return None


@component("loss", "cross_entropy")
@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Cross entropy between the softmax of the outputs and the class: classification.

    Args:
        label_smoothing: the share of the target that is spread over all classes, as in `torch.nn.CrossEntropyLoss`.
        class_weights: a factor for each class. It weighs an example's own loss; unlike in torch, the mean is not
            divided by the weights of the batch, which would mix examples.

    >>> import torch
    >>> CrossEntropy(class_weights=(1.0, 3.0)).per_example(torch.zeros(2, 2), torch.tensor([0, 1]))
    tensor([0.6931, 2.0794])
    """

    label_smoothing: Share = 0.0
    class_weights: tuple[Positive, ...] | None = None

    def __post_init__(self) -> None:
        validate.not_negative(label_smoothing=self.label_smoothing)
        if self.label_smoothing >= 1:
            raise InvalidValue(f"label_smoothing must be below 1, got {self.label_smoothing}")
        if self.class_weights is not None and not self.class_weights:
            raise InvalidValue("class_weights needs a number for each class, got none")
        for weight in self.class_weights or ():
            validate.positive(class_weights=weight)
            validate.finite(class_weights=weight)

    def per_example(self, outputs: Tensor, targets: Tensor) -> Tensor:
        from hoarfrost import losses

        _check_batch(outputs, targets, real=False)
        return losses.cross_entropy(
            outputs, targets, weight=self.class_weights, label_smoothing=self.label_smoothing
        )  # fmt: skip

    def outputs(self, classes: int | None) -> int:
        if classes is None:
            raise _no_classes("cross_entropy")
        if self.class_weights is not None and len(self.class_weights) != classes:
            raise InvalidValue(
                f"class_weights has {len(self.class_weights)} numbers, and the data set has {classes} classes: give "
                "one for each"
            )
        return classes


@component("loss", "binary")
@dataclass(frozen=True)
class Binary(Loss):
    """Binary cross entropy between the sigmoid of one output and a label 0 or 1: classification into two classes.

    Args:
        positive_weight: the factor of the loss of examples with the label 1.

    >>> import torch
    >>> Binary(positive_weight=3.0).per_example(torch.zeros(2, 1), torch.tensor([0, 1]))
    tensor([0.6931, 2.0794])
    """

    metrics = (*Loss.metrics, "auroc")

    positive_weight: Positive = 1.0

    def __post_init__(self) -> None:
        validate.positive(positive_weight=self.positive_weight)
        validate.finite(positive_weight=self.positive_weight)

    def per_example(self, outputs: Tensor, targets: Tensor) -> Tensor:
        from hoarfrost import losses

        _check_batch(outputs, targets, real=False, width=1)
        return losses.binary_cross_entropy(outputs.squeeze(1), targets, pos_weight=self.positive_weight)

    def outputs(self, classes: int | None) -> int:
        if classes is None:
            raise _no_classes("binary")
        if classes > 2:
            raise InvalidValue(
                "the loss binary takes the labels 0 and 1, and the data set has more classes: use loss.kind = "
                "cross_entropy"
            )
        return 1

    def logits(self, outputs: Tensor) -> Tensor | None:
        import torch

        return torch.cat([torch.zeros_like(outputs), outputs], 1)  # whose softmax is the sigmoid


@component("loss", "squared_error")
@dataclass(frozen=True)
class SquaredError(Regression):
    """The squared difference between one output and a real number: regression.

    >>> import torch
    >>> SquaredError()(torch.tensor([[1.0], [2.0]]), torch.tensor([0.0, 5.0]))
    tensor(5.)
    """

    def per_example(self, outputs: Tensor, targets: Tensor) -> Tensor:
        from hoarfrost import losses

        _check_batch(outputs, targets, real=True, width=1)
        return losses.squared_error(outputs.squeeze(1), targets)


@component("loss", "huber")
@dataclass(frozen=True)
class Huber(Regression):
    """Half the squared difference up to a threshold, and a straight line beyond it (`torch.nn.HuberLoss`): regression
    in which outliers count less.

    Args:
        threshold: the difference from which on the loss grows in a straight line.

    >>> import torch
    >>> Huber(threshold=1.0).per_example(torch.tensor([[1.0], [2.0]]), torch.tensor([0.5, 5.0]))
    tensor([0.1250, 2.5000])
    """

    threshold: Positive = 1.0

    def __post_init__(self) -> None:
        validate.positive(threshold=self.threshold)
        validate.finite(threshold=self.threshold)

    def per_example(self, outputs: Tensor, targets: Tensor) -> Tensor:
        from hoarfrost import losses

        _check_batch(outputs, targets, real=True, width=1)
        return losses.huber(outputs.squeeze(1), targets, delta=self.threshold)


CROSS_ENTROPY = CrossEntropy()


def build(wanted: schema.ComponentTable) -> Loss:
    """The loss; the recipe's keys are its arguments.

    >>> build(schema.table("loss", "huber")(threshold=2.0))
    Huber(threshold=2.0)
    """
    loss: Loss = schema.build(wanted, "loss")
    return loss


def outputs(wanted: schema.ComponentTable, loss: Loss, classes: int | None) -> int:
    """The number of outputs that the recipe's model needs; what its loss refuses is told under its place.

    >>> wanted = schema.table("loss", "cross_entropy")(class_weights=(1.0, 2.0))
    >>> outputs(wanted, build(wanted), 3)
    Traceback (most recent call last):
        ...
    hoarfrost.errors.InvalidValue: loss.class_weights has 2 numbers, and the data set has 3 classes: give one for each
    """
    try:
        return loss.outputs(classes)
    except InvalidValue as error:
        raise InvalidValue(wanted._component.placed("loss", str(error))) from error


def _no_classes(kind: str) -> InvalidValue:
    return InvalidValue(
        f"the loss {kind} needs classes, and the targets of this data set are real numbers: store them as integers "
        "from 0, or choose a loss for real numbers with loss.kind = squared_error or huber"
    )


def _check_batch(outputs: Tensor, targets: Tensor, *, real: bool, width: int | None = None) -> None:
    """Outputs [B, width] and targets [B]. [B, 1] against [B] would be broadcast to [B, B], which mixes all examples.

    Messages do not tell B: the size of a batch is private.
    """
    if outputs.dim() != 2 or (width is not None and outputs.shape[1] != width):
        wanted = "classes" if width is None else str(width)
        got = ", ".join(map(str, ("examples", *outputs.shape[1:])))
        raise InvalidValue(f"the model's outputs must have the shape [examples, {wanted}], got [{got}]")
    if targets.dim() != 1 or len(targets) != len(outputs):
        raise InvalidValue("targets must have the shape [examples], with one for each row of outputs")
    if targets.is_floating_point() != real:
        raise InvalidValue(f"targets must be {'real numbers' if real else 'integers (classes)'}, got {targets.dtype}")
