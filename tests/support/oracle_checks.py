"""A model's private copy against `tests.oracle`: same outputs, same clipped sums."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from hoarfrost.clipping import Local
from hoarfrost.gradients import Engine
from hoarfrost.nested import map_tensors
from hoarfrost.sampling import Chunk
from tests import oracle
from tests.gradients.settings import projected


def total_loss(model: nn.Module, batch: Any) -> Tensor:
    return projected(model(batch)).sum()


def private_sums(
    plain: nn.Module, batch: Any, clip_norm: float, views: int = 1, seed: int = 0
) -> tuple[Tensor, dict[str, Tensor]]:
    """The output of a private copy of the model, and its clipped sums."""
    model = copy.deepcopy(plain)
    names = {p: name for name, p in model.named_parameters()}
    live = {name: p for p, name in names.items() if p.requires_grad}
    engine = Engine(model, live, Local(clip_norm), loss_reduction="sum", views=views)
    engine.sums.tickets.hand_over(Chunk(examples=oracle._rows(batch, 0) // views, first=True, last=True))
    torch.manual_seed(seed)
    output = model(batch)
    projected(output).sum().backward()
    assert all(p.grad is None for p in names)
    return output, engine.release().sums


def assert_matches_oracle(plain: nn.Module, batch: Any, views: int = 1) -> None:
    """Outputs and clipped sums of a private copy are those of the plain model, with half of the examples clipped."""
    per_example = oracle.gradients(plain, batch, total_loss, views=views)
    _assert_equal(plain, batch, per_example, views)


def assert_matches_oracle_under_dropout(plain: nn.Module, batch: Any) -> None:
    """The same where the random numbers belong to the whole batch: it runs as one, and one row's loss is taken."""

    def row_gradient(row: int) -> dict[str, Tensor]:
        torch.manual_seed(0)
        found = torch.autograd.grad(projected(plain(batch))[row], list(plain.parameters()))
        return dict(zip(dict(plain.named_parameters()), found, strict=True))

    _assert_equal(plain, batch, [row_gradient(row) for row in range(oracle._rows(batch, 0))])


def _assert_equal(plain: nn.Module, batch: Any, per_example: list[dict[str, Tensor]], views: int = 1) -> None:
    clip_norm = oracle.halving_norm(per_example)
    expected = oracle.clipped_sum(per_example, clip_norm)
    output, found = private_sums(plain, batch, clip_norm, views)
    torch.manual_seed(0)
    torch.testing.assert_close(output, plain(batch))
    assert found.keys() == expected.keys()
    for name, want in expected.items():
        torch.testing.assert_close(
            found[name], want, rtol=1e-4, atol=2e-5 * clip_norm, msg=lambda m, n=name: f"{n}: {m}"
        )


def to_dtype(batch: Any, dtype: torch.dtype) -> Any:
    return map_tensors(lambda t: t.to(dtype) if t.is_floating_point() else t, batch)
