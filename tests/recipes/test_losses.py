"""Losses: each example's own, as a plain loop computes it, and no example moves another's."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import hoarfrost
from hoarfrost.errors import InvalidValue, NotPrivate
from hoarfrost.observers import Observer, Released
from hoarfrost.recipes import losses
from hoarfrost.recipes.losses import Binary, CrossEntropy, Huber, Loss, SquaredError
from hoarfrost.recipes.schema import Recipe, table
from hoarfrost.train.loop import train
from tests.support.recipes import tiny

CLASSES = 3


def log_softmax(row: list[float]) -> list[float]:
    top = max(row)
    total = math.log(sum(math.exp(each - top) for each in row)) + top
    return [each - total for each in row]


def cross_entropy(
    row: list[float], label: int, smoothing: float = 0.0, weights: tuple[float, ...] = (1, 1, 1)
) -> float:
    logs = log_softmax(row)
    spread = sum(w * each for w, each in zip(weights, logs, strict=True)) / len(row)
    return -(1 - smoothing) * weights[int(label)] * logs[int(label)] - smoothing * spread


def binary(row: list[float], label: int, weight: float = 1.0) -> float:
    share = 1 / (1 + math.exp(-row[0]))
    return -weight * math.log(share) if label else -math.log(1 - share)


def huber(row: list[float], target: float, threshold: float) -> float:
    gap = abs(row[0] - target)
    return gap**2 / 2 if gap <= threshold else threshold * (gap - threshold / 2)


# Each loss with the loss of one example, in plain numbers.
LOSSES: dict[str, tuple[Loss, Callable[[list[float], Any], float]]] = {
    "cross entropy": (CrossEntropy(), cross_entropy),
    "smoothed": (CrossEntropy(label_smoothing=0.2), lambda row, y: cross_entropy(row, y, 0.2)),
    "weighted": (
        CrossEntropy(class_weights=(0.5, 1.0, 20.0)),
        lambda row, y: cross_entropy(row, y, 0.0, (0.5, 1.0, 20.0)),
    ),
    "smoothed and weighted": (
        CrossEntropy(label_smoothing=0.1, class_weights=(0.5, 1.0, 20.0)),
        lambda row, y: cross_entropy(row, y, 0.1, (0.5, 1.0, 20.0)),
    ),
    "binary": (Binary(), binary),
    "binary, weighted": (Binary(positive_weight=15.0), lambda row, y: binary(row, y, 15.0)),
    "squared error": (SquaredError(), lambda row, y: (row[0] - y) ** 2),
    "huber": (Huber(), lambda row, y: huber(row, y, 1.0)),
    "huber, narrow": (Huber(threshold=0.25), lambda row, y: huber(row, y, 0.25)),
}
every_loss = pytest.mark.parametrize("name", LOSSES)


def classes_of(loss: Loss) -> int | None:
    return None if loss.real_targets else 2 if isinstance(loss, Binary) else CLASSES


def targets_for(loss: Loss, size: int) -> Tensor:
    classes = classes_of(loss)
    return torch.randn(size) if classes is None else torch.arange(size) % classes


def model_for(loss: Loss) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, loss.outputs(classes_of(loss))))


@every_loss
def test_each_loss_is_that_of_a_plain_loop(name: str) -> None:
    loss, one = LOSSES[name]
    torch.manual_seed(1)
    targets = targets_for(loss, 12)
    outputs = torch.randn(12, loss.outputs(classes_of(loss))) * 2
    expected = torch.tensor([one(row, y) for row, y in zip(outputs.tolist(), targets.tolist(), strict=True)])
    torch.testing.assert_close(loss.per_example(outputs, targets), expected)
    torch.testing.assert_close(loss(outputs, targets), expected.mean())


@every_loss
def test_an_empty_batch_has_no_mean_and_can_be_differentiated(name: str) -> None:
    loss, _ = LOSSES[name]
    outputs = torch.zeros(0, loss.outputs(classes_of(loss)), requires_grad=True)
    mean = loss(outputs, targets_for(loss, 0))
    assert mean.isnan()
    mean.backward()


@every_loss
def test_no_example_has_a_say_in_another_s_loss(name: str) -> None:
    loss, _ = LOSSES[name]
    batch = (torch.randn(9, 4), targets_for(loss, 9))
    hoarfrost.check_independence(model_for(loss), batch, lambda outputs, batch: loss(outputs, batch[1]))


def test_the_usual_ways_to_mix_examples_are_seen_by_that_check() -> None:
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([0.5, 1.0, 20.0]))
    batch = (torch.randn(9, 4), torch.arange(9) % 3)
    with pytest.raises(NotPrivate, match="the loss"):
        hoarfrost.check_independence(
            model_for(CrossEntropy()), batch, lambda outputs, batch: weighted(outputs, batch[1])
        )
    batch = (torch.randn(9, 4), torch.randn(9))
    with pytest.raises(NotPrivate, match="the loss"):
        hoarfrost.check_independence(
            model_for(SquaredError()), batch, lambda outputs, batch: ((outputs - batch[1]) ** 2).mean(1)
        )


C = 1.5


class Sum(Observer):
    """Keeps the clipped sum of the last step."""

    def on_release(self, released: Released) -> None:
        self.flat = torch.cat([t.flatten().clone() for t in released.clipped.values()])


def clipped_sum(loss: Any, x: Tensor, y: Tensor) -> Tensor:
    """What one real step releases without noise."""
    model = model_for(loss)
    private = hoarfrost.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), TensorDataset(x, y), sample_rate=1.0, steps=1,
        noise_multiplier=0.0, delta=1e-3, clip=hoarfrost.clip.Local(C),
    )  # fmt: skip
    seen = Sum()
    private.observe(seen)
    for _ in train(private, TensorDataset(x, y), device=torch.device("cpu"), loss=loss):
        pass
    return seen.flat


def distances(loss: Any) -> list[float]:
    """How far hostile examples move the sum: large ones, and such with a target that nobody else has."""
    torch.manual_seed(2)
    classes = classes_of(loss)
    x, y = torch.randn(20, 4), torch.randn(20) if classes is None else torch.arange(20) % (classes - 1)
    before = clipped_sum(loss, x, y)
    found = []
    for scale in (0.0, 1.0, 1e3, 1e18):
        for target in (0, 1, -1e6) if classes is None else (0, classes - 1):
            more = torch.cat([x, scale * torch.randn(1, 4)]), torch.cat([y, torch.tensor([target], dtype=y.dtype)])
            found.append(float((clipped_sum(loss, *more) - before).norm()))
    return found


@every_loss
def test_one_example_moves_the_sum_of_a_real_step_by_at_most_the_bound(name: str) -> None:
    moved = distances(LOSSES[name][0])
    assert max(moved) <= C * (1 + 1e-5)
    assert max(moved) > 0.1 * C  # something was added


def test_weights_that_are_divided_by_their_sum_would_move_it_further() -> None:
    class Divided(CrossEntropy):
        def per_example(self, outputs: Tensor, targets: Tensor) -> Tensor:
            weight = torch.tensor([1.0, 1.0, 200.0])
            share = len(targets) / weight[targets].sum()
            return share * F.cross_entropy(outputs, targets, weight=weight, reduction="none")

    assert max(distances(Divided())) > 1.5 * C


SHAPES = [
    (SquaredError(), torch.zeros(4), torch.zeros(4)),
    (SquaredError(), torch.zeros(4, 2), torch.zeros(4)),
    (SquaredError(), torch.zeros(4, 1), torch.zeros(4, 1)),
    (SquaredError(), torch.zeros(4, 1), torch.zeros(1)),
    (SquaredError(), torch.zeros(4, 1), torch.zeros(4, dtype=torch.long)),
    (Huber(), torch.zeros(4, 1, 1), torch.zeros(4)),
    (Binary(), torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)),
    (Binary(), torch.zeros(4, 1), torch.zeros(4)),
    (Binary(), torch.zeros(4, 1), torch.zeros(4, 1, dtype=torch.long)),
    (CrossEntropy(), torch.zeros(4, 3), torch.zeros(4, 3)),
    (CrossEntropy(), torch.zeros(4, 3, 2), torch.zeros(4, 2, dtype=torch.long)),
    (CrossEntropy(), torch.zeros(4, 3), torch.zeros(3, dtype=torch.long)),
]


@pytest.mark.parametrize(("loss", "outputs", "targets"), SHAPES)
def test_shapes_that_would_be_broadcast_are_refused_without_the_batch_s_size(
    loss: Loss, outputs: Tensor, targets: Tensor
) -> None:
    with pytest.raises(InvalidValue, match="must") as caught:
        loss(outputs, targets)
    assert "4" not in str(caught.value).replace("float64", "").replace("int64", "")


def test_a_loss_of_ones_own_that_adds_up_examples_is_refused() -> None:
    class Summed(SquaredError):
        def per_example(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return super().per_example(outputs, targets).sum()

    with pytest.raises(InvalidValue, match=r"Summed\.per_example must give one number for each example"):
        Summed()(torch.zeros(4, 1), torch.zeros(4))


# What a recipe says of the loss, and what is answered.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"kind": "hinge"}, "loss.kind cannot be|union_tag_invalid"),
    ({"kind": "cross_entropy", "label_smoothing": 1.0}, "label_smoothing"),
    ({"kind": "cross_entropy", "label_smoothing": -0.1}, "label_smoothing"),
    ({"kind": "cross_entropy", "class_weights": []}, "class_weights needs a number for each class, got none"),
    ({"kind": "cross_entropy", "class_weights": [1.0, -1.0]}, "class_weights must be above 0"),
    ({"kind": "cross_entropy", "class_weights": [1.0, 0.0]}, "class_weights must be above 0"),
    ({"kind": "cross_entropy", "class_weights": [1.0, math.inf]}, "class_weights must be finite"),
    ({"kind": "cross_entropy", "class_weights": [math.nan]}, "class_weights must be a number"),
    ({"kind": "cross_entropy", "class_weights": 2.0}, "class_weights"),
    ({"kind": "cross_entropy", "class_weights": [1.0] * 65}, "class_weights"),
    ({"kind": "cross_entropy", "threshold": 1.0}, "threshold"),
    ({"kind": "binary", "positive_weight": 0.0}, "positive_weight must be above 0"),
    ({"kind": "huber", "threshold": -1.0}, "threshold must be above 0"),
    ({"kind": "squared_error", "weight": 1.0}, "weight"),
]


@pytest.mark.parametrize(("wanted", "message"), WRONG)
def test_a_recipe_with_a_wrong_loss_is_refused(wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny(loss=wanted)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CrossEntropy(label_smoothing=1.0), "label_smoothing must be below 1"),
        (lambda: CrossEntropy(class_weights=(1.0, -1.0)), "class_weights must be above 0"),
        (lambda: Binary(positive_weight=math.inf), "positive_weight must be finite"),
        (lambda: Huber(threshold=0.0), "threshold must be above 0"),
    ],
)
def test_a_wrong_loss_is_refused_in_python_too(make: Callable[[], Loss], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        make()


MISFITS = [
    (CrossEntropy(), None, "cross_entropy needs classes.*: store them as integers.*, or choose .*loss.kind = squared"),
    (Binary(), None, "binary needs classes.*: store them as integers"),
    (Binary(), 3, "takes the labels 0 and 1, and the data set has more classes: use loss.kind = cross_entropy"),
    (SquaredError(), 10, "takes real numbers, and the data set has classes: use loss.kind = cross_entropy"),
    (CrossEntropy(class_weights=(1.0, 2.0)), 3, "class_weights has 2 numbers, and the data set has 3 classes"),
]


@pytest.mark.parametrize(("loss", "classes", "message"), MISFITS)
def test_targets_that_the_loss_does_not_take_are_refused_in_one_line(
    loss: Loss, classes: int | None, message: str
) -> None:
    with pytest.raises(InvalidValue, match=message) as caught:
        loss.outputs(classes)
    assert "\n" not in str(caught.value)


def test_a_recipe_without_the_table_has_cross_entropy() -> None:
    assert losses.build(tiny().loss) == CrossEntropy()
    assert losses.build(tiny(loss={"label_smoothing": 0.1}).loss) == CrossEntropy(label_smoothing=0.1)
    weighted = tiny(loss={"class_weights": [1, 2.5]}).loss  # whole numbers are numbers
    assert losses.build(weighted) == CrossEntropy(class_weights=(1.0, 2.5))
    again = Recipe.model_validate(tiny(loss={"kind": "huber"}).model_dump(mode="json"), strict=False)
    assert losses.build(again.loss) == Huber()


def test_a_mean_of_losses_has_the_gradients_that_torch_s_own_mean_has() -> None:
    """To the last bit: recipes from before there was a choice train as they did."""
    model, x, y = model_for(CrossEntropy()), torch.randn(33, 4), torch.arange(33) % 3
    other = copy.deepcopy(model)
    losses.build(table("loss", "cross_entropy")())(model(x), y).backward()
    F.cross_entropy(other(x), y).backward()
    for mine, torchs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine.grad, torchs.grad)
