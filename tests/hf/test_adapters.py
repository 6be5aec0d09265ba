"""Bottleneck adapters stand where the papers put them, and begin near to the model that was there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hoarfrost.errors import InvalidValue
from hoarfrost.hf import add_adapters
from hoarfrost.hf.adapters import Adapted

transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
TEXT = {"vocab_size": 31, **SIZES}
IMAGES = {**SIZES, "image_size": 8, "patch_size": 4}
DISTILBERT = {"vocab_size": 31, "dim": 12, "n_layers": 2, "n_heads": 2, "hidden_dim": 20}
GPT2 = {"vocab_size": 31, "n_embd": 12, "n_layer": 2, "n_head": 2, "n_positions": 16}
T5 = {"vocab_size": 31, "d_model": 12, "d_kv": 6, "d_ff": 20, "num_layers": 2, "num_heads": 2}
MODELS: dict[str, tuple[str, dict[str, int]]] = {
    "Bert": ("ForSequenceClassification", TEXT),
    "Roberta": ("ForSequenceClassification", TEXT),
    "MPNet": ("ForSequenceClassification", TEXT),
    "DistilBert": ("ForSequenceClassification", DISTILBERT),
    "ViT": ("ForImageClassification", IMAGES),
    "CLIPVision": ("Model", IMAGES),
    "GPT2": ("LMHeadModel", GPT2),
    "Llama": ("ForCausalLM", TEXT),
    "T5": ("EncoderModel", T5),
}


def build(kind: str) -> Any:
    torch.manual_seed(0)
    head, sizes = MODELS[kind]
    return getattr(transformers, kind + head)(getattr(transformers, kind + "Config")(**sizes)).eval()


def output(model: Any) -> torch.Tensor:
    torch.manual_seed(1)
    takes_images = model.main_input_name == "pixel_values"
    with torch.no_grad():
        returned = model(torch.randn(3, 3, 8, 8) if takes_images else torch.randint(31, (3, 5)))
    return returned[0]


def adapted(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, Adapted)]


@pytest.mark.parametrize("kind", MODELS)
def test_adapters_are_found_a_place_and_change_little_at_first(kind: str) -> None:
    model = build(kind)
    before = output(model)
    assert len(adapted(add_adapters(model, size=3, kind="houlsby"))) == 4  # two in each of two blocks
    assert len(adapted(add_adapters(build(kind), size=3, kind="pfeiffer"))) == 2
    assert (output(model) - before).abs().max() < 0.02 * before.abs().max()
    assert not torch.equal(output(model), before)


def test_what_is_trained_is_what_the_papers_train() -> None:
    def trained(kind: Any, **options: Any) -> set[str]:
        model = add_adapters(build("Bert"), size=3, kind=kind, **options)
        return {name for name, p in model.named_parameters() if p.requires_grad}

    assert all("adapter" in name or "classifier" in name for name in trained("pfeiffer"))
    assert len(trained("pfeiffer")) == 2 * 4 + 2
    norms = {name for name in trained("houlsby") if "LayerNorm" in name}
    assert len(norms) == 2 * 5  # weight and bias of each
    assert len(trained("houlsby") - norms) == 4 * 4 + 2
    assert trained("pfeiffer", train=("*.pooler.*",)) - trained("pfeiffer") == {
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
    }


def test_what_makes_no_sense_is_refused_with_the_fix() -> None:
    with pytest.raises(InvalidValue, match="no blocks whose sublayers"):
        add_adapters(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(InvalidValue, match="has an adapter already"):
        add_adapters(add_adapters(build("Bert")))
    with pytest.raises(InvalidValue, match="houlsby"):
        add_adapters(build("Bert"), kind="lora")  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="no parameter has a name like"):
        add_adapters(build("Bert"), train=("decoder.*",))
    with pytest.raises(InvalidValue, match="size"):
        add_adapters(build("Bert"), size=0)
