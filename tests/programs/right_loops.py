"""Right programs: loops, optimizers, schedulers, loaders, checkpoints, and what is done between steps."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import TensorDataset

from hoarfrost import budget
from tests.programs.corpus import Rows, right
from tests.programs.examples import vectors
from tests.programs.loops import EPOCHS, epochs, two_layers
from tests.programs.running import MakePrivate

# Optimizers.


@right(vectors)
def adam_for_some_epochs(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    epochs(model, make_private(model, torch.optim.Adam(model.parameters()), rows, batch_size=4, epochs=EPOCHS))


@right(vectors)
def parameter_groups_with_weight_decay_for_weights_only(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "lr": 0.01}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    epochs(model, make_private(model, optimizer, rows, batch_size=4))


class SignSGD(torch.optim.Optimizer):
    """An optimizer that torch does not have."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad.sign(), alpha=-group["lr"])


@right(vectors)
def an_optimizer_of_ones_own(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    epochs(model, make_private(model, SignSGD(model.parameters(), lr=0.01), rows, batch_size=4))


@right(vectors)
def a_closure(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4)
    for x, y in loader:

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)


@right(vectors)
def gradients_that_are_never_zeroed(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4)
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


@right(vectors)
def the_norm_of_the_noisy_gradient_is_logged(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    norms: list[float] = []
    private = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    epochs(model, private, after_step=lambda: norms.append(float(nn.utils.get_total_norm([p.grad for p in model.parameters()]))))  # fmt: skip # noqa: E501
    assert all(norms)


@right(vectors)
def weights_are_clamped_after_every_step(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()

    @torch.no_grad()
    def clamp() -> None:
        for p in model.parameters():
            p.clamp_(-0.3, 0.3)

    epochs(model, make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4), clamp)


@right(vectors)
def layers_are_frozen_and_thawed(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    model[0].requires_grad_(False)
    private = make_private(model, torch.optim.Adam(model.parameters()), rows, batch_size=4)
    epochs(model, private, after_epoch=lambda: model[0].requires_grad_(not model[0].weight.requires_grad))


# Schedulers.


def two_schedulers(optimizer: Any) -> list[Any]:
    return [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.5)]


SCHEDULERS: dict[str, Any] = {
    "step": lambda o: lr_scheduler.StepLR(o, 1, 0.5),
    "multi_step": lambda o: lr_scheduler.MultiStepLR(o, [1, 2]),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, EPOCHS),
    "warm_restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "linear": lambda o: lr_scheduler.LinearLR(o, total_iters=EPOCHS),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, EPOCHS),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (step + 1)),
    "multiplicative": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.9),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1),
    "one_cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=EPOCHS),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.5)], [1]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.5)]
    ),
}


def _with_scheduler(kind: str, make: Any) -> None:
    def program(rows: Rows, make_private: MakePrivate) -> None:
        model = two_layers()
        private = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), rows, batch_size=4)
        scheduler = make(private.optimizer)
        before = private.optimizer.param_groups[0]["lr"]
        epochs(model, private, after_step=scheduler.step)
        assert private.optimizer.param_groups[0]["lr"] != before or kind == "cyclic"

    program.__name__ = f"the_{kind}_scheduler"
    right(vectors)(program)


for _kind, _make in SCHEDULERS.items():
    _with_scheduler(_kind, _make)


@right(vectors)
def a_learning_rate_that_falls_when_a_public_loss_does_not(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    public = TensorDataset(torch.ones(4, 6), torch.zeros(4, dtype=torch.long))
    private = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    scheduler = lr_scheduler.ReduceLROnPlateau(private.optimizer, patience=0)

    def look() -> None:
        model.eval()
        with torch.no_grad():
            scheduler.step(F.cross_entropy(model(public[:][0]), public[:][1]))
        model.train()

    epochs(model, private, after_epoch=look)


@right(vectors)
def a_scheduler_made_before_make_private(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    epochs(model, make_private(model, optimizer, rows, batch_size=4), after_step=scheduler.step)


# What is done between steps.


@right(vectors)
def evaluation_between_steps(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    test = torch.ones(5, 6)

    def evaluate() -> None:
        model.eval()
        with torch.no_grad():
            model(test).argmax(1)
        with torch.inference_mode():
            model(test)
        model.train()

    epochs(model, make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4), evaluate)


@right(vectors)
def an_exponential_average_of_the_weights(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    private = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    epochs(model, private, after_step=lambda: average.update_parameters(model))
    average(torch.ones(2, 6))


@right(vectors)
def a_copy_of_the_model_for_evaluation(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    private = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    epochs(model, private, after_epoch=lambda: copy.deepcopy(model).eval()(torch.ones(2, 6)).sum().backward())


@right(vectors)
def the_best_weights_on_public_data_are_kept(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    kept: list[Any] = []
    private = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    epochs(model, private, after_epoch=lambda: kept.append(copy.deepcopy(model.state_dict())))
    assert kept[0].keys() == two_layers().state_dict().keys()


@right(vectors)
def checkpoints_from_python(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    private = make_private(model, torch.optim.Adam(model.parameters()), rows, batch_size=4)
    scheduler = lr_scheduler.StepLR(private.optimizer, 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.safetensors"
        epochs(model, private, scheduler.step, lambda: private.save(path, scheduler=scheduler))
        private.load(path, scheduler=scheduler)
        epochs(model, private, scheduler.step)


@right(vectors)
def a_ledger(rows: Rows, make_private: MakePrivate) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.ledger"
        budget.Ledger.create(path, epsilon=None, delta=1e-5)
        model = two_layers()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        epochs(model, make_private(model, optimizer, rows, batch_size=4, steps=EPOCHS, ledger=path))
