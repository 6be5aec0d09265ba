"""hoarfrost.lightning.Private: module, data and Trainer stay as they are, and train as a plain private loop does."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

import hoarfrost
from hoarfrost.errors import InvalidValue, NotPrivate
from hoarfrost.freeze import Frost
from hoarfrost.query import Query
from tests.usage.small import assert_same, data, small, weights

lightning = pytest.importorskip("lightning")

STEPS = 20  # of which five are an epoch
PRIVACY: dict[str, Any] = {"delta": 1e-4, "accountant": "rdp", "seed": 3}


class Classifier(lightning.LightningModule):
    """As users write it: nothing in it is about privacy."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small()

    def training_step(self, batch: Any, number: int) -> Any:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class WithForward(Classifier):
    def forward(self, x: Tensor) -> Any:
        return self.net(x)

    def training_step(self, batch: Any, number: int) -> Any:
        return F.cross_entropy(self(batch[0]), batch[1])


class OneLossPerExample(Classifier):
    def training_step(self, batch: Any, number: int) -> Any:
        return F.cross_entropy(self.net(batch[0]), batch[1], reduction="none")


class ItsOwnData(Classifier):
    def setup(self, stage: str) -> None:
        self.examples = data()

    def train_dataloader(self) -> Any:
        return DataLoader(self.examples, batch_size=12, shuffle=True)


class Validated(Classifier):
    def val_dataloader(self) -> Any:
        return DataLoader(data(30), batch_size=10)

    def validation_step(self, batch: Any, number: int) -> None:
        self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())


class Data(lightning.LightningDataModule):
    def train_dataloader(self) -> Any:
        return DataLoader(data(), batch_size=12, shuffle=True)


class Scheduled(Classifier):
    """In one of the forms that configure_optimizers may return."""

    form = 0

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.5)
        each_step = {"scheduler": schedule, "interval": "step"}
        forms = (
            {"optimizer": optimizer, "lr_scheduler": each_step},
            ([optimizer], [each_step]),
            {"optimizer": optimizer, "lr_scheduler": {**each_step, "name": "lr"}},
            ({"optimizer": optimizer, "lr_scheduler": each_step},),
        )
        return forms[self.form]


def fit(
    module: Any, folder: Path, train: Any = None, ckpt_path: Path | None = None, callback: Any = None, **options: Any
) -> tuple[Any, Any]:
    """The Trainer and the private run."""
    own = {"noise_multiplier", "epsilon", "max_physical_batch", "batch_size", "part", "ledger", "run", "after", "clip",
           "freeze", "lengths", "cache_frozen"}  # fmt: skip
    privacy = PRIVACY | {name: options.pop(name) for name in own & options.keys()}
    if "epsilon" not in privacy:
        privacy.setdefault("noise_multiplier", 1.0)
    callback = callback or hoarfrost.lightning.Private(**privacy)
    settings = {
        "max_epochs": 4, "accelerator": "cpu", "logger": False, "enable_checkpointing": False,
        "enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": folder,
    }  # fmt: skip
    settings |= options
    settings["callbacks"] = [callback, *settings.get("callbacks", [])]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?!a mean loss|the loss is|self.log)", module=r"lightning\.|torch\.")
        trainer = lightning.Trainer(**settings)
        loader = None if isinstance(module, ItsOwnData) or train is not None else DataLoader(data(), 12, shuffle=True)
        given: dict[str, Any] = {"datamodule": train} if train is not None else {"train_dataloaders": loader}
        trainer.fit(module, **given, ckpt_path=ckpt_path)
    return trainer, callback


def in_a_plain_loop(**options: Any) -> Any:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    settings = {**PRIVACY, "noise_multiplier": 1.0, "batch_size": 12, "steps": STEPS}
    run = hoarfrost.make_private(model, optimizer, data(), **(settings | options))
    while run.steps_taken < STEPS:
        for x, y in run.loader:
            run.optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            run.optimizer.step()
    return run


def assert_the_same_run(module: Any, private: Any, plain: Any) -> None:
    run = private.run
    assert (run.steps_taken, run.charged, run.epsilon()) == (plain.steps_taken, plain.charged, plain.epsilon())
    assert_same(weights(module.net), weights(plain.model))


