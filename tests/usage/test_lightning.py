"""An unchanged Lightning Trainer around a private model, its optimizer and its loader."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader

import hoarfrost
from hoarfrost.errors import BudgetSpent, InvalidValue, NotPrivate
from tests.usage.small import assert_same, data, small, weights

lightning = pytest.importorskip("lightning")

STEPS = 20  # of which five are an epoch


class Classifier(lightning.LightningModule):
    """As users write it: the network is made private, and the trainer gets the optimizer and the loader."""

    def __init__(self, logs: bool = False, **options: Any) -> None:
        super().__init__()
        self.net = small()
        settings = {"sample_rate": 0.2, "delta": 1e-4, "steps": STEPS, "accountant": "rdp", "seed": 3}
        if "epsilon" not in options:
            settings["noise_multiplier"] = 1.0
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.private = hoarfrost.make_private(self.net, optimizer, data(), **(settings | options))
        self.logs = logs

    def configure_optimizers(self) -> Any:
        return self.private.optimizer

    def train_dataloader(self) -> Any:
        return self.private.loader

    def training_step(self, batch: Any, number: int) -> Any:
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        if self.logs:
            self.log("loss", loss, prog_bar=True, on_step=True, on_epoch=True)
        return loss


class Validated(Classifier):
    def val_dataloader(self) -> Any:
        return DataLoader(data(30), batch_size=10)

    def validation_step(self, batch: Any, number: int) -> None:
        self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())


class Itself(lightning.LightningModule):
    """The module itself is the model, and is made private when the trainer asks for its optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small()

    def forward(self, x: Tensor) -> Any:
        return self.net(x)

    def configure_optimizers(self) -> Any:
        self.private = hoarfrost.make_private(
            self, torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9), data(), sample_rate=0.2, delta=1e-4,
            steps=STEPS, noise_multiplier=1.0, accountant="rdp", seed=3,
        )  # fmt: skip
        return self.private.optimizer

    def train_dataloader(self) -> Any:
        return self.private.loader

    def training_step(self, batch: Any, number: int) -> Any:
        return F.cross_entropy(self(batch[0]), batch[1])


