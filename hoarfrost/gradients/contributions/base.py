"""The base class of all contributions, and the mask that fits every one of them."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from hoarfrost.gradients.contributions.rounding import in_pieces, squares
from hoarfrost.masks import PartialMask


class Contribution(ABC):
    """Per-example gradients of one use of one parameter."""

    examples: int

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """‖gradient‖² of each example, [B]; never below the truth by more than rounding."""

    @abstractmethod
    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σ_b weights[b] · gradient_b, in the parameter's shape."""

    @abstractmethod
    def instantiate(self) -> Tensor:
        """The gradients themselves, [B, *parameter.shape]."""

    @abstractmethod
    def take(self, index: Tensor) -> Contribution:
        """The same for the examples of ``index`` only."""

    def inner_products(self, other: Contribution) -> tuple[Tensor, Tensor] | None:
        """⟨gradient, other's gradient⟩ of each example and its rounding scale, or None where no short way is known."""
        return None

    def exact_squared_norms(self, index: Tensor) -> Tensor:
        """‖gradient‖² of some examples, where squares overflow in float32: from gradients written out, in float64."""
        written = self.take(index[:1]).instantiate().numel()
        found = in_pieces(index, written, lambda some: squares(self.take(some).instantiate().double()))
        return found + self.take(index).hidden_rounding()

    def masked(self, mask: PartialMask) -> Contribution:
        """The same with zeros at frozen coordinates."""
        return Masked(self, mask)

    def hidden_rounding(self) -> Tensor | float:
        """Rounding in `weighted_sum` that the norm of written-out gradients cannot see, squared, for each example.

        Factors scale one side of a product before it is formed: there, what is huge overflows and what is tiny is
        rounded, although the product itself may be of any size.
        """
        return 0.0


class Masked(Contribution):
    """Some elements of any contribution: written out for a few examples at a time, and forgotten again."""

    def __init__(self, whole: Contribution, mask: PartialMask):
        self.whole, self.mask = whole, mask
        self.examples = whole.examples

    def squared_norms(self) -> Tensor:
        everyone = torch.arange(self.examples, device=self.mask.mask.device)
        found = in_pieces(everyone, self.mask.mask.numel(), lambda some: squares(self.take(some).instantiate()))
        return found + self.hidden_rounding()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self.mask.zero_frozen_(self.whole.weighted_sum(weights))

    def hidden_rounding(self) -> Tensor | float:
        return self.whole.hidden_rounding()

    def instantiate(self) -> Tensor:
        return self.mask.zero_frozen_(self.whole.instantiate())

    def take(self, index: Tensor) -> Contribution:
        return type(self)(self.whole.take(index), self.mask)