# What works as the plain loop does.


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("kind", [Classifier, WithForward, OneLossPerExample, ItsOwnData, Validated])
def test_a_trainer_takes_the_steps_of_a_plain_loop(kind: Any, tmp_path: Path) -> None:
    module = kind()
    trainer, private = fit(module, tmp_path)
    assert_the_same_run(module, private, in_a_plain_loop())
    assert trainer.global_step == STEPS
    assert private.statement().epsilon == private.run.epsilon()


@pytest.mark.filterwarnings("error::UserWarning")
def test_data_may_come_from_a_data_module(tmp_path: Path) -> None:
    module = Classifier()
    _, private = fit(module, tmp_path, Data())
    assert_the_same_run(module, private, in_a_plain_loop())


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize(
    ("kind", "options"),
    [(Classifier, {}), (OneLossPerExample, {"max_epochs": -1, "max_steps": STEPS}), (Validated, {})],
)
def test_chunks_of_a_batch_are_one_step(kind: Any, options: dict[str, Any], tmp_path: Path) -> None:
    """To the Trainer, too."""
    module = kind()
    trainer, private = fit(module, tmp_path, max_physical_batch=5, **options)
    assert_the_same_run(module, private, in_a_plain_loop(max_physical_batch=5))
    assert trainer.global_step == STEPS


@pytest.mark.parametrize("chunks", [None, 2])
def test_empty_batches_are_steps_of_noise(chunks: int | None, tmp_path: Path) -> None:
    module = Classifier()
    trainer, private = fit(module, tmp_path, batch_size=0.5, max_epochs=-1, max_steps=STEPS, max_physical_batch=chunks)
    assert_the_same_run(module, private, in_a_plain_loop(batch_size=0.5, max_physical_batch=chunks))
    assert trainer.global_step == STEPS


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize(("form", "chunks"), [(0, None), (1, 5), (2, 5), (3, None)])
def test_schedulers_count_steps(form: int, chunks: int | None, tmp_path: Path) -> None:
    module = Scheduled()
    module.form = form
    _, private = fit(module, tmp_path, max_physical_batch=chunks)
    assert private.run.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 4)


@pytest.mark.parametrize(("chunks", "options"), [(None, {}), (5, {}), (5, {"max_epochs": -1, "max_steps": 7})])
def test_a_module_may_ask_how_many_steps_there_will_be(
    chunks: int | None, options: dict[str, Any], tmp_path: Path
) -> None:
    asked = []

    class Asking(Classifier):
        def configure_optimizers(self) -> Any:
            asked.append(self.trainer.estimated_stepping_batches)
            return super().configure_optimizers()

    _, private = fit(Asking(), tmp_path, max_physical_batch=chunks, **options)
    assert asked == [private.run.steps] == [private.run.steps_taken] == [options.get("max_steps", STEPS)]


def test_epochs_need_not_be_whole_batches(tmp_path: Path) -> None:
    trainer, private = fit(Classifier(), tmp_path, batch_size=22, max_epochs=3)
    assert trainer.global_step == private.run.steps == private.run.steps_taken == 8
    assert trainer.current_epoch == 3


def test_epsilon_is_what_was_asked_for_and_logged(tmp_path: Path) -> None:
    trainer, private = fit(Classifier(), tmp_path, epsilon=2.0)
    assert 1.9 < private.run.epsilon() <= 2.0
    assert float(trainer.logged_metrics["epsilon"]) == pytest.approx(private.run.epsilon())


def test_the_part_that_is_called_can_be_named(tmp_path: Path) -> None:
    class TwoParts(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Linear(2, 2)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)

    with pytest.raises(NotPrivate, match=r'TwoParts has no forward.*part="net"'):
        fit(TwoParts(), tmp_path)
    module = TwoParts()
    _, private = fit(module, tmp_path, part="net")
    assert_the_same_run(module, private, in_a_plain_loop())


def test_module_and_trainer_are_afterwards_as_they_were(tmp_path: Path) -> None:
    module = Classifier()
    trainer, _ = fit(module, tmp_path)
    assert not {"configure_optimizers", "log", "backward"} & module.__dict__.keys()
    assert trainer.max_steps == -1


# Resuming.


def every(steps: int, folder: Path) -> list[Any]:
    kind = lightning.pytorch.callbacks.ModelCheckpoint
    return [kind(dirpath=folder, filename="{step}", every_n_train_steps=steps, save_top_k=-1)]


