"""Models of the transformers library as they come: tied heads, Conv1D, class tokens, relative positions, padding."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

import hoarfrost
from hoarfrost.errors import NotPrivate
from hoarfrost.losses import token_cross_entropy
from tests import oracle
from tests.hf import tiny
from tests.support.engines import announce, engine_for, sums_so_far

datasets = pytest.importorskip("datasets")
transformers = pytest.importorskip("transformers")
Batch = dict[str, Tensor]


def check(
    make: Callable[[], nn.Module], batch: Batch, losses: Callable[..., Tensor], plain: Callable[..., Tensor]
) -> None:
    """Sums clipped at the median norm equal those of one backward pass for each example, without its padding."""
    model = make().eval()  # dropout would differ between the two
    with torch.no_grad():  # or attention hardly matters, as the library begins
        for p in model.parameters():
            p *= 5 if p.dim() > 1 else 1
    per_example = oracle.gradients(copy.deepcopy(model), batch, plain)
    norm = oracle.halving_norm(per_example)
    engine = engine_for(model, norm)
    announce(engine, len(batch["labels"]))
    losses(model, batch).sum().backward()
    expected = oracle.clipped_sum(per_example, norm)
    got = {name: sums_so_far(engine).get(name, torch.zeros_like(want)) for name, want in expected.items()}
    for name, want in expected.items():
        size = max(float(want.abs().max()), 1e-4 * norm)  # a bias of keys has no gradient but for rounding
        torch.testing.assert_close(got[name], want, rtol=0, atol=2e-3 * size, msg=lambda m, name=name: f"{name}: {m}")


def classified(model: Any, batch: Batch) -> Tensor:
    inputs = {name: t for name, t in batch.items() if name != "labels"}
    output = model(**inputs)
    scores = output.image_embeds if "image_embeds" in output else output.logits
    return F.cross_entropy(scores, batch["labels"], reduction="none")


@pytest.mark.parametrize("kind", tiny.CLASSIFIERS)
def test_classifiers_of_padded_texts_are_private_as_they_are(kind: str) -> None:
    torch.manual_seed(0)
    check(tiny.CLASSIFIERS[kind], tiny.texts(), classified, lambda m, one: classified(m, tiny.unpadded(one)).sum())


@pytest.mark.parametrize("kind", tiny.VISION)
def test_vision_models_are_private_as_they_are(kind: str) -> None:
    torch.manual_seed(0)
    images = {"pixel_values": torch.randn(5, 3, 8, 8), "labels": torch.arange(5) % 2}
    check(tiny.VISION[kind], images, classified, lambda m, one: classified(m, one).sum())


@pytest.mark.parametrize("kind", tiny.LANGUAGE_MODELS)
def test_language_models_with_one_loss_for_each_text(kind: str) -> None:
    """Their own loss of a single unpadded text is the mean over its tokens."""

    def losses(model: Any, batch: Batch) -> Tensor:
        inputs = {name: t for name, t in batch.items() if name != "labels"}
        if kind == "T5":
            inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(batch["labels"])
        logits, labels = model(**inputs).logits, batch["labels"]
        shifted = kind in ("GPT-2", "Llama")
        return token_cross_entropy(logits[:, :-1], labels[:, 1:]) if shifted else token_cross_entropy(logits, labels)

    def own(model: Any, one: Batch) -> Tensor:
        loss = model(**tiny.unpadded(one)).loss
        return torch.zeros((), requires_grad=True) * 0 if loss.isnan() else loss  # of a text of one word: no next one

    torch.manual_seed(0)
    check(tiny.LANGUAGE_MODELS[kind], tiny.tokens(), losses, own)


# Whole runs.


def run_of(model: nn.Module, data: Any, **options: Any) -> hoarfrost.Private:
    settings = {"noise_multiplier": 0.0, "delta": 1e-5, "clip": 0.5, "seed": 0, "epochs": 2}
    return hoarfrost.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), data, **(settings | options))


@pytest.mark.filterwarnings("ignore:a step that is noise alone")
@pytest.mark.parametrize("kind", tiny.CLASSIFIERS)
def test_a_data_set_with_dynamic_padding_and_the_model_s_own_loss(kind: str) -> None:
    torch.manual_seed(0)
    model = tiny.CLASSIFIERS[kind]()
    before, takes = copy.deepcopy(model.state_dict()), inspect.signature(model.forward)
    data = DataLoader(tiny.dataset(), collate_fn=transformers.DataCollatorWithPadding(tiny.tokenizer()))
    run = run_of(model, data, clip=1e6, batch_size=1.5)
    assert inspect.signature(model.forward) == takes
    sizes = []
    for batch in run.loader:
        sizes.append(len(batch["labels"]))
        output = model(**batch)
        assert output.logits.shape[0] == len(batch["labels"])
        output.loss.backward()
        run.optimizer.step()
    assert 0 in sizes
    assert max(sizes) > 1
    still = [name for name, t in model.state_dict().items() if torch.equal(t, before[name])]
    assert still == []


def test_a_data_set_with_set_format_torch() -> None:
    columns = {"input_ids": torch.randint(3, tiny.WORDS, (20, 6)).tolist(), "labels": [k % 2 for k in range(20)]}
    data = datasets.Dataset.from_dict(columns)
    data.set_format("torch")
    run = run_of(tiny.CLASSIFIERS["BERT"](), data, batch_size=10)
    for batch in run.loader:
        run.model(**batch).loss.backward()
        run.optimizer.step()
    assert run.steps_taken == 2


@pytest.mark.parametrize("kind", tiny.LANGUAGE_MODELS)
def test_a_token_loss_of_the_model_s_own_is_refused_with_the_line_to_write(kind: str) -> None:
    torch.manual_seed(0)
    batch = tiny.tokens()
    rows = [{name: t[k] for name, t in batch.items()} for k in range(5)]
    run = run_of(tiny.LANGUAGE_MODELS[kind](), rows, sample_rate=1.0)
    for handed in run.loader:
        with pytest.raises(NotPrivate, match=r"call it without labels.*optimizer\.backward.*token_cross_entropy"):
            run.model(**handed).loss.backward()
        break


# Signatures.


def test_signatures_are_those_of_the_plain_model() -> None:
    model = tiny.CLASSIFIERS["BERT"]()
    plain = inspect.signature(model.forward)
    layer = inspect.signature(model.classifier.forward)
    run_of(model, tiny.dataset(), batch_size=5)
    assert inspect.signature(model.forward) == plain
    assert inspect.signature(model.classifier.forward) == layer
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert inspect.signature(twin.forward) == plain


def test_a_trainer_that_is_built_afterwards_drops_no_column_that_the_model_takes() -> None:
    model = tiny.CLASSIFIERS["BERT"]()
    data = tiny.dataset().add_column("title", ["a"] * 24)
    run_of(model, data.remove_columns("title"), batch_size=5)
    arguments = transformers.TrainingArguments(use_cpu=True, report_to=[])
    kept = transformers.Trainer(model, arguments)._remove_unused_columns(data)
    assert kept.column_names == ["input_ids", "attention_mask", "labels"]
