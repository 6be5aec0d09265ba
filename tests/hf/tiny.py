"""Small models of the transformers library from configs, and texts for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

datasets = pytest.importorskip("datasets")
transformers = pytest.importorskip("transformers")

WORDS, PAD = 31, 1  # RoBERTa and MPNet count positions from the padding's number
LENGTHS = (7, 3, 4, 1, 6)
SIZES = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
TEXT = {**SIZES, "vocab_size": WORDS, "max_position_embeddings": 18, "pad_token_id": PAD}
ENDS = {"bos_token_id": 0, "eos_token_id": 2}


def of(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    """Makes a model of this class."""
    return lambda: getattr(transformers, model)(getattr(transformers, config)(**settings))


DISTILBERT = {"vocab_size": WORDS, "dim": 12, "n_layers": 2, "n_heads": 2, "hidden_dim": 20, "pad_token_id": PAD}
GPT2 = {"vocab_size": WORDS, "n_embd": 12, "n_layer": 2, "n_head": 2, "n_positions": 16, "pad_token_id": PAD, **ENDS}
T5 = {"vocab_size": WORDS, "d_model": 12, "d_kv": 6, "d_ff": 20, "num_layers": 2, "num_heads": 2, "pad_token_id": PAD,
      "relative_attention_num_buckets": 8, "decoder_start_token_id": 0, "eos_token_id": 2}  # fmt: skip
LLAMA = {**TEXT, **ENDS, "num_key_value_heads": 1}
IMAGES = {**SIZES, "image_size": 8, "patch_size": 4}

CLASSIFIERS = {
    "BERT": of("BertForSequenceClassification", "BertConfig", **TEXT),
    "RoBERTa": of("RobertaForSequenceClassification", "RobertaConfig", **TEXT),
    "DistilBERT": of("DistilBertForSequenceClassification", "DistilBertConfig", **DISTILBERT),
    "MPNet": of("MPNetForSequenceClassification", "MPNetConfig", **TEXT),
    "GPT-2": of("GPT2ForSequenceClassification", "GPT2Config", **GPT2),
    "Llama": of("LlamaForSequenceClassification", "LlamaConfig", **LLAMA),
    "T5": of("T5ForSequenceClassification", "T5Config", **T5),
}
LANGUAGE_MODELS = {
    "GPT-2": of("GPT2LMHeadModel", "GPT2Config", **GPT2),
    "Llama": of("LlamaForCausalLM", "LlamaConfig", **LLAMA),
    "T5": of("T5ForConditionalGeneration", "T5Config", **T5),
    "BERT": of("BertForMaskedLM", "BertConfig", **TEXT),
}
VISION = {
    "ViT": of("ViTForImageClassification", "ViTConfig", **IMAGES),
    "CLIP": of("CLIPVisionModelWithProjection", "CLIPVisionConfig", **IMAGES, projection_dim=3),
}


def texts(classes: int = 2) -> dict[str, Tensor]:
    """Texts of `LENGTHS` with their labels, padded to the longest; each ends with the word 2, as T5 wants it."""
    ids = torch.randint(3, WORDS, (len(LENGTHS), max(LENGTHS)))
    lengths = torch.tensor(LENGTHS)
    mask = torch.arange(max(LENGTHS)) < lengths[:, None]
    ids[torch.arange(len(LENGTHS)), lengths - 1] = 2
    labels = torch.arange(len(LENGTHS)) % classes
    return {"input_ids": ids.masked_fill(~mask, PAD), "attention_mask": mask.long(), "labels": labels}


def tokens() -> dict[str, Tensor]:
    """Texts whose labels are words, some of which do not count: of T5 and BERT; and their own, of the others."""
    batch = texts()
    words = torch.randint(3, WORDS, batch["input_ids"].shape)
    return {**batch, "labels": words.masked_fill(batch["attention_mask"] == 0, -100)}


def unpadded(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """One text as it is without the others."""
    length = int(batch["attention_mask"].sum())
    return {name: t[:, :length] if t.dim() > 1 else t for name, t in batch.items()}


def tokenizer() -> Any:
    """Whose words are numbers."""
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {f"w{k}": k for k in range(WORDS)}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token=f"w{PAD}")


def dataset(rows: int = 24) -> Any:
    """A data set of texts that are not padded, with a column that no model takes."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 9, (rows,), generator=generator).tolist()
    ids = [[*torch.randint(3, WORDS, (length - 1,), generator=generator).tolist(), 2] for length in lengths]
    columns = {"input_ids": ids, "attention_mask": [[1] * n for n in lengths], "labels": [n % 2 for n in lengths]}
    return datasets.Dataset.from_dict(columns)