@pytest.mark.parametrize(("chunks", "given"), [(None, {"epsilon": 4.0}), (5, {"noise_multiplier": 1.0})])
def test_what_was_spent_comes_back(chunks: int | None, given: dict[str, Any], tmp_path: Path) -> None:
    saving = {"callbacks": every(1, tmp_path), "enable_checkpointing": True}
    options = {"max_physical_batch": chunks, **given}
    _, whole = fit(Classifier(), tmp_path, **options, **saving)
    for at in (8, 10) if chunks is None else (5,):
        trainer, later = fit(Classifier(), tmp_path, ckpt_path=tmp_path / f"step={at}.ckpt", **options)
        counted = sorted(event.steps for event in later.run.account.counters.values() if event.steps)
        assert counted == sorted((at, STEPS - at))
        assert (later.run.steps_taken, trainer.global_step) == (STEPS, STEPS)
        assert later.run.epsilon() == pytest.approx(whole.run.epsilon(), abs=1e-12)


def test_a_checkpoint_does_not_tell_how_large_batches_were(tmp_path: Path) -> None:
    """Nor how many chunks they came in."""
    states = []
    for chunks in (None, 5):
        folder = tmp_path / str(chunks)
        fit(Classifier(), folder, max_physical_batch=chunks, callbacks=every(7, folder), enable_checkpointing=True)
        states.append(torch.load(folder / "step=7.ckpt", weights_only=True))
    whole, chunked = (state["loops"]["fit_loop"] for state in states)
    assert chunked == whole
    assert chunked["epoch_loop.batch_progress"]["total"]["ready"] == 7
    assert states[0]["global_step"] == states[1]["global_step"] == 7


def test_steps_that_a_crash_lost_stay_spent(tmp_path: Path) -> None:
    """The ledger knows of them, and the run ends as many steps earlier."""

    class Break(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, *others: Any) -> None:
            if trainer.global_step == 8:
                raise RuntimeError("the machine went down")

    ledger = tmp_path / "data.ledger"
    hoarfrost.budget.Ledger.create(ledger, epsilon=4.0, delta=1e-4)

    def private() -> Any:
        return hoarfrost.lightning.Private(epsilon=4.0, delta=1e-4, accountant="rdp", ledger=ledger, run="first")

    callbacks = [*every(5, tmp_path), Break()]
    with pytest.raises(RuntimeError, match="went down"):
        fit(Classifier(), tmp_path, callback=private(), callbacks=callbacks, enable_checkpointing=True)
    _, later = fit(Classifier(), tmp_path, callback=private(), ckpt_path=tmp_path / "step=5.ckpt")
    assert later.run.charged == STEPS
    assert STEPS - 4 <= later.run.steps_taken < STEPS  # a batch may have been fetched ahead
    assert later.run.epsilon() <= 4.0


def test_weights_whose_cost_is_unknown_are_not_resumed(tmp_path: Path) -> None:
    plain = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=every(5, tmp_path),
    )  # fmt: skip
    plain.fit(Classifier(), DataLoader(data(), 12))
    with pytest.raises(NotPrivate, match="says nothing of what was spent"):
        fit(Classifier(), tmp_path, ckpt_path=tmp_path / "step=5.ckpt")


# What is refused, and told.


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"accumulate_grad_batches": 2}, "max_physical_batch="),
        ({"gradient_clip_val": 0.5}, "clip= of Private"),
        ({"overfit_batches": 2}, "same batches again"),
        ({"limit_train_batches": 2}, "max_steps"),
    ],
)
def test_settings_that_a_private_run_cannot_follow(options: dict[str, Any], why: str, tmp_path: Path) -> None:
    (name,) = options
    with pytest.raises(NotPrivate, match=rf"Trainer\({name}=.*{why}"):
        fit(Classifier(), tmp_path, **options)


def test_several_optimizers_are_refused(tmp_path: Path) -> None:
    class Two(Classifier):
        def configure_optimizers(self) -> Any:
            return [super().configure_optimizers(), super().configure_optimizers()]

    with pytest.raises(NotPrivate, match="returns 2 optimizers"):
        fit(Two(), tmp_path)


