"""PrivateTrainer takes the steps of a plain private loop, whatever a Trainer does around them."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import hoarfrost
from hoarfrost.errors import BudgetSpent, InvalidValue, NotPrivate
from tests.hf.small import (
    arguments,
    assert_same,
    bert,
    cross_entropy,
    gpt2,
    in_a_plain_loop,
    language,
    next_words,
    padded,
    texts,
    trainer,
    transformers,
    weights,
)  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore:.*(pin_memory|lr_scheduler.step)")
SEEDED = {"seed": 3, "noise_multiplier": 1.0, "clip": 0.1}
EXACT = {"seed": 3, "noise_multiplier": 0.0, "clip": 0.1}  # the same batches, and no noise


# The steps.


@pytest.mark.parametrize("privacy", [SEEDED, EXACT], ids=["noise", "no noise"])
def test_the_weights_are_those_of_a_plain_private_loop(privacy: dict[str, Any], tmp_path: Path) -> None:
    found, plain = bert(), bert()
    run = trainer(found, tmp_path, **privacy)
    trained = run.train()
    want = in_a_plain_loop(plain, **privacy)
    assert_same(found, plain)
    assert (run.private.steps_taken, run.private.charged, trained.global_step) == (6, 6, 6)
    assert run.private.epsilon() == want.epsilon()


def test_clipping_is_at_work_in_what_is_compared(tmp_path: Path) -> None:
    """Otherwise the test above would say little."""
    clipped, free = bert(), bert()
    trainer(clipped, tmp_path, **EXACT).train()
    trainer(free, tmp_path, **(EXACT | {"clip": 1e6})).train()
    assert any(not torch.allclose(a, b) for a, b in zip(clipped.parameters(), free.parameters(), strict=True))


def test_a_language_model_is_that_of_a_plain_loop(tmp_path: Path) -> None:
    """Each text counts by the mean over its own words; the output at one word is about the next."""
    found, plain = gpt2(), gpt2()
    trainer(found, tmp_path, data_collator=language, **SEEDED).train()
    in_a_plain_loop(plain, next_words, collate=language, **SEEDED)
    assert_same(found, plain)


def test_how_a_batch_is_cut_does_not_matter(tmp_path: Path) -> None:
    """The expected batch is what counts."""
    models = []
    for chunk, parts in ((15, 1), (5, 3), (3, 5)):
        models.append(bert())
        run = trainer(
            models[-1], tmp_path, **EXACT, optim="sgd", max_steps=3, per_device_train_batch_size=chunk,
            gradient_accumulation_steps=parts,
        )  # fmt: skip
        trained = run.train()
        assert (trained.global_step, run.private.expected_batch) == (3, 15)
    for model in models[1:]:
        assert_same(model, models[0])


def test_empty_batches_are_steps_of_noise(tmp_path: Path) -> None:
    sizes: list[int] = []

    run = trainer(bert(), tmp_path, per_device_train_batch_size=1, gradient_accumulation_steps=1, max_steps=12, seed=1)
    begin = run.get_train_dataloader

    def begin_and_count() -> Any:
        loader = begin()
        see = run.private.loader.on_chunk
        run.private.loader.on_chunk = lambda chunk: (sizes.append(chunk.examples), see(chunk))[1]
        return loader

    run.get_train_dataloader = begin_and_count
    before = weights(run.model)
    run.train()
    assert 0 in sizes
    assert max(sizes) > 0
    assert run.private.steps_taken == 12
    assert any(not torch.equal(before[name], p) for name, p in run.model.named_parameters())


def test_the_learning_rate_is_that_of_real_steps(tmp_path: Path) -> None:
    rates: list[tuple[int, float]] = []

    class Look(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any, **others: Any) -> None:
            rates.append((state.global_step, optimizer.param_groups[0]["lr"]))

    trainer(bert(), tmp_path, callbacks=[Look()]).train()
    assert rates == [(step, pytest.approx(0.05 * (1 - step / 6))) for step in range(6)]


@pytest.mark.parametrize(
    ("examples", "batch", "epochs", "steps", "passes"),
    [(60, 22, 3.0, 8, 3), (60, 15, 0.5, 2, 1), (60, 60, 3.0, 3, 3)],
)
def test_epochs_are_those_of_the_plan(
    examples: int, batch: int, epochs: float, steps: int, passes: int, tmp_path: Path
) -> None:
    """round(epochs * N / batch) steps, and as many passes as a Trainer counts."""
    seen: list[int] = []

    class Look(transformers.TrainerCallback):
        def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            seen.append(state.global_step)

    run = trainer(
        bert(), tmp_path, texts(examples), num_train_epochs=epochs, max_steps=-1, per_device_train_batch_size=batch,
        gradient_accumulation_steps=1, callbacks=[Look()],
    )  # fmt: skip
    trained = run.train()
    assert (trained.global_step, run.private.steps, run.private.steps_taken) == (steps, steps, steps)
    assert run.state.max_steps == steps
    assert (len(seen), seen[-1]) == (passes, steps)
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(0.0)
    assert run.get_total_train_batch_size(run.args) == batch


def test_epsilon_is_what_was_asked_for(tmp_path: Path) -> None:
    run = trainer(bert(), tmp_path, epsilon=2.0)
    run.train()
    assert 1.9 < run.private.epsilon() <= 2.0
    assert run.statement().epsilon == run.private.epsilon()


def test_what_make_private_takes_is_handed_on(tmp_path: Path) -> None:
    head = hoarfrost.freeze.Random(0.5)
    path = tmp_path / "data.ledger"
    ledger = hoarfrost.budget.Ledger.create(path, epsilon=90.0, delta=1e-4)
    run = trainer(
        bert(),
        tmp_path / "out",
        freeze=head,
        clip=hoarfrost.clip.PerLayer(hoarfrost.clip.Local(1.0)),
        ledger=path,
        run="first",
    )
    run.train()
    ledger.refresh()
    assert sum(entry.spent.steps for entry in ledger.entries) == 6
    assert "PerLayer" in str(run.statement())
    assert run.private.optimizer.controller.live_share == pytest.approx(0.5, abs=0.1)


def test_people_are_drawn_where_rows_have_an_owner(tmp_path: Path) -> None:
    run = trainer(
        bert(), tmp_path, person=[n // 3 for n in range(60)], per_person=2, per_device_train_batch_size=4,
        gradient_accumulation_steps=1, max_steps=3,
    )  # fmt: skip
    run.train()
    assert run.statement().unit == "one person"
    assert run.private.sample_rate == 4 / 20


# Precision and memory.


@pytest.fixture
def no_precision_left(monkeypatch: pytest.MonkeyPatch) -> Any:
    """accelerate keeps the last precision in the environment."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    yield
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.usefixtures("no_precision_left")
@pytest.mark.parametrize("half", [False, True])
def test_gradient_checkpointing_changes_nothing(half: bool, tmp_path: Path) -> None:
    """Nor does it with autocast."""
    plain, checkpointed = bert(), bert()
    trainer(plain, tmp_path, **EXACT, bf16=half).train()
    kind = "gradient" if not hasattr(arguments(tmp_path), "activation_checkpointing") else "activation"
    run = trainer(checkpointed, tmp_path, **EXACT, bf16=half, **{f"{kind}_checkpointing": True})
    run.train()
    assert getattr(run.args, f"{kind}_checkpointing_kwargs")["use_reentrant"] is False
    for (name, one), other in zip(plain.named_parameters(), checkpointed.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2 if half else 1e-5, atol=1e-2 if half else 1e-6, msg=name)


