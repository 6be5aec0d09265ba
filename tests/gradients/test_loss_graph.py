"""What a plain backward() shows of its loss is said once, with the remedy; right losses are not accused."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.engines import announce, engine_for

ROWS = (5, 8, 3)
Loss = Callable[[Tensor, Tensor], Tensor]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def said(
    loss: Loss, *, parts: int = 1, shape: Callable[[int], tuple[int, ...]] = lambda k: (), **options: Any
) -> list[str]:
    """What is warned of in three batches of different sizes, each in so many parts."""
    network = model()
    engine = engine_for(network, **{"loss_reduction": "mean", **options})
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for k, rows in enumerate(ROWS):
            for part in range(parts):
                announce(engine, rows, first=part == 0, last=part == parts - 1)
                x = torch.randn(rows, *shape(k), 4)
                loss(network(x), torch.arange(rows) % 3).backward()
            engine.release()
    return [str(each.message) for each in seen if "target size" not in str(each.message)]


def tokens(k: int) -> tuple[int]:
    """Texts are padded to the longest of each batch."""
    return (4 + k,)


def per_example(output: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(output, y, reduction="none")


WEIGHT = torch.tensor([1.0, 100.0, 1.0])
OWN = torch.arange(15.0).requires_grad_()  # of a loss, and no part of the model
WRONG: dict[str, tuple[Loss, dict[str, Any], str]] = {
    "class weights": (nn.CrossEntropyLoss(weight=WEIGHT), {}, "class weights .*optimizer.backward"),
    "class weights and smoothing": (nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.1), {}, "class weights"),
    "class weights under sum": (nn.CrossEntropyLoss(weight=WEIGHT), {"loss_reduction": "sum"}, "class weights"),
    "padded tokens": (lambda o, y: o.square().mean(), {"shape": tokens}, "padded texts.*hoarfrost.losses"),
    "padded tokens, cross entropy": (
        lambda o, y: F.cross_entropy(o.flatten(0, 1), y.repeat_interleave(o.shape[1])),
        {"shape": tokens}, "padded texts",
    ),
    "padded tokens, cross entropy of [B, C, T]": (
        lambda o, y: F.cross_entropy(o.mT, y[:, None].expand(o.shape[:2])), {"shape": tokens}, "padded texts",
    ),
    "[B, 1] against [B]": (lambda o, y: F.mse_loss(o[:, :1], y.float()), {}, r"\[B, 1\] against \[B\]"),
    "[B, 1] against [B], by hand": (lambda o, y: ((o[:, :1] - y) ** 2).mean(), {}, r"\[B, 1\] against \[B\]"),
    "[B, 1] against [B], binary": (
        lambda o, y: F.smooth_l1_loss(o[:, :1], y.float()), {}, r"\[B, 1\] against \[B\]",
    ),
    "a selection": (lambda o, y: per_example(o, y)[y == 0].mean(), {}, "a selection"),
    "a sum": (lambda o, y: per_example(o, y).sum(), {}, 'loss_reduction="sum"'),
    "torch's sum": (lambda o, y: F.cross_entropy(o, y, reduction="sum"), {}, 'loss_reduction="sum"'),
    "sums of two kinds": (
        lambda o, y: F.cross_entropy(o, y, reduction="sum") + 0.5 * o.square().sum(), {}, 'loss_reduction="sum"',
    ),
    "a mean under sum": (lambda o, y: per_example(o, y).mean(), {"loss_reduction": "sum"}, 'loss_reduction="mean"'),
    "a sum by how many are not ignored": (
        lambda o, y: per_example(o, y).where(y != 0, 0).sum() / (y != 0).sum(), {}, "a selection",
    ),
    "a product by the sum of weights": (lambda o, y: per_example(o, y) @ WEIGHT[y] / WEIGHT[y].sum(), {}, "weights"),
    "two sums by one number": (
        lambda o, y: (per_example(o, y).sum() + 0.1 * o.square().sum()) / (y == 0).sum().item(), {}, "a selection",
    ),
    "a sum by a constant": (lambda o, y: per_example(o, y).sum() / 4, {}, "divided by a constant"),
    "a sum by the number of rows, under sum": (
        lambda o, y: per_example(o, y).sum() / len(y), {"loss_reduction": "sum"}, 'loss_reduction="mean"',
    ),
    "labels that are ignored": (lambda o, y: F.cross_entropy(o, y - 1, ignore_index=-1), {}, "a selection"),
    "a mean over two dimensions": (lambda o, y: o.square().mean((0, 1, 2)), {"shape": tokens}, "padded texts"),
    "the largest": (lambda o, y: per_example(o, y).max(), {}, "takes the largest"),
    "the largest of all numbers": (lambda o, y: F.cross_entropy(o, y) + o.amax(), {}, "takes the largest"),
    "the median": (lambda o, y: per_example(o, y).median(), {}, "takes the largest"),
    "sorted": (lambda o, y: (per_example(o, y).sort().values * torch.arange(len(y))).mean(), {}, "sorts examples"),
    "the two hardest": (lambda o, y: per_example(o, y).topk(2).values.sum() / len(y), {}, "sorts examples"),
    "thirds that are divided": (lambda o, y: F.cross_entropy(o, y) / 3, {"parts": 3}, "parts are added up"),
}  # fmt: skip
RIGHT: dict[str, tuple[Loss, dict[str, Any]]] = {
    "a mean": (F.cross_entropy, {}),
    "a mean in parts": (F.cross_entropy, {"parts": 3}),
    "half of a mean": (lambda o, y: F.cross_entropy(o, y) / 2, {}),
    "label smoothing": (nn.CrossEntropyLoss(label_smoothing=0.1), {}),
    "a sum": (lambda o, y: per_example(o, y).sum(), {"loss_reduction": "sum"}),
    "a sum by the number of rows": (lambda o, y: per_example(o, y).sum() / len(y), {}),
    "divided first": (lambda o, y: (per_example(o, y) / len(y)).sum(), {}),
    "weights that are not divided": (lambda o, y: (per_example(o, y) * WEIGHT[y]).mean(), {}),
    "a mean over all numbers of an example": (lambda o, y: F.mse_loss(o, torch.zeros_like(o)), {}),
    "tokens, each text's own mean": (lambda o, y: o.square().mean((1, 2)).mean(), {"shape": tokens}),
    "texts of one length": (lambda o, y: o.square().mean(), {"shape": lambda k: (4,)}),
    "several losses": (
        lambda o, y: torch.stack([F.cross_entropy(o, y), o.square().mean(), o.abs().mean()]).mean(), {},
    ),
    "a sum by the rows, and by a constant": (lambda o, y: per_example(o, y).sum() / len(y) / 4, {}),
    "a sum by a constant, and by the rows": (lambda o, y: per_example(o, y).sum() / 4 / torch.tensor(len(y)), {}),
    "divided first, and by a constant": (lambda o, y: (per_example(o, y) / len(y)).sum() / 4, {}),
    "a sum by a constant, under sum": (lambda o, y: per_example(o, y).sum() / 4, {"loss_reduction": "sum"}),
    "a sum by what falls from step to step, under sum": (
        lambda o, y: per_example(o, y).sum() / (1 + 0.5 / len(y)), {"loss_reduction": "sum"},
    ),
    "a sum by a number that is learned, under sum": (
        lambda o, y: per_example(o, y).sum() / (OWN[0] + len(y)), {"loss_reduction": "sum"},
    ),
    "a mean by what falls from step to step": (lambda o, y: F.cross_entropy(o, y) / (1 + 0.5 / len(y)), {}),
    "a factor that changes": (lambda o, y: len(y) ** 2 * 0.1 * o.square().sum() / len(y), {}),
    "losses in turn": (lambda o, y: F.cross_entropy(o, y) if len(y) == 5 else o.square().mean(), {}),
    "the largest of each": (lambda o, y: per_example(o, y).mean() + o.max(1).values.mean() + o.amax(1).mean(), {}),
    "each one sorted": (lambda o, y: o.sort(1).values.diff().mean() + o.median(1).values.mean(), {}),
    "a column's largest of one": (lambda o, y: o[:, :1].max(1).values.mean(), {}),
    "each clamped": (lambda o, y: per_example(o, y).clamp(max=1).mean() + (per_example(o, y) - 1).abs().mean(), {}),
    "a weight of one's own": (
        lambda o, y: F.cross_entropy(o, y) * OWN.max() + OWN.abs().sum().clamp(max=1) * o.square().mean(), {},
    ),
    "VAE": (lambda o, y: F.mse_loss(o, o.detach() + 1, reduction="sum") / len(y) + o.exp().sum(1).mean(), {}),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_a_loss_that_is_no_mean_over_examples_is_said_once(kind: str) -> None:
    loss, options, message = WRONG[kind]
    found = said(loss, **options)
    assert len(found) == len(set(found)), "once"
    assert any(re.search(message, each) for each in found), found


@pytest.mark.parametrize("kind", RIGHT)
def test_right_losses_are_not_accused(kind: str) -> None:
    loss, options = RIGHT[kind]
    assert said(loss, **options) == []


def test_one_loss_per_example_is_not_looked_at() -> None:
    network = model()
    engine = engine_for(network, loss_reduction="mean")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows in ROWS:
            announce(engine, rows)
            losses = per_example(network(torch.randn(rows, 4)), torch.arange(rows) % 3)
            with engine.added_up(rows):
                losses.sum().backward()
            engine.release()


def test_where_the_graph_cannot_be_found_nothing_is_said() -> None:
    """`torch.autograd.backward` is the way to start a pass; who calls torch's engine directly is left alone."""

    def straight(output: Tensor, y: Tensor) -> Any:
        loss = F.cross_entropy(output, y, weight=WEIGHT)

        class Direct:
            def backward(self) -> None:
                torch.autograd.Variable._execution_engine.run_backward(
                    (loss,), (torch.ones(()),), False, False, (), allow_unreachable=True, accumulate_grad=True
                )

        return Direct()

    assert said(straight) == []


def test_the_line_that_calls_backward_is_named() -> None:
    network = model()
    engine = engine_for(network, loss_reduction="mean")
    announce(engine, 5)
    loss = F.cross_entropy(network(torch.randn(5, 4)), torch.arange(5) % 3, weight=WEIGHT)
    with pytest.warns(UserWarning, match="class weights") as seen:
        loss.backward()
    assert [each.filename for each in seen] == [__file__]


def test_nodes_of_another_torch_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(node: Any) -> Any:
        raise AttributeError

    monkeypatch.setattr("hoarfrost.gradients.loss_graph._reduction", unknown)
    assert said(F.cross_entropy) == []
