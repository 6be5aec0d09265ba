"""The cache of frozen layers in models of the transformers library: their steps are those without it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import hoarfrost
from hoarfrost.errors import InvalidValue
from tests.hf import tiny

transformers = pytest.importorskip("transformers")
STEPS = 6
# By a part of their names: what is trained, the head alone or the last layer, too.
HEAD = ("classifier", "pre_classifier", "score", "classification_head", "visual_projection")
LAST = (*HEAD, "layer.1.", "layers.1.", "h.1.", "block.1.", "pooler", "ln_f", "model.norm", "final_layer_norm")


def without_dropout(model: Any) -> nn.Module:
    """As its configuration could say."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout_prob", "dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def trained(kind: str, live: tuple[str, ...], cache: bool, data: Any, **options: Any) -> tuple[Any, list[Tensor]]:
    torch.manual_seed(0)
    model: Any = without_dropout((tiny.CLASSIFIERS | tiny.VISION)[kind]())
    model.config.use_cache = False
    for name, p in model.named_parameters():
        p.requires_grad_(any(part in name for part in live))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    settings = {"noise_multiplier": 0.0, "delta": 1e-5, "clip": 0.3, "seed": 0, "steps": STEPS, "sample_rate": 0.5}
    run = hoarfrost.make_private(model, optimizer, data, cache_frozen=cache, max_physical_batch=5, **settings | options)
    while run.steps_taken < STEPS:
        for batch in run.loader:
            labels = batch.pop("labels")
            output = model(**batch)
            scores = output.image_embeds if "image_embeds" in output else output.logits
            run.optimizer.backward(hoarfrost.losses.cross_entropy(scores, labels))
            run.optimizer.step()
            if run.steps_taken == STEPS:
                break
    return run, [p.detach().clone() for p in model.parameters()]


def check(kind: str, live: tuple[str, ...], data: Any, **options: Any) -> hoarfrost.Private:
    _, wanted = trained(kind, live, False, data, **options)
    run, found = trained(kind, live, True, data, **options)
    start = (tiny.CLASSIFIERS | tiny.VISION)[kind]
    torch.manual_seed(0)
    assert any(not torch.equal(a, b) for a, b in zip(wanted, start().parameters(), strict=True))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    return run


def texts(padding: bool | str = True) -> DataLoader[Any]:
    collate = transformers.DataCollatorWithPadding(tiny.tokenizer(), padding=padding, max_length=10)
    return DataLoader(tiny.dataset(), collate_fn=collate)


@pytest.mark.parametrize("live", [HEAD, LAST], ids=["head", "last layer"])
@pytest.mark.parametrize("kind", [kind for kind in tiny.CLASSIFIERS if kind != "T5"])
def test_texts_padded_to_any_length(kind: str, live: tuple[str, ...]) -> None:
    run = check(kind, live, texts(), lengths=lambda row: len(row["input_ids"]))
    cache = run.frozen_cache
    assert cache is not None
    assert 12 < cache.rows <= 24
    plan = cache._plan
    assert plan is not None
    assert plan.cut
    assert sum(len(output.kept) for output in plan.outputs) == 1  # of all modules, one tensor is stored


def test_a_model_that_returns_what_stands_at_padded_places_needs_a_fixed_length() -> None:
    """T5's classifier returns the encoder's last states."""
    run = check("T5", HEAD, texts("max_length"))
    assert run.frozen_cache is not None
    assert run.frozen_cache.rows > 12


@pytest.mark.parametrize("kind", tiny.VISION)
def test_images(kind: str) -> None:
    data = [{"pixel_values": torch.randn(3, 8, 8), "labels": k % 2} for k in range(24)]
    run = check(kind, HEAD, data)
    assert run.frozen_cache is not None
    assert run.frozen_cache.rows > 12


def test_dropout_in_frozen_layers_is_refused_by_name() -> None:
    model = tiny.CLASSIFIERS["BERT"]().requires_grad_(False)
    model.classifier.requires_grad_(True)
    optimizer = torch.optim.SGD(model.classifier.parameters(), lr=0.1)
    run = hoarfrost.make_private(
        model, optimizer, texts(), noise_multiplier=1.0, delta=1e-5, sample_rate=0.5, cache_frozen=True
    )
    with pytest.raises(InvalidValue, match=r"bert\.embeddings\.dropout \(Dropout\) draws random numbers.*eval\(\)"):
        model(**next(iter(run.loader)))
