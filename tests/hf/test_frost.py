"""DP-FROST in a PrivateTrainer: it chooses before the first step, by the loss that is trained, and once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import hoarfrost
from hoarfrost import budget
from hoarfrost.freeze import Frost
from hoarfrost.query import Query
from tests.hf.small import bert, padded, texts, trainer, transformers, weights

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(pin_memory|lr_scheduler.step)", "ignore:the (model's config does not say|noise of a round)"
)
FROST: dict[str, Any] = {"ratio": 0.3, "rounds": 2, "sample_rate": 0.3}


class Rates(transformers.TrainerCallback):
    """The learning rate of each step; and what was released when the Trainer's loop began."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, float]] = []
        self.run: Any = None
        self.at_the_beginning = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.at_the_beginning = releases(self.run)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any, **others: Any) -> None:
        self.seen.append((state.global_step, optimizer.param_groups[0]["lr"]))


def releases(run: Any) -> int:
    """How many besides the steps."""
    return len(run.private.account.releases)


def test_it_chooses_before_the_first_step_and_nobody_counts_it(tmp_path: Path) -> None:
    rates, model = Rates(), bert()
    before = weights(model)
    rates.run = run = trainer(model, tmp_path, freeze=Frost(**FROST), epsilon=6.0, callbacks=[rates])
    looked: list[int] = []
    noised = Query._noised
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Query, "_noised", lambda self, *args: (looked.append(run.private.charged), noised(self, *args))[1]
        )
        trained = run.train()
    assert rates.at_the_beginning == 2
    assert looked == [0, 0]
    assert (trained.global_step, run.private.steps_taken, run.private.charged) == (6, 6, 6)
    assert rates.seen == [(step, pytest.approx(0.05 * (1 - step / 6))) for step in range(6)]
    chosen = run.private.freezer.selection
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    live = {name for name, mask in run.private.freezer.live(0, run.private.info()).items() if mask}
    assert moved == live
    assert {"classifier.weight", "classifier.bias"} < moved < set(before)
    assert len(chosen.chosen) > 0


def test_the_rounds_are_in_the_stated_epsilon(tmp_path: Path) -> None:
    run = trainer(bert(), tmp_path, freeze=Frost(**FROST), epsilon=6.0)
    run.train()
    events = [run.private.plan.event(6), *(each.event for each in run.private.plan.releases)]
    assert len(events) == 3
    assert run.statement().epsilon == budget.epsilon(events, 1e-4, accountant="rdp")
    assert 5.9 < run.statement().epsilon <= 6.0
    assert budget.epsilon(events[:1], 1e-4, accountant="rdp") == pytest.approx(0.9 * 6.0, rel=0.01)
    assert "sampling rate 0.3" in str(run.statement())


def test_a_run_that_goes_on_keeps_the_choice_and_does_not_ask_again(tmp_path: Path) -> None:
    options = {"freeze": Frost(**FROST), "epsilon": 6.0, "save_strategy": "steps", "save_steps": 2}
    whole = trainer(bert(), tmp_path / "out", **options)
    whole.train()
    later = trainer(bert(), tmp_path / "later", **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Query, "_sums", _never)
        later.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert (later.state.global_step, later.private.steps_taken, releases(later)) == (6, 6, 2)
    assert later.private.freezer.selection == whole.private.freezer.selection
    assert later.private.freezer.live(3, later.private.info()) == whole.private.freezer.live(3, whole.private.info())
    assert later.private.epsilon() == whole.private.epsilon()


def _never(*args: Any) -> None:
    raise AssertionError("it looked at the data")


