"""Chunks of like length and the cache of frozen layers in a PrivateTrainer: the steps are those without them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hoarfrost.errors import InvalidValue, NotPrivate
from hoarfrost.hf.arguments import refuse_arguments
from hoarfrost.hf.lengths import lengths_for
from tests.hf.small import arguments, assert_same, bert, in_a_plain_loop, padded, texts, trainer, transformers, weights

pytestmark = pytest.mark.filterwarnings("ignore:.*(pin_memory|lr_scheduler.step)")
SEEDED = {"seed": 3, "noise_multiplier": 1.0, "clip": 0.1}
NEW = hasattr(arguments(Path("out")), "train_sampling_strategy")
BY_LENGTH: dict[str, Any] = {"train_sampling_strategy": "group_by_length"} if NEW else {"group_by_length": True}


def partly_frozen() -> Any:
    """Two layers, of which the second is trained."""
    model = bert(num_hidden_layers=2)
    model.bert.requires_grad_(False)
    model.bert.encoder.layer[-1].requires_grad_(True)
    return model


class Widths:
    """A collate function that sees how its chunks are padded."""

    def __init__(self) -> None:
        self.tokens = self.computed = 0

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = padded(rows)
        self.tokens += int(batch["attention_mask"].sum())
        self.computed += batch["attention_mask"].numel()
        return batch


# Chunks of like length.


@pytest.mark.parametrize("given", [
    BY_LENGTH, {"lengths": lambda row: len(row["input_ids"])}, {"lengths": [len(row["input_ids"]) for row in texts()]},
], ids=["TrainingArguments", "function", "list"])  # fmt: skip
def test_the_steps_are_those_without_lengths_and_less_is_padding(given: dict[str, Any], tmp_path: Path) -> None:
    found, plain, with_lengths, without = bert(), bert(), Widths(), Widths()
    run = trainer(found, tmp_path, data_collator=with_lengths, **given, **SEEDED)
    run.train()
    want = in_a_plain_loop(plain, collate=without, **SEEDED)
    assert_same(found, plain)
    assert run.private.epsilon() == want.epsilon()
    assert with_lengths.tokens == without.tokens  # the same texts
    assert with_lengths.computed - with_lengths.tokens < 0.5 * (without.computed - without.tokens)


def test_lengths_are_of_the_rows_with_all_their_columns(tmp_path: Path) -> None:
    """Also with those that the model does not know, which it does not get."""
    datasets = pytest.importorskip("datasets")
    rows = [{**each, "sentence": "word " * len(each["input_ids"])} for each in texts()]
    found, plain, widths, without = bert(), bert(), Widths(), Widths()
    data = datasets.Dataset.from_list(rows)
    trainer(found, tmp_path, data, data_collator=widths, lengths=lambda row: len(row["sentence"]), **SEEDED).train()
    in_a_plain_loop(plain, collate=without, **SEEDED)
    assert_same(found, plain)
    assert widths.computed - widths.tokens < 0.5 * (without.computed - without.tokens)


def test_lengths_that_a_plain_trainer_finds() -> None:
    """A column of lengths, or how long a row's first input is; none where nobody asks."""
    args = SimpleNamespace(group_by_length=True, length_column_name="size")
    rows = [{"input_ids": [1, 2], "words": [1, 2, 3]}, {"input_ids": [1], "words": []}]
    assert lengths_for(args, rows, None, None).tolist() == [2, 1]
    assert lengths_for(args, rows, SimpleNamespace(model_input_names=["words"]), None).tolist() == [3, 0]
    assert lengths_for(args, rows, None, [7, 8]).tolist() == [7, 8]

    class WithColumn(list[Any]):
        column_names = ("input_ids", "size")

        def __getitem__(self, key: Any) -> Any:
            return [9, 5] if key == "size" else super().__getitem__(key)

    assert lengths_for(args, WithColumn(rows), None, None).tolist() == [9, 5]
    args = SimpleNamespace(train_sampling_strategy=SimpleNamespace(value="random"), group_by_length=False)
    assert lengths_for(args, rows, None, None) is None


@pytest.mark.skipif(not NEW, reason="this version of transformers does not have it")
def test_other_orders_are_refused_with_the_one_that_is_taken(tmp_path: Path) -> None:
    for strategy in ("sequential", "batch_rebalance"):
        with pytest.raises(NotPrivate, match=r"train_sampling_strategy=.*or say \"group_by_length\""):
            refuse_arguments(arguments(tmp_path, train_sampling_strategy=strategy))


def test_lengths_that_are_none_are_refused_before_anything_is_spent(tmp_path: Path) -> None:
    run = trainer(bert(), tmp_path, lengths=[1, 2, 3])
    with pytest.raises(InvalidValue, match="lengths has 3 numbers"):
        run.train()


# The cache.


def test_the_steps_are_those_without_a_cache_and_no_evaluation_forgets_it(tmp_path: Path) -> None:
    found, plain = partly_frozen(), partly_frozen()
    start = weights(found)
    run = trainer(found, tmp_path, cache_frozen=True, max_steps=30, eval_dataset=texts(9), eval_strategy="steps",
                  eval_steps=5, **SEEDED)  # fmt: skip
    want = in_a_plain_loop(plain, steps=30, **SEEDED)
    run.train()
    assert_same(found, plain)
    assert run.private.epsilon() == want.epsilon()
    cache = run.private.frozen_cache
    assert cache is not None
    assert "bert.encoder.layer.0" in cache.modules
    assert cache.rows == len({tuple(row["input_ids"]) for row in texts()})
    moved = {name for name, p in found.named_parameters() if not torch.equal(p, start[name])}
    assert moved == {name for name, p in found.named_parameters() if p.requires_grad}


def test_dropout_in_frozen_layers_is_refused(tmp_path: Path) -> None:
    model = bert(num_hidden_layers=2, hidden_dropout_prob=0.1)
    model.bert.requires_grad_(False)
    with pytest.raises(InvalidValue, match=r"cache_frozen: .*random|cache_frozen: .*[Dd]ropout"):
        trainer(model, tmp_path, cache_frozen=True).train()


# Both, and going on.


class Stop(transformers.TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> Any:
        control.should_training_stop = state.global_step == 3
        return control


def test_a_resumed_run_goes_on_equally(tmp_path: Path) -> None:
    """Every batch is the whole data set and there is no noise: what follows is known."""
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 20, "gradient_accumulation_steps": 3, "noise_multiplier": 0.0, "clip": 0.1,
        "optim": "sgd", "save_strategy": "steps", "save_steps": 1,
    }  # fmt: skip
    plain = partly_frozen()
    trainer(plain, tmp_path / "plain", **settings).train()
    start = weights(partly_frozen())
    assert any(not torch.equal(start[name], p) for name, p in plain.named_parameters())
    both = {"lengths": lambda row: len(row["input_ids"]), "cache_frozen": True}
    trainer(partly_frozen(), tmp_path / "out", **settings, **both, callbacks=[Stop()]).train()
    for options in (both, {}):  # with the same, and without: neither belongs to the run
        later = trainer(partly_frozen(), tmp_path / "later", **settings, **options)
        later.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))
        assert (later.state.global_step, later.private.steps_taken) == (6, 6)
        assert_same(later.model, plain)
