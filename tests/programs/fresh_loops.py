"""Programs that were written to see what happens: loops of tutorials, rows that are picked, what stands in front."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.programs.corpus import Rows, refused, right, told, wrong
from tests.programs.examples import vectors
from tests.programs.loops import fit, two_layers
from tests.programs.running import MakePrivate


@right(vectors)
def distillation_and_label_noise_and_focal_weights(rows: Rows, make_private: MakePrivate) -> None:
    teacher = two_layers().eval()
    flips = torch.Generator().manual_seed(1)

    def loss(output: Tensor, y: Tensor) -> Tensor:
        y = torch.where(torch.rand((), generator=flips) < 0.0, (y + 1) % 3, y)
        surprise = F.cross_entropy(output, y, reduction="none")
        return ((1 - (-surprise).exp()) ** 2 * surprise).mean()

    model = two_layers()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for x, y in loader:
        with torch.no_grad():
            soft = F.softmax(teacher(x) / 2, 1)
        output = model(x)
        kl = F.kl_div(F.log_softmax(output / 2, 1), soft, reduction="batchmean") * 4
        optimizer.zero_grad()
        (0.5 * kl + 0.5 * loss(output, y)).backward()
        optimizer.step()


@right(vectors)
def stochastic_weight_averaging(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    averaged = torch.optim.swa_utils.AveragedModel(model)
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        averaged.update_parameters(model)
    averaged(torch.zeros(2, 6))


@right(vectors, oracle=False)
def look_ahead_every_other_step(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    slow = [p.detach().clone() for p in model.parameters()]
    for step in range(4):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        if step % 2:
            with torch.no_grad():
                for p, q in zip(model.parameters(), slow, strict=True):
                    p.copy_(q.lerp_(p, 0.5))


# Rows that the loop picks by comparing them.


def picking(rows: Rows, make_private: MakePrivate, pick: Any) -> None:
    model = two_layers()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for x, y in loader:
        with torch.no_grad():
            losses = F.cross_entropy(model(x), y, reduction="none")
        chosen = pick(losses)
        optimizer.zero_grad()
        F.cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()


@wrong(vectors, refused("another order", "optimizer.backward(losses)"))
def the_hardest_rows_run_once_more(rows: Rows, make_private: MakePrivate) -> None:
    picking(rows, make_private, lambda losses: losses.nan_to_num().argsort(descending=True)[: len(losses) // 2])


@wrong(vectors, told("decided by other examples"))
def the_hardest_losses_by_their_numbers(rows: Rows, make_private: MakePrivate) -> None:
    def loss(output: Tensor, y: Tensor) -> Tensor:
        losses = F.cross_entropy(output, y, reduction="none")
        return losses[losses.argsort(descending=True)[: len(y) // 2]].mean()

    fit(two_layers(), rows, make_private, loss)


@right(vectors)
def losses_in_another_order(rows: Rows, make_private: MakePrivate) -> None:
    def loss(output: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(output, y, reduction="none")[y.argsort()].mean()

    fit(two_layers(), rows, make_private, loss)


# In front of the model.


def centre(module: nn.Module, args: Any) -> Any:
    return (args[0] - args[0].nan_to_num().mean(0),)


@wrong(vectors, refused("one example of the batch changes"))
def a_hook_before_the_model_that_centres_the_batch(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    model.register_forward_pre_hook(centre)
    fit(model, rows, make_private)


@right(vectors)
def a_hook_before_the_model_that_scales(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    model.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    fit(model, rows, make_private)


def in_front(rows: Rows, make_private: MakePrivate, training: bool) -> None:
    torch.manual_seed(3)
    backbone, model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)), two_layers()
    backbone.train(training)
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(backbone(x)), y).backward()
        optimizer.step()


@wrong(vectors, refused("batch norm", ".eval()"))
def a_backbone_with_batch_norm_in_training_mode_in_front(rows: Rows, make_private: MakePrivate) -> None:
    in_front(rows, make_private, training=True)


@right(vectors)
def a_backbone_with_batch_norm_in_evaluation_mode_in_front(rows: Rows, make_private: MakePrivate) -> None:
    in_front(rows, make_private, training=False)