@pytest.mark.usefixtures("no_precision_left")
def test_half_precision_is_that_of_autocast(tmp_path: Path) -> None:
    half, plain, full = bert(), bert(), bert()
    kinds = []
    half.bert.encoder.layer[0].output.dense.register_forward_hook(lambda module, args, out: kinds.append(out.dtype))
    trainer(half, tmp_path, **EXACT, bf16=True).train()
    assert set(kinds) == {torch.bfloat16}

    def loss(outputs: Any, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(outputs.logits.float(), batch["labels"], reduction="none")

    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        in_a_plain_loop(plain, loss, **EXACT)
    in_a_plain_loop(full, **EXACT)

    def apart(other: Any) -> float:
        pairs = zip(half.parameters(), other.parameters(), strict=True)
        return math.sqrt(sum(float((a - b).detach().square().sum()) for a, b in pairs))

    assert apart(plain) < apart(full) / 3


def test_workers_fetch_the_examples(tmp_path: Path) -> None:
    found, plain = bert(), bert()
    trainer(found, tmp_path, **EXACT, dataloader_num_workers=2, dataloader_persistent_workers=True).train()
    in_a_plain_loop(plain, **EXACT)
    assert_same(found, plain)


@pytest.mark.parametrize("optim", ["adamw_torch_fused", "adafactor"])
def test_optimizers_of_training_arguments(optim: str, tmp_path: Path) -> None:
    run = trainer(bert(), tmp_path, optim=optim, max_steps=2)
    run.train()
    assert run.private.steps_taken == 2


def test_ones_own_optimizer_and_schedule(tmp_path: Path) -> None:
    found, plain = bert(), bert()
    optimizer = torch.optim.AdamW(found.parameters(), lr=0.05, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 6)
    trainer(found, tmp_path, optimizers=(optimizer, schedule), **SEEDED).train()
    in_a_plain_loop(plain, **SEEDED)
    assert_same(found, plain)


def test_a_data_set_of_datasets_loses_the_columns_that_the_model_does_not_know(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{**each, "idx": number, "sentence": "secret"} for number, each in enumerate(texts())]
    found, plain = bert(), bert()
    trainer(found, tmp_path, datasets.Dataset.from_list(rows), **SEEDED).train()
    in_a_plain_loop(plain, **SEEDED)
    assert_same(found, plain)


def test_adapters_of_peft_are_trained(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(bert(), peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"]))
    before = weights(model)
    run = trainer(model, tmp_path, max_steps=2)
    run.train()
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {name for name, p in model.named_parameters() if p.requires_grad}
    run.save_model(str(tmp_path / "adapter"))
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()


# Losses of one's own.


def each(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    return F.cross_entropy(outputs.logits, labels, reduction="none")


def test_a_loss_of_ones_own_is_one_for_each_example(tmp_path: Path) -> None:
    found, plain = bert(), bert()
    run = trainer(found, tmp_path, compute_loss_func=each, eval_dataset=texts(20), **SEEDED)
    run.train()
    in_a_plain_loop(plain, **SEEDED)
    assert_same(found, plain)
    assert 0 < run.evaluate()["eval_loss"] < 2


def test_an_overridden_compute_loss_is_followed(tmp_path: Path) -> None:
    class Own(hoarfrost.hf.PrivateTrainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **others: Any) -> Any:
            losses, outputs = super().compute_loss(model, inputs, return_outputs=True)
            return (2 * losses, outputs) if return_outputs else 2 * losses

    found, plain = bert(), bert()
    trainer(found, tmp_path, kind=Own, **SEEDED).train()
    in_a_plain_loop(plain, lambda outputs, batch: 2 * cross_entropy(outputs, batch), **SEEDED)
    assert_same(found, plain)


def mean(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    return F.cross_entropy(outputs.logits, labels)


def test_a_mean_over_the_batch_is_refused_with_what_to_write(tmp_path: Path) -> None:
    run = trainer(bert(), tmp_path, compute_loss_func=mean)
    with pytest.raises(NotPrivate, match=r'compute_loss_func returns a single number.*reduction="none"'):
        run.train()
    assert run.private.steps_taken == 0


def test_a_loss_that_mixes_examples_is_refused(tmp_path: Path) -> None:
    def mixing(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        losses = each(outputs, labels)
        return losses / losses.sum()

    with pytest.raises(NotPrivate, match="example"):
        trainer(bert(), tmp_path, compute_loss_func=mixing).train()


def test_another_loss_of_the_model_is_refused_with_the_line_to_write(tmp_path: Path) -> None:
    """It is not replaced by the usual one without a word."""

    class Weighted(transformers.BertForSequenceClassification):
        def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None) -> Any:
            outputs = super().forward(input_ids=input_ids, attention_mask=attention_mask)
            if labels is not None:
                outputs["loss"] = F.cross_entropy(outputs.logits, labels, weight=torch.tensor([1.0, 20.0]))
            return outputs

    run = trainer(Weighted(bert().config), tmp_path)
    with pytest.raises(NotPrivate, match=r"Weighted is not the mean.*compute_loss_func"):
        run.train()


def test_a_loss_that_cannot_be_seen_is_refused_with_the_line_to_write(tmp_path: Path) -> None:
    class NoLogits(transformers.BertForSequenceClassification):
        def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None) -> Any:
            outputs = super().forward(input_ids=input_ids, attention_mask=attention_mask)
            return {"loss": F.cross_entropy(outputs.logits, labels)}

    with pytest.raises(NotPrivate, match=r"cannot be seen from what NoLogits returns.*compute_loss_func"):
        trainer(NoLogits(bert().config), tmp_path).train()


# Evaluation, callbacks, checkpoints.


def accuracy(predicted: Any) -> dict[str, float]:
    return {"accuracy": float((predicted.predictions.argmax(1) == predicted.label_ids).mean())}


def test_evaluation_and_prediction_are_those_of_a_trainer(tmp_path: Path) -> None:
    held_out = texts(25)
    run = trainer(bert(), tmp_path, eval_dataset=held_out, compute_metrics=accuracy)
    run.train()
    figures = run.evaluate()
    model = copy.deepcopy(run.model).eval()
    with torch.no_grad():
        outputs = model(**padded(held_out))
    assert figures["eval_loss"] == pytest.approx(float(outputs.loss), rel=1e-4)
    predicted = run.predict(held_out)
    torch.testing.assert_close(torch.tensor(predicted.predictions), outputs.logits, rtol=1e-4, atol=1e-5)
    assert predicted.metrics["test_accuracy"] == figures["eval_accuracy"]


def test_early_stopping_and_the_best_model(tmp_path: Path) -> None:
    stop = transformers.EarlyStoppingCallback(early_stopping_patience=1)
    run = trainer(
        bert(), tmp_path, eval_dataset=texts(20), eval_strategy="steps", eval_steps=1, save_strategy="steps",
        save_steps=1, load_best_model_at_end=True, metric_for_best_model="loss", greater_is_better=True,
        learning_rate=1e-9, max_steps=6, callbacks=[stop], compute_loss_func=each,
    )  # fmt: skip
    run.train()
    assert run.private.steps_taken == run.state.global_step < 6
    best = transformers.BertForSequenceClassification.from_pretrained(run.state.best_model_checkpoint)
    assert_same(run.model, best)
    run.save_model(str(tmp_path / "final"))
    assert "epsilon" in (tmp_path / "final" / "budget.txt").read_text()


def everything(folder: Path, **options: Any) -> Any:
    """A run in which every batch is the whole data set, and there is no noise: what follows is known."""
    settings = {"per_device_train_batch_size": 20, "gradient_accumulation_steps": 3, "noise_multiplier": 0.0}
    return trainer(bert(), folder, save_strategy="steps", save_steps=1, **(settings | options))


def test_resuming_goes_on_where_the_run_was(tmp_path: Path) -> None:
    whole = everything(tmp_path / "whole")
    whole.train()
    for at, options in ((2, {}), (3, {"num_train_epochs": 6.0, "max_steps": -1}), (5, {"ignore_data_skip": True})):
        later = everything(tmp_path / "later", **options)
        later.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{at}"))
        assert_same(later.model, whole.model)
        assert (later.state.global_step, later.private.steps_taken) == (6, 6)
        counted = sorted(event.steps for event in later.private.account.counters.values() if event.steps)
        assert counted == sorted((at, 6 - at))
        assert later.state.epoch == whole.state.epoch


def test_what_was_spent_comes_back(tmp_path: Path) -> None:
    """Batches of a fourth of the data: an epoch has four, and a checkpoint may be within one."""
    options = {"save_strategy": "steps", "save_steps": 1, "epsilon": 3.0}
    whole = trainer(bert(), tmp_path / "whole", **options)
    whole.train()
    for at in (1, 4):
        later = trainer(bert(), tmp_path / "later", **options)
        later.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{at}"))
        assert later.private.epsilon() == pytest.approx(whole.private.epsilon(), abs=1e-12)
        assert later.private.account.charged_in_all == 6
        assert later.private.loader.epoch == whole.private.loader.epoch == 2
        assert later.private.loader.steps_drawn == 6


class Break(transformers.TrainerCallback):
    """Something goes wrong after so many steps."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == self.after:
            raise RuntimeError("the machine went down")


def test_steps_that_a_crash_lost_stay_spent(tmp_path: Path) -> None:
    """The ledger knows of them; a calibrated run ends as many steps earlier."""
    ledger = tmp_path / "data.ledger"
    hoarfrost.budget.Ledger.create(ledger, epsilon=3.0, delta=1e-4)
    options = {"save_strategy": "steps", "save_steps": 2, "epsilon": 3.0, "ledger": ledger, "run": "first"}
    with pytest.raises(RuntimeError, match="went down"):
        trainer(bert(), tmp_path / "out", **options, callbacks=[Break(3)]).train()
    later = trainer(bert(), tmp_path / "out", **options)
    later.train(resume_from_checkpoint=True)
    assert (later.private.steps_taken, later.state.global_step, later.private.charged) == (5, 5, 6)
    assert (tmp_path / "out" / "checkpoint-5").is_dir()  # as a Trainer saves at the end
    assert later.private.epsilon() <= 3.0


def test_the_same_trainer_may_resume(tmp_path: Path) -> None:
    run = trainer(bert(), tmp_path, save_strategy="steps", save_steps=2, epsilon=3.0, callbacks=[Break(3)])
    with pytest.raises(RuntimeError, match="went down"):
        run.train()
    run.remove_callback(Break)
    run.train(resume_from_checkpoint=True)
    assert (run.private.steps_taken, run.private.charged) == (5, 6)


def test_weights_whose_cost_is_unknown_are_not_resumed(tmp_path: Path) -> None:
    data = texts()
    plain = transformers.Trainer(
        bert(), arguments(tmp_path / "plain", save_strategy="steps", save_steps=2), data_collator=padded,
        train_dataset=data,
    )  # fmt: skip
    plain.train()
    later = trainer(bert(), tmp_path / "out", data)
    with pytest.raises(NotPrivate, match="was not saved by a PrivateTrainer"):
        later.train(resume_from_checkpoint=str(tmp_path / "plain" / "checkpoint-2"))
    (tmp_path / "plain" / "checkpoint-4" / "optimizer.pt").unlink()
    again = trainer(bert(), tmp_path / "out", data)
    with pytest.raises(NotPrivate, match=r"lacks optimizer\.pt"):
        again.train(resume_from_checkpoint=str(tmp_path / "plain" / "checkpoint-4"))


def test_a_second_run_needs_to_be_a_stage(tmp_path: Path) -> None:
    run = trainer(bert(), tmp_path, epsilon=2.0)
    run.train()
    with pytest.raises(NotPrivate, match=r"train\(\) was called before.*after=trainer\.private"):
        run.train()
    later = trainer(run.model, tmp_path, epsilon=1.0, after=run.private)
    later.train()
    assert later.private.epsilon() > run.private.epsilon() > 1.9


def test_a_part_of_a_batch_that_was_broken_off_is_given_up(tmp_path: Path) -> None:
    class Stop(transformers.TrainerCallback):
        def on_substep_end(self, args: Any, state: Any, control: Any, **others: Any) -> Any:
            control.should_epoch_stop = state.global_step == 1 and self.times < 2
            self.times += control.should_epoch_stop
            return control

        times = 0

    run = trainer(bert(), tmp_path, callbacks=[Stop()], max_steps=-1, num_train_epochs=4.0, epsilon=3.0)
    run.train()
    # Four passes of four steps were planned, and two were broken off: one after a step, and one at its beginning.
    assert run.private.steps_taken == run.state.global_step == 9
    assert run.private.charged == 11
    assert run.private.epsilon() <= 3.0


def test_a_trainer_that_loops_on_is_stopped_by_the_budget(tmp_path: Path) -> None:
    run = trainer(bert(), tmp_path, epsilon=2.0)
    run.train()
    chunks = run.get_train_dataloader().dataset.batches
    with pytest.raises(BudgetSpent, match="plan the run with more steps"):
        next(chunks.next())


# What is not there.


def test_arguments_of_make_private_that_a_trainer_has_elsewhere(tmp_path: Path) -> None:
    for name, instead in [("batch_size", "per_device_train_batch_size="), ("steps", "max_steps=")]:
        with pytest.raises(InvalidValue, match=rf"no {name}=: write {instead}"):
            hoarfrost.hf.PrivateTrainer(bert(), arguments(tmp_path), delta=1e-5, **{name: 10})


def test_a_search_over_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotPrivate, match="every trial of hyperparameter_search is a run of its own"):
        trainer(bert(), tmp_path).hyperparameter_search()


def test_evaluation_on_the_training_data_is_refused(tmp_path: Path) -> None:
    data = texts()
    run = trainer(bert(), tmp_path, data, eval_dataset={"train": data})
    with pytest.raises(NotPrivate, match=r"evaluate\(\) on the training data"):
        run.evaluate()
    with pytest.raises(NotPrivate, match=r"evaluate\(\) on the training data"):
        run.evaluate(data)


def test_there_is_no_run_before_training(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=r"before trainer\.train\(\) has begun"):
        _ = trainer(bert(), tmp_path).private


def test_data_that_cannot_be_drawn_from_is_refused(tmp_path: Path) -> None:
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            yield from texts()

    with pytest.raises(NotPrivate, match="IterableDataset"):
        trainer(bert(), tmp_path, Stream()).train()
