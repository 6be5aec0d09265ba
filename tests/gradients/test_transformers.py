"""Models of the transformers library as they come: tied heads, Conv1D, class tokens, norms of their own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests import oracle
from tests.support.engines import announce, engine_for, flat, sums_so_far

transformers = pytest.importorskip("transformers")
TEXT = {"vocab_size": 31, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}


def bert() -> nn.Module:
    return transformers.BertForSequenceClassification(transformers.BertConfig(**TEXT, max_position_embeddings=16))


def roberta() -> nn.Module:
    return transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**TEXT, max_position_embeddings=16))


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(vocab_size=31, n_embd=12, n_layer=2, n_head=2, n_positions=16)
    return transformers.GPT2LMHeadModel(config)


def llama() -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT, max_position_embeddings=16))


def vit() -> nn.Module:
    options = {k: v for k, v in TEXT.items() if k != "vocab_size"}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**options, image_size=8, patch_size=4))


def words() -> dict[str, Tensor]:
    return {"input_ids": torch.randint(31, (5, 6)), "attention_mask": torch.ones(5, 6, dtype=torch.long)}


def padded() -> dict[str, Tensor]:
    batch = words()
    for row, length in enumerate((6, 3, 4, 1, 5)):
        batch["attention_mask"][row, length:] = 0
    return batch


def images() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(5, 3, 8, 8)}


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], dict[str, Tensor]]]] = {
    "BERT": (bert, padded), "RoBERTa": (roberta, words), "GPT-2": (gpt2, words), "GPT-2 padded": (gpt2, padded),
    "Llama": (llama, words), "ViT": (vit, images),
}  # fmt: skip


def loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
    return model(**batch).logits.square().flatten(1).sum(1).sum()


@pytest.mark.parametrize("kind", CASES)
def test_the_library_s_models_are_private_as_they_are(kind: str) -> None:
    torch.manual_seed(0)
    make, inputs = CASES[kind]
    model, batch = make().eval(), inputs()  # eval: dropout would differ between the two
    plain = copy.deepcopy(model)
    per_example = oracle.gradients(plain, batch, loss)
    norm = oracle.halving_norm(per_example)
    engine = engine_for(model, norm)
    announce(engine, 5)
    loss(model, batch).backward()
    expected = oracle.clipped_sum(per_example, norm)
    got = {name: sums_so_far(engine).get(name, torch.zeros_like(want)) for name, want in expected.items()}
    torch.testing.assert_close(flat(got), flat(expected), rtol=1e-3, atol=1e-4 * norm)
