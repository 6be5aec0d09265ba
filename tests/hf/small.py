"""Tiny models of transformers from configs, texts for them, and a private loop without a Trainer to compare with."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

import hoarfrost

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
# What a bf16 run leaves in the environment, accelerate's next one would take for its own setting.
os.environ.pop("ACCELERATE_MIXED_PRECISION", None)

WORDS = 23
SIZES: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12,
    "max_position_embeddings": 16, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


def bert(kind: str = "BertForSequenceClassification", **options: Any) -> Any:
    torch.manual_seed(1)
    return getattr(transformers, kind)(transformers.BertConfig(**(SIZES | options)))


def gpt2(kind: str = "GPT2LMHeadModel", **options: Any) -> Any:
    torch.manual_seed(1)
    config = {
        "vocab_size": WORDS, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16, "pad_token_id": 0,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
    }  # fmt: skip
    return getattr(transformers, kind)(transformers.GPT2Config(**(config | options)))


def t5(**options: Any) -> Any:
    torch.manual_seed(1)
    config = {
        "vocab_size": WORDS, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0,
        "decoder_start_token_id": 0, "pad_token_id": 0,
    }  # fmt: skip
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**(config | options)))


def texts(n: int = 60, classes: int = 2) -> list[dict[str, Any]]:
    """Of three to seven words; the label is about the first one."""
    draw = torch.Generator().manual_seed(7)
    found = []
    for _ in range(n):
        length = int(torch.randint(3, 8, (), generator=draw))
        words = torch.randint(1, WORDS, (length,), generator=draw).tolist()
        found.append({"input_ids": words, "labels": words[0] % classes})
    return found


def padded(examples: list[dict[str, Any]]) -> dict[str, Tensor]:
    """A batch as a tokenizer pads it; labels of tokens are padded by -100."""
    longest = max(len(example["input_ids"]) for example in examples)

    def pad(words: list[int], by: int) -> list[int]:
        return words + [by] * (longest - len(words))

    batch = {
        "input_ids": torch.tensor([pad(each["input_ids"], 0) for each in examples]),
        "attention_mask": torch.tensor([pad([1] * len(each["input_ids"]), 0) for each in examples]),
    }
    labels = [pad(each["labels"], -100) if isinstance(each["labels"], list) else each["labels"] for each in examples]
    return {**batch, "labels": torch.tensor(labels)}


def language(examples: list[dict[str, Any]]) -> dict[str, Tensor]:
    """The same for a language model, whose labels are the words."""
    return padded([{**each, "labels": each["input_ids"]} for each in examples])


def arguments(folder: Path, **options: Any) -> Any:
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 5, "gradient_accumulation_steps": 3, "max_steps": 6, "learning_rate": 0.05,
        "logging_steps": 2, "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True,
        "optim": "adamw_torch", "dataloader_pin_memory": False,
    }  # fmt: skip
    return transformers.TrainingArguments(str(folder), **(settings | options))


def trainer(model: Any, folder: Path, examples: Any = None, *, kind: Any = None, **options: Any) -> Any:
    """A PrivateTrainer; ``options`` are of its constructor, of `TrainingArguments` and of `make_private`."""
    own = {
        "data_collator", "eval_dataset", "compute_loss_func", "compute_metrics", "callbacks", "optimizers", "clip",
        "freeze", "seed", "ledger", "run", "epsilon", "noise_multiplier", "after", "person", "per_person", "model_init",
        "training_record", "allow_state", "views", "lengths", "cache_frozen", "processing_class",
    }  # fmt: skip
    given = {name: options.pop(name) for name in own & options.keys()}
    if "epsilon" not in given:
        given.setdefault("noise_multiplier", 1.0)
    given = {"data_collator": padded, "delta": 1e-4, "accountant": "rdp"} | given
    kind = kind or hoarfrost.hf.PrivateTrainer
    data = texts() if examples is None else examples
    return kind(model, arguments(folder, **options), train_dataset=data, **given)


def cross_entropy(outputs: Any, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(outputs.logits, batch["labels"], reduction="none")


def next_words(outputs: Any, batch: dict[str, Tensor]) -> Tensor:
    return hoarfrost.losses.token_cross_entropy(outputs.logits[:, :-1], batch["labels"][:, 1:])


def in_a_plain_loop(
    model: nn.Module,
    loss: Callable[[Any, dict[str, Tensor]], Tensor] = cross_entropy,
    *,
    collate: Any = padded,
    chunk: int | None = 5,
    steps: int = 6,
    lr: float = 0.05,
    **options: Any,
) -> Any:
    """What PrivateTrainer does, without a Trainer: a linear schedule, and AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    settings = {"batch_size": 15, "delta": 1e-4, "accountant": "rdp", "noise_multiplier": 1.0}
    private = hoarfrost.make_private(
        model, optimizer, DataLoader(texts(), batch_size=5, collate_fn=collate),  # type: ignore[arg-type]
        steps=steps, max_physical_batch=chunk, **(settings | options),
    )  # fmt: skip
    model.train()
    while private.steps_taken < steps:
        for batch in private.loader:
            inputs = {name: value for name, value in batch.items() if name != "labels"}
            private.optimizer.backward(loss(model(**inputs), batch))
            private.optimizer.step()
            if private.stepped:
                schedule.step()
    return private


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def assert_same(got: nn.Module, want: nn.Module) -> None:
    for (name, one), (_, other) in zip(got.named_parameters(), want.named_parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
