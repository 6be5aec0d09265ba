"""A data set: what to train on, what to test on, and the number of classes if there are any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from hoarfrost import validate
from hoarfrost.data.texts import Texts
from hoarfrost.errors import InvalidValue

MAX_CLASSES = 1_000_000

Examples = TensorDataset | Texts


def batches(examples: Examples, size: int) -> DataLoader[Any]:
    """Examples and their targets, so many at a time.

    >>> [len(x) for x, y in batches(TensorDataset(torch.ones(5, 2), torch.zeros(5)), 3)]
    [3, 2]
    """
    return DataLoader(examples, batch_size=size, collate_fn=examples.collate if isinstance(examples, Texts) else None)


@dataclass(frozen=True)
class Splits:
    """A data set: ``train`` is private; ``test`` is public, or held out with consent.

    Both hold examples and their targets [N]: labels (int64, from 0 to ``classes`` - 1), or real numbers (float32) if
    ``classes`` is None. Examples are a tensor [N, ...], or `Texts`.

    Args:
        unit: what a difference of 1 between real targets is in their own units: they may have been scaled.
        standardize: places in an example whose means and spreads the model is to learn by a private release.
        people: whose each training example is [N], a number for each person; None where nobody is told to have several.
    """

    train: Examples
    test: Examples
    classes: int | None
    unit: float = 1.0
    standardize: tuple[int, ...] = ()
    people: Tensor | None = None

    @classmethod
    def of(
        cls,
        x_train: Tensor,
        y_train: Tensor,
        x_test: Tensor,
        y_test: Tensor,
        classes: int | None = None,
        *,
        real_targets: bool = False,
    ) -> Splits:
        """Checks that four tensors fit together, and converts them to the types that training uses.

        Args:
            x_train, x_test: examples. Floating point becomes float32; uint8 (pixels) is scaled to [0, 1]; other
                integers (token ids) stay integers.
            y_train, y_test: integers are labels, floating point is for regression.
            classes: the number of classes; by default from the largest label. State it if the presence of a rare class
                in the training data is private.
            real_targets: take integers for real numbers, too.

        Guarantees:
            Messages contain names, rules and the shape of one example, but neither values nor the number of examples.

        >>> pixels, labels = torch.zeros(5, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 1, 2, 1, 0])
        >>> Splits.of(pixels, labels, pixels[:2], labels[:2]).classes
        3
        >>> print(Splits.of(pixels, labels / 2, pixels[:2], labels[:2] / 2).classes)
        None
        """
        if classes is not None:
            validate.whole(classes=classes)
        real = real_targets or _both_real(y_train, y_test)
        if real and classes is not None:
            raise InvalidValue("classes is for integer labels, and y_train and y_test are real numbers: leave it out")
        train = _paired("train", x_train, y_train, real)
        test = _paired("test", x_test, y_test, real)
        if x_train.shape[1:] != x_test.shape[1:]:
            raise InvalidValue(
                f"training examples have shape {tuple(x_train.shape[1:])}, test examples {tuple(x_test.shape[1:])}"
            )
        if real:
            return cls(train, test, None)
        limit = classes or MAX_CLASSES
        largest = 0
        for part, labels in (("y_train", train.tensors[1]), ("y_test", test.tensors[1])):
            largest = max(largest, int(labels.max()))
            if largest >= limit:
                raise InvalidValue(f"{part} holds a label outside of 0 to {limit - 1}")
        return cls(train, test, classes or largest + 1)

    def scaled(self, mean: Sequence[float], std: Sequence[float]) -> Splits:
        """(x − mean) / std, with one value for every channel (an example's first dimension), or one for all.

        Args:
            mean, std: public constants. Computed from private examples they would leak information about them.

        >>> pixels, labels = torch.ones(5, 1, 4, 4), torch.tensor([0, 1, 2, 1, 0])
        >>> Splits.of(pixels, labels, pixels, labels).scaled([0.5], [0.25]).train[0][0].unique().item()
        2.0
        """
        for each in mean:
            validate.finite(mean=each)
        for each in std:
            validate.positive(std=each)
            validate.finite(std=each)
        if not self.real_inputs:
            raise InvalidValue("mean and std are for examples of real numbers; these are integers")
        examples = self.train.tensors[0]  # type: ignore[union-attr] # no texts
        channels = self.shape[0] if self.shape else 1
        for name, numbers in (("mean", mean), ("std", std)):
            if len(numbers) not in (1, channels):
                raise InvalidValue(
                    f"{name} has {len(numbers)} values, and an example has {channels} channels: give 1 or {channels}"
                )
        view = (-1, *[1] * (len(self.shape) - 1))
        shift, scale = (torch.tensor(numbers, dtype=examples.dtype).view(view) for numbers in (mean, std))
        train, test = (
            TensorDataset((part.tensors[0] - shift) / scale, part.tensors[1])  # type: ignore[union-attr]
            for part in (self.train, self.test)
        )
        return replace(self, train=train, test=test)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example; of texts, of the longest one that there may be."""
        return (self.train.longest,) if isinstance(self.train, Texts) else tuple(self.train.tensors[0].shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        """Of an example's numbers; of texts, of their token ids."""
        return torch.int64 if isinstance(self.train, Texts) else self.train.tensors[0].dtype

    @property
    def real_inputs(self) -> bool:
        """Whether a model is given real numbers, and not token ids."""
        return self.dtype.is_floating_point

    def blank(self) -> Any:
        """A batch of one example of nothing but zeros, as a model is called with it."""
        return self.test.blank() if isinstance(self.test, Texts) else torch.zeros_like(self.test.tensors[0][:1])

    @property
    def outputs(self) -> int:
        """The number of outputs that a model for it usually has: one for each class, or one for a real number."""
        return self.classes or 1


def _both_real(y_train: Tensor, y_test: Tensor) -> bool:
    real = {"y_train": y_train.is_floating_point(), "y_test": y_test.is_floating_point()}
    if len({*real.values()}) == 2:
        fractions, whole = sorted(real, key=real.__getitem__, reverse=True)
        raise InvalidValue(
            f"{fractions} must hold integers (the classes) as {whole} does, or {whole} real numbers as {fractions} does"
        )
    return all(real.values())


def _paired(part: str, x: Tensor, y: Tensor, real: bool) -> TensorDataset:
    examples, targets = _examples(f"x_{part}", x), (_real if real else _labels)(f"y_{part}", y)
    if len(x) != len(y):
        raise InvalidValue(
            f"x_{part} and y_{part} differ in length; give one {'target' if real else 'label'} for each example"
        )
    return TensorDataset(examples, targets)


def _examples(name: str, x: Tensor) -> Tensor:
    if x.dim() == 0 or x.numel() == 0:
        raise InvalidValue(f"{name} is empty")
    if x.dtype == torch.uint8:
        return x.to(torch.float32).div_(255)  # in place: a second copy would need most of the memory
    if x.is_floating_point():
        return x.to(torch.float32)
    if x.is_complex():
        raise InvalidValue(f"{name} holds complex numbers; use real ones")
    return x.to(torch.int64)


def _real(name: str, y: Tensor) -> Tensor:
    if y.dim() != 1:
        raise InvalidValue(f"{name} must have one dimension (a number for each example), not {y.dim()}")
    if y.is_complex() or y.dtype == torch.bool:
        raise InvalidValue(f"{name} must hold real numbers, got {y.dtype}")
    targets = y.to(torch.float32)
    if not bool(targets.isfinite().all()):  # NaN, infinity, or too large for float32
        raise InvalidValue(f"{name} holds a target that is not a finite number; remove or replace it")
    return targets


def _labels(name: str, y: Tensor) -> Tensor:
    if y.dim() != 1:
        raise InvalidValue(f"{name} must have one dimension (a class for each example), not {y.dim()}")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise InvalidValue(f"{name} must hold integers (the classes), got {y.dtype}")
    labels = y.to(torch.int64)  # first: not every integer type has min()
    if len(labels) and int(labels.min()) < 0:
        raise InvalidValue(f"{name} holds a negative label; classes are counted from 0")
    return labels