class ByHand(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, number: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(F.cross_entropy(self.net(batch[0]), batch[1]))
        optimizer.step()


class OneLossPerExample(Classifier):
    def training_step(self, batch: Any, number: int) -> Any:
        return F.cross_entropy(self.net(batch[0]), batch[1], reduction="none")

    def backward(self, losses: Tensor) -> None:
        self.private.optimizer.backward(losses)


def fit(module: Any, folder: Path, ckpt_path: Path | None = None, **options: Any) -> Any:
    settings = {
        "max_epochs": 4, "accelerator": "cpu", "logger": False, "enable_checkpointing": False,
        "enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": folder,
    }  # fmt: skip
    with warnings.catch_warnings():
        # The trainer's own advice: on workers for loaders, lists of callbacks, what a CPU cannot do. What is said of a
        # loss is said where backward() is called, which is in the trainer.
        warnings.filterwarnings("ignore", message="(?!a mean loss|the loss is)", module=r"lightning\.|torch\.jit")
        trainer = lightning.Trainer(**(settings | options))
        trainer.fit(module, ckpt_path=ckpt_path)
    return trainer


def in_a_plain_loop(**options: Any) -> Classifier:
    module = Classifier(**options)
    model, optimizer, loader = module.private
    while module.private.steps_taken < STEPS:
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return module


def assert_the_same_run(module: Any, plain: Any) -> None:
    got, want = module.private, plain.private
    assert (got.steps_taken, got.charged, got.epsilon()) == (want.steps_taken, want.charged, want.epsilon())
    assert_same(weights(module.net), weights(plain.net))


# What works as the plain loop does.


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize(
    "module",
    [
        Classifier,
        pytest.param(lambda: Classifier(logs=True), id="with a log"),
        Validated,  # and a look at two of its batches before the training
        Itself,
        ByHand,
        OneLossPerExample,
    ],
)
def test_a_trainer_takes_the_steps_of_a_plain_loop(module: Any, tmp_path: Path) -> None:
    found = module()
    fit(found, tmp_path)
    assert_the_same_run(found, in_a_plain_loop())


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("options", [{"max_epochs": -1, "max_steps": STEPS}, {"detect_anomaly": True}])
def test_other_settings_of_the_trainer(options: dict[str, Any], tmp_path: Path) -> None:
    found = Classifier()
    fit(found, tmp_path, **options)
    assert_the_same_run(found, in_a_plain_loop())


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("module", [Classifier, Validated])
def test_chunks_are_steps_when_the_last_one_has_come(module: Any, tmp_path: Path) -> None:
    """How many there are is not known before: the trainer fetches one ahead, to know the last one."""
    found = module(max_physical_batch=5)
    trainer = fit(found, tmp_path)
    assert_the_same_run(found, in_a_plain_loop(max_physical_batch=5))
    assert trainer.global_step > STEPS  # which counts chunks


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("chunks", [None, 2])
def test_empty_batches_are_steps_of_noise(chunks: int | None, tmp_path: Path) -> None:
    found = Classifier(sample_rate=0.005, max_physical_batch=chunks)
    fit(found, tmp_path, max_epochs=1)
    assert (found.private.steps_taken, found.private.charged) == (STEPS, STEPS)
    assert_same(weights(found.net), weights(in_a_plain_loop(sample_rate=0.005, max_physical_batch=chunks).net))


def test_double_precision_is_that_of_the_plain_loop(tmp_path: Path) -> None:
    found = Classifier(noise_multiplier=0.0, delta=1e-4)
    fit(found, tmp_path, precision="64-true")
    assert next(found.net.parameters()).dtype == torch.float64
    found.net.float()
    assert_the_same_run(found, in_a_plain_loop(noise_multiplier=0.0, delta=1e-4))


def test_a_scheduler_of_the_trainer_counts_steps(tmp_path: Path) -> None:
    class Scheduled(Classifier):
        def configure_optimizers(self) -> Any:
            schedule = torch.optim.lr_scheduler.StepLR(self.private.optimizer, 10, 0.5)
            return {"optimizer": self.private.optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    class InChunks(Scheduled):
        def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
            if self.private.stepped:
                scheduler.step()

    for found in (Scheduled(), InChunks(max_physical_batch=5)):
        fit(found, tmp_path)
        assert found.private.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 4)


def test_nothing_private_is_kept_by_itself(tmp_path: Path) -> None:
    """Of what the trainer hands to callbacks after each batch, the loss, nothing gets into logs or checkpoints."""
    seen: list[Tensor] = []

    class Look(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int) -> None:
            seen.append(outputs["loss"])

    found = Classifier()
    trainer = fit(found, tmp_path, callbacks=[Look(), *every(5, tmp_path)], enable_checkpointing=True)
    assert_the_same_run(found, in_a_plain_loop())
    assert len(seen) == STEPS
    assert not any(loss.requires_grad for loss in seen)
    assert not trainer.callback_metrics
    assert not trainer.logged_metrics
    kept = torch.load(tmp_path / "step=20.ckpt", weights_only=True)
    rest = {name: value for name, value in kept.items() if name not in ("state_dict", "optimizer_states")}
    numbers = [float(value) for value in flat(rest) if isinstance(value, float) or torch.is_tensor(value)]
    assert not any(math.isfinite(number) for number in numbers)  # the best score of a checkpoint, if none is asked for


def flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [each for part in value.values() for each in flat(part)]
    return [each for part in value for each in flat(part)] if isinstance(value, list | tuple) else [value]


# Resuming.


def every(steps: int, folder: Path) -> list[Any]:
    callback = lightning.pytorch.callbacks.ModelCheckpoint
    return [callback(dirpath=folder, filename="{step}", every_n_train_steps=steps, save_top_k=-1)]


def counts(module: Any) -> list[int]:
    return [event.steps for event in module.private.account.counters.values() if event.steps]


@pytest.mark.parametrize(
    "at",
    [5, 7, *(pytest.param(at, marks=pytest.mark.slow) for at in (8, 10))],  # after an epoch, and within one
)
@pytest.mark.parametrize("calibrated", [True, False])
def test_a_checkpoint_brings_its_account_and_each_step_is_counted_once(
    at: int, calibrated: bool, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"epsilon": 4.0} if calibrated else {}
    first = Classifier(**given)
    fit(first, tmp_path, max_epochs=2, callbacks=every(1, tmp_path), enable_checkpointing=True)
    later = Classifier(**given)
    fit(later, tmp_path, ckpt_path=tmp_path / f"step={at}.ckpt")
    assert counts(later) == [at, STEPS - at]
    assert (later.private.steps_taken, later.private.account.charged_in_all) == (STEPS, STEPS)
    whole = Classifier(**given)
    fit(whole, tmp_path)
    assert later.private.epsilon() == pytest.approx(whole.private.epsilon(), abs=1e-12)


@pytest.mark.parametrize("numbers", [(1, 5, 8), pytest.param((2, 3, 4, 6, 7), marks=pytest.mark.slow)])
def test_a_checkpoint_within_a_batch_counts_that_batch(numbers: tuple[int, ...], tmp_path: Path) -> None:
    """It was drawn, and is lost."""
    first = Classifier(max_physical_batch=5, epsilon=4.0)
    fit(first, tmp_path, max_epochs=2, callbacks=every(1, tmp_path), enable_checkpointing=True)
    for number in numbers:
        later = Classifier(max_physical_batch=5, epsilon=4.0)
        fit(later, tmp_path, ckpt_path=tmp_path / f"step={number}.ckpt")
        before, after = counts(later)
        assert before + after == later.private.account.charged_in_all <= STEPS
        assert later.private.steps_taken >= STEPS - 2
        assert later.private.epsilon() <= 4.0


def test_weights_without_their_account_are_for_use(tmp_path: Path) -> None:
    """`load_from_checkpoint` loads no optimizer. What goes on from there has the checkpoint named."""
    first = Classifier()
    fit(first, tmp_path, max_epochs=1, callbacks=every(5, tmp_path), enable_checkpointing=True)
    state = torch.load(tmp_path / "step=5.ckpt", weights_only=True)["optimizer_states"][0]
    used = Classifier.load_from_checkpoint(tmp_path / "step=5.ckpt", after=state)
    assert_same(weights(used.net), weights(first.net))
    assert used.private.epsilon() == first.private.epsilon()


# What is refused, in one sentence with the fix.


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_gradient_clipping_by_the_trainer_is_refused(algorithm: str, tmp_path: Path) -> None:
    """There is no gradient yet when it clips."""
    module = Classifier()
    with pytest.raises(InvalidValue, match=r"gradient_clip_val=.*would do nothing.*clip="):
        fit(module, tmp_path, gradient_clip_val=0.5, gradient_clip_algorithm=algorithm)
    assert module.private.steps_taken == 0


@pytest.mark.parametrize("chunks", [None, 5])
def test_accumulation_over_batches_is_refused(chunks: int | None, tmp_path: Path) -> None:
    module = Classifier(max_physical_batch=chunks)
    with pytest.raises((InvalidValue, NotPrivate), match=r"batches.*max_physical_batch="):
        fit(module, tmp_path, accumulate_grad_batches=2)
    assert module.private.steps_taken == 0


def test_a_scaler_of_gradients_is_refused(tmp_path: Path) -> None:
    scaler = torch.amp.GradScaler("cpu")
    plugin = lightning.pytorch.plugins.MixedPrecision("16-mixed", "cpu", scaler=scaler)
    with pytest.raises(NotPrivate, match=r"GradScaler.*bf16-mixed"):
        fit(Classifier(), tmp_path, plugins=[plugin])


def test_half_precision_without_a_scaler_is_told_of_its_mean(tmp_path: Path) -> None:
    module = Classifier()
    with pytest.warns(UserWarning, match='loss_reduction="sum"'):
        fit(module, tmp_path, precision="bf16-mixed")
    assert module.private.steps_taken == STEPS


def test_a_loss_that_is_divided_by_hand_is_told_of(tmp_path: Path) -> None:
    """Whatever the trainer divides it by besides."""

    class Divided(Classifier):
        def training_step(self, batch: Any, number: int) -> Any:
            return super().training_step(batch, number) / 3

    with pytest.warns(UserWarning, match="parts are added up, not averaged"):
        fit(Divided(max_physical_batch=5), tmp_path, max_epochs=1)


def test_several_processes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotPrivate, match=r"DistributedDataParallel.*one process"):
        fit(Classifier(), tmp_path, strategy="ddp", devices=1)
    torch.distributed.destroy_process_group()


def test_copies_of_the_run_are_refused(tmp_path: Path) -> None:
    average = lightning.pytorch.callbacks.StochasticWeightAveraging(1e-2)
    with pytest.raises(NotPrivate, match="copy the model alone"):
        fit(Classifier(), tmp_path, callbacks=[average])


def test_more_epochs_than_planned_are_refused(tmp_path: Path) -> None:
    module = Classifier()
    with pytest.raises(BudgetSpent, match="plan the run with more steps"):
        fit(module, tmp_path, max_epochs=6)
    assert module.private.steps_taken == STEPS
