"""The losses of a padded batch are those of each example by itself, as the model computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hoarfrost.errors import NotPrivate
from hoarfrost.hf.losses import ModelLosses
from tests.hf.small import WORDS, bert, gpt2, padded, t5, texts, transformers

Batch = dict[str, Tensor]


def labelled(change: Callable[[dict[str, Any]], Any]) -> list[Batch]:
    """Each example in a batch of its own, and the last one is all of them."""
    examples = [{**each, "labels": change(each)} for each in texts(5)]
    return [*(padded([each]) for each in examples), padded(examples)]


def classes(kind: int = 3) -> list[Batch]:
    return labelled(lambda each: each["input_ids"][0] % kind)


def words() -> list[Batch]:
    return labelled(lambda each: each["input_ids"])


def masked() -> list[Batch]:
    """The labels of some tokens alone."""
    return labelled(lambda each: [w if n % 2 else -100 for n, w in enumerate(each["input_ids"])])


def numbers() -> list[Batch]:
    return labelled(lambda each: float(each["input_ids"][0]) / 10)


def as_vectors() -> list[Batch]:
    batches = numbers()
    return [{**batch, "labels": torch.stack([batch["labels"], -batch["labels"]], 1)} for batch in batches]


def several() -> list[Batch]:
    batches = classes()
    return [{**batch, "labels": F.one_hot(batch["labels"], 3).float()} for batch in batches]


def spans() -> list[Batch]:
    """From a word to another."""
    found = []
    for batch in classes():
        labels = batch.pop("labels")
        found.append({**batch, "start_positions": labels, "end_positions": labels % 2})
    return found


def choices() -> list[Batch]:
    """Each example is a text in two versions, which differ in the first word."""
    found = []
    for batch in classes(2):
        other = batch["input_ids"].clone()
        other[:, 0] = 1
        words, mask = torch.stack([batch["input_ids"], other], 1), batch["attention_mask"]
        found.append({"input_ids": words, "attention_mask": torch.stack([mask, mask], 1), "labels": batch["labels"]})
    return found


def decoder_labels(batches: list[Batch]) -> list[Batch]:
    return [{**batch, "labels": torch.where(batch["labels"] < 0, -100, batch["labels"] % WORDS)} for batch in batches]


SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[], list[Batch]]]] = {
    "classes": (lambda: bert(num_labels=3), classes),
    "classes of GPT-2": (lambda: gpt2("GPT2ForSequenceClassification", num_labels=3), classes),
    "a number": (lambda: bert(num_labels=1), numbers),
    "two numbers": (lambda: bert(num_labels=2, problem_type="regression"), as_vectors),
    "several labels": (lambda: bert(num_labels=3), several),
    "a class of each token": (lambda: bert("BertForTokenClassification", num_labels=WORDS), masked),
    "masked words": (lambda: bert("BertForMaskedLM"), masked),
    "next words": (gpt2, words),
    "next words of some": (gpt2, masked),
    "next words of BERT": (lambda: bert("BertLMHeadModel", is_decoder=True), words),
    "an answer's place": (lambda: bert("BertForQuestionAnswering"), spans),
    "a choice": (lambda: bert("BertForMultipleChoice"), choices),
    "from text to text": (t5, lambda: decoder_labels(words())),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_losses_are_those_of_each_example_alone(name: str) -> None:
    make, batches = SETTINGS[name]
    model, (*alone, together) = make(), batches()
    one_by_one = torch.stack([model.eval()(**batch).loss.detach() for batch in alone])
    losses, _ = ModelLosses(model)(model, together)
    assert not model.training or model.train()
    torch.testing.assert_close(losses.detach(), one_by_one, rtol=1e-4, atol=1e-5)


def test_an_example_without_a_label_that_counts_has_no_loss() -> None:
    model = gpt2()
    batch = words()[-1]
    batch["labels"] = batch["labels"].clone()
    batch["labels"][2] = -100
    losses, _ = ModelLosses(model)(model, batch)
    assert losses[2] == 0
    assert (losses > 0).sum() == 4


def test_an_answer_that_is_not_in_the_text_does_not_count() -> None:
    model, batch = bert("BertForQuestionAnswering"), spans()[-1]
    whole, _ = ModelLosses(model)(model, batch)
    mask = batch["attention_mask"]
    logits = model(input_ids=batch["input_ids"], attention_mask=mask).start_logits.masked_fill(mask == 0, -1e9)
    start = F.cross_entropy(logits, batch["start_positions"], reduction="none")
    beyond, _ = ModelLosses(model)(model, {**batch, "end_positions": torch.full_like(batch["end_positions"], 30)})
    torch.testing.assert_close(beyond, start / 2)
    assert (whole > beyond).all()


@pytest.mark.parametrize("name", ["classes", "masked words", "next words"])
def test_label_smoothing_is_that_of_transformers(name: str) -> None:
    make, batches = SETTINGS[name]
    model, (*alone, together) = make().eval(), batches()
    smoother = transformers.trainer_pt_utils.LabelSmoother(epsilon=0.2)
    want = []
    for batch in alone:
        labels = batch["labels"]
        outputs = model(**{key: value for key, value in batch.items() if key != "labels"})
        want.append(smoother(outputs, labels, shift_labels=name == "next words").detach())
    losses, _ = ModelLosses(model, 0.2)(model, together)
    torch.testing.assert_close(losses.detach(), torch.stack(want), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["a number", "several labels"])
def test_what_cannot_be_smoothed_is_refused(name: str) -> None:
    make, batches = SETTINGS[name]
    model = make()
    with pytest.raises(NotPrivate, match=r"label_smoothing_factor=0\.2.*there is nothing to smooth"):
        ModelLosses(model, 0.2)(model, batches()[-1])


def test_no_random_number_is_drawn_to_compare_losses() -> None:
    """A run with dropout is the same, compared or not."""
    model, batch = bert(hidden_dropout_prob=0.5), classes(2)[-1]
    losses = ModelLosses(model)
    torch.manual_seed(3)
    first, _ = losses(model.train(), batch)
    losses._checked = 100
    torch.manual_seed(3)
    again, _ = losses(model.train(), batch)
    torch.testing.assert_close(first, again)


@pytest.mark.parametrize("factor", [0.5, 1.01])
def test_another_loss_is_refused(factor: float) -> None:
    class Other(transformers.BertForSequenceClassification):
        def forward(self, *args: Any, **inputs: Any) -> Any:
            outputs = super().forward(*args, **inputs)
            outputs["loss"] = None if outputs.loss is None else factor * outputs.loss
            return outputs

    model = Other(bert().config)
    with pytest.raises(NotPrivate, match="the loss of Other is not the mean of the usual loss of its examples"):
        ModelLosses(model)(model, classes(2)[-1])


def test_contrastive_losses_are_refused() -> None:
    """They are about pairs of examples."""
    torch.manual_seed(1)
    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
              "image_size": 8, "patch_size": 4}  # fmt: skip
    text = {"vocab_size": WORDS, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
            "num_attention_heads": 2, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}  # fmt: skip
    model = transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=4))
    batch = {"input_ids": torch.randint(3, WORDS, (4, 5)), "pixel_values": torch.randn(4, 3, 8, 8)}
    with pytest.raises(NotPrivate, match=r"cannot be seen from what CLIPModel returns.*compute_loss_func"):
        ModelLosses(model)(model, batch)