def test_a_second_run_needs_to_be_a_stage(tmp_path: Path) -> None:
    module = Classifier()
    _, private = fit(module, tmp_path)
    with pytest.raises(NotPrivate, match=r"Private\(\.\.\., after=private\.run\)"):
        fit(module, tmp_path, callback=private)
    _, later = fit(module, tmp_path, after=private.run)
    assert later.run.epsilon() > private.run.epsilon()


def test_a_run_without_an_end_needs_its_noise(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="epsilon= needs to know how long"):
        fit(Classifier(), tmp_path, epsilon=2.0, max_epochs=-1)


def test_there_is_no_run_before_training() -> None:
    with pytest.raises(InvalidValue, match=r"before trainer\.fit\(\) has begun"):
        _ = hoarfrost.lightning.Private(**PRIVACY, noise_multiplier=1.0).run


def test_what_training_logs_is_told_of_once(tmp_path: Path) -> None:
    class Logging(Validated):
        def training_step(self, batch: Any, number: int) -> Any:
            loss = super().training_step(batch, number)
            self.log_dict({"loss": loss, "again": loss})
            return loss

    with pytest.warns(UserWarning, match=r"self\.log\('loss'\) in training.*must not be released") as told:
        fit(Logging(), tmp_path)
    assert sum("self.log" in str(each.message) for each in told) == 1


# What asks before the first step, and what computes less.


class Wide(Classifier):
    """With layers of which DP-FROST can choose some."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)), nn.Linear(4, 3))


def of_one(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def test_a_choice_is_made_before_the_first_step_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    charged: list[int] = []
    noised = Query._noised
    first = hoarfrost.lightning.Private(**_choosing())
    monkeypatch.setattr(
        Query, "_noised", lambda self, *args: (charged.append(first.run.charged), noised(self, *args))[1]
    )

    class Look(lightning.Callback):
        def on_train_epoch_start(self, *others: Any) -> None:
            seen.append(len(first.run.account.releases))

    module, seen = Wide(), list[int]()
    before = {name: p.detach().clone() for name, p in module.net.named_parameters()}
    callbacks = [*every(7, tmp_path), Look()]
    trainer, _ = fit(module, tmp_path, callback=first, callbacks=callbacks, enable_checkpointing=True)
    assert (charged, seen[0]) == ([0, 0], 2)  # nothing was reserved for a step then
    assert (trainer.global_step, first.run.steps_taken, first.run.charged) == (STEPS, STEPS, STEPS)
    live = {name for name, mask in first.run.freezer.live(0, first.run.info()).items() if mask}
    assert {name for name, p in module.net.named_parameters() if not torch.equal(p, before[name])} == live != {*before}
    events = [first.run.plan.event(STEPS), *(each.event for each in first.run.plan.releases)]
    assert first.statement().epsilon == hoarfrost.budget.epsilon(events, 1e-4, accountant="rdp") <= 6.0

    later = hoarfrost.lightning.Private(**_choosing())
    trainer, _ = fit(Wide(), tmp_path, callback=later, ckpt_path=tmp_path / "step=7.ckpt")
    assert charged == [0, 0]  # it did not look again
    assert (trainer.global_step, later.run.steps_taken, len(later.run.account.releases)) == (STEPS, STEPS, 2)
    assert later.run.freezer.selection == first.run.freezer.selection
    assert later.run.epsilon() == first.run.epsilon()


def _choosing() -> dict[str, Any]:
    frost = Frost(0.6, rounds=2, sample_rate=0.3, loss=of_one)
    return {"epsilon": 6.0, "delta": 1e-4, "accountant": "rdp", "freeze": frost}


def test_lengths_and_the_cache_do_not_change_the_steps(tmp_path: Path) -> None:
    class LastOnly(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.net[0].requires_grad_(False)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.net[2].parameters(), lr=0.1)

    plain, found = LastOnly(), LastOnly()
    fit(plain, tmp_path, max_physical_batch=5)
    options = {"max_physical_batch": 5, "lengths": [n % 7 for n in range(60)], "cache_frozen": True}
    _, private = fit(found, tmp_path, **options)
    assert private.run.frozen_cache.rows > 50
    assert_same(weights(found.net), weights(plain.net))
    assert not torch.equal(found.net[2].weight, small()[2].weight)