def test_a_crash_between_the_rounds_stays_charged(tmp_path: Path) -> None:
    """There is no checkpoint yet: the next run of that name in the ledger begins anew, with fewer steps."""
    ledger = tmp_path / "data.ledger"
    budget.Ledger.create(ledger, epsilon=None, delta=1e-4)
    options = {"freeze": Frost(**FROST), "epsilon": 6.0, "ledger": ledger, "run": "first"}
    noised, calls = Query._noised, iter(range(1, 10))

    def fails(self: Query, exact: Tensor, sensitivity: float) -> Tensor:
        if next(calls) == 2:
            raise RuntimeError("the machine went down")
        return noised(self, exact, sensitivity)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Query, "_noised", fails)
        with pytest.raises(RuntimeError, match="went down"):
            trainer(bert(), tmp_path / "out", **options).train()
    paid = [entry for entry in budget.Ledger(ledger).entries if entry.owner is not None and entry.reserved]
    assert len(paid) == 2
    later = trainer(bert(), tmp_path / "out", **options)
    later.train()
    assert releases(later) == 4
    assert later.private.steps_taken < 6
    assert later.private.epsilon() <= 6.0


class Weighted:
    """A loss of one's own, that knows for how many examples it was asked and whether dropout was on."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, bool]] = []

    def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        self.seen.append((len(labels), self.run.model.training))
        return F.cross_entropy(outputs.logits, labels, reduction="none", weight=torch.tensor([1.0, 3.0]))

    run: Any = None


def test_it_goes_by_the_loss_that_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against one backward pass for each example, with hardly any noise."""
    exact: list[Tensor] = []
    noised = Query._noised
    monkeypatch.setattr(
        Query, "_noised", lambda self, sums, *rest: (exact.append(sums.clone()), noised(self, sums, *rest))[1]
    )
    loss, model = Weighted(), bert(hidden_dropout_prob=0.1)
    frost = Frost(0.3, rounds=1, sample_rate=1.0, noise=1e-4, magnitude="norms")
    loss.run = run = trainer(model, tmp_path, freeze=frost, noise_multiplier=1.0, compute_loss_func=loss, max_steps=1)
    run.train()
    assert set(loss.seen[:60]) == {(1, False)}
    layout = run.private.freezer._layout(run.private.info())
    plain, named = bert(hidden_dropout_prob=0.1).eval(), {}
    named = dict(plain.named_parameters())
    total = torch.zeros(len(layout.candidates), dtype=torch.float64)
    for row in texts():
        batch = padded([row])
        labels = batch.pop("labels")
        value = F.cross_entropy(plain(**batch).logits, labels, reduction="none", weight=torch.tensor([1.0, 3.0])).sum()
        found = torch.autograd.grad(value, list(named.values()), allow_unused=True)
        norms = {name: 0.0 if g is None else float(g.norm()) for name, g in zip(named, found, strict=True)}
        each = [math.hypot(*(norms[n] for n in part.parameters)) / math.sqrt(part.size) for part in layout.candidates]
        total += torch.tensor(each, dtype=torch.float64) / math.hypot(*each)
    torch.testing.assert_close(exact[0], total, rtol=1e-4, atol=1e-6)


def test_what_the_first_batches_are_compared_with_is_not_single_examples(tmp_path: Path) -> None:
    """The mean over one example hides weights of classes, and a model whose loss has them is refused all the same."""

    class OwnLoss(transformers.BertForSequenceClassification):
        def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None) -> Any:
            outputs = super().forward(input_ids=input_ids, attention_mask=attention_mask)
            if labels is not None:
                outputs["loss"] = F.cross_entropy(outputs.logits, labels, weight=torch.tensor([1.0, 20.0]))
            return outputs

    run = trainer(OwnLoss(bert().config), tmp_path, freeze=Frost(**FROST, noise=1.0), noise_multiplier=1.0)
    with pytest.raises(hoarfrost.errors.NotPrivate, match="OwnLoss is not the mean"):
        run.train()


def test_nothing_of_a_selection_is_logged(tmp_path: Path) -> None:
    heard: list[Any] = []

    class Listen(transformers.TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
            heard.append(set(logs))

    trainer(bert(), tmp_path, freeze=Frost(**FROST, noise=1.0), noise_multiplier=1.0, callbacks=[Listen()]).train()
    told = {"learning_rate", "epsilon", "delta", "epoch", "train_runtime", "train_samples_per_second"}
    assert set().union(*heard) == {*told, "train_steps_per_second"}
