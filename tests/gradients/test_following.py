"""What is made from parameters alone is followed to where it meets examples, or the parameter is refused by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hoarfrost.errors import NotPrivate
from tests import oracle
from tests.support.engines import announce, engine_for, flat, sums_so_far

WIDTH = 4
SIZES = (3, WIDTH, 7)  # batches: also one that is as long as the layers are wide


class Bare(nn.Module):
    """A module with a layer, and parameters that it uses in its own way."""

    def __init__(self, use: Callable[[Any, Tensor], Any], *shape: int) -> None:
        super().__init__()
        self.layer, self.use = nn.Linear(WIDTH, WIDTH), use
        self.table = {"index": torch.tensor([2, 0, 1, 3])}  # no buffer
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.own, self.other = nn.Parameter(torch.randn(shape)), nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Any:
        return self.use(self, self.layer(x) + self.other)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, scale = ctx.saved_tensors
        return g * scale, (g * x).sum(0)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return g @ b.T, a.T @ g


def written(module: Any, x: Tensor) -> Tensor:
    scale = module.own + 1
    scale.mul_(module.other)
    return x * scale


def written_through_a_view(module: Any, x: Tensor) -> Tensor:
    scale = module.own + 1
    scale[:2].mul_(module.other[:2])
    return x * scale


def written_into_zeros(module: Any, x: Tensor) -> Tensor:
    matrix = torch.zeros(WIDTH, WIDTH)
    matrix[module.table["index"], module.table["index"]] = module.own
    return x @ matrix


def written_into_an_identity(module: Any, x: Tensor) -> Tensor:
    matrix = torch.eye(WIDTH)
    matrix[module.table["index"][0]] = module.own
    row = matrix[1]
    row.mul_(module.own)
    return x @ matrix


def written_afterwards(module: Any, x: Tensor) -> Tensor:
    scale = module.own + 1
    x = x + scale
    scale.add_(module.other)
    return x * scale


def with_a_norm_that_counts_as_constant(module: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        size = module.own.norm()
    return x * (module.own / size)


def multiplied_with_a_frozen_weight(module: Any, x: Tensor) -> Tensor:
    transposed = nn.Parameter(module.frozen.weight.T)
    return x @ (module.own @ transposed) + module.frozen.bias


class Returning(nn.Module):
    """Is returned by another module what that made from its parameter, and lets it meet the examples."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Bare(lambda m, x: (x, m.own.exp()), WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x, scale = self.inner(x)
        return x * scale


RIGHT: dict[str, Callable[[], nn.Module]] = {
    "written": lambda: Bare(written, WIDTH),
    "written through a view": lambda: Bare(written_through_a_view, WIDTH),
    "written into an identity": lambda: Bare(written_into_an_identity, WIDTH),
    "a constant norm": lambda: Bare(with_a_norm_that_counts_as_constant, WIDTH),
    "in a function of its own": lambda: Bare(lambda m, x: x @ Product.apply(m.own, m.own.exp()), WIDTH, WIDTH),
    "a layer on an identity": lambda: Bare(lambda m, x: m.layer(x) + x @ m.layer(torch.eye(WIDTH)) * m.own, WIDTH),
    "with a frozen weight": lambda: Bare(multiplied_with_a_frozen_weight, WIDTH, WIDTH),
    "for a number of heads": lambda: Bare(lambda m, x: (x.unflatten(1, (2, 2)) + m.own.expand(2, 2)).flatten(1), 1, 2),
    "as often as it is wide": lambda: Bare(lambda m, x: x @ m.own.repeat(WIDTH, 1), WIDTH),
    "written into zeros": lambda: Bare(written_into_zeros, WIDTH),
    "for each example": lambda: Bare(lambda m, x: x * m.own.expand(len(x), -1), 1, WIDTH),
    "with ones for each example": lambda: Bare(lambda m, x: x + torch.ones(len(x), WIDTH) * m.own, WIDTH),
    "with a trained weight of a layer": lambda: Bare(lambda m, x: x @ (m.own @ m.layer.weight), WIDTH, WIDTH),
    "returned to another module": Returning,
}


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("name", RIGHT)
def test_a_gradient_is_each_example_s_own(name: str, rows: int) -> None:
    torch.manual_seed(0)
    model, x = RIGHT[name](), torch.randn(rows, WIDTH)
    plain = copy.deepcopy(model)
    per_example = oracle.gradients(plain, x, lambda model, x: model(x).square().sum())
    norm = oracle.halving_norm(per_example)
    engine = engine_for(model, norm)
    announce(engine, 6)  # is looked at with a batch of another length
    engine.model(torch.randn(6, WIDTH)).sum().backward()
    engine.release()
    announce(engine, rows)
    engine.model(x).square().sum().backward()
    torch.testing.assert_close(
        flat(sums_so_far(engine)), flat(oracle.clipped_sum(per_example, norm)), rtol=1e-3, atol=1e-5 * norm
    )


REFUSED: dict[str, Callable[[], nn.Module]] = {
    "in a function with the examples": lambda: Bare(lambda m, x: Scaled.apply(x, m.own.exp()), WIDTH),
    "written after it met the examples": lambda: Bare(written_afterwards, WIDTH),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_parameter_that_is_not_followed_is_never_trained_on_noise_alone(name: str) -> None:
    torch.manual_seed(0)
    engine = engine_for(REFUSED[name]())
    announce(engine, 5)
    with pytest.raises(NotPrivate, match=r"own"):
        engine.model(torch.randn(5, WIDTH)).square().sum().backward()
