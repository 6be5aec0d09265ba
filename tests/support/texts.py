"""Texts and pretrained models small enough for a test, written into a folder: nothing is fetched."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from hoarfrost.train import Recipe
from tests.support.recipes import tiny

GOOD_WORDS, BAD_WORDS = ("good", "fine", "great"), ("bad", "poor", "dull")
FILLING = ("a", "the", "film", "plot", "was", "and", "very")
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GOOD_WORDS, *BAD_WORDS, *FILLING, ",", ".", "##s")
LABELS = ("no", "yes")
MOST_TOKENS = 24


def write_model(folder: Path, *, kind: str = "bert", layers: int = 2, **changes: Any) -> Path:
    """A pretrained trunk with random weights and a WordPiece vocabulary, as `save_pretrained` writes it."""
    import torch
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    tokenizer = transformers.BertTokenizer(str(folder / "vocab.txt"), model_max_length=MOST_TOKENS)
    tokenizer.save_pretrained(folder)
    options = {
        "vocab_size": len(VOCABULARY), "hidden_size": 16, "num_hidden_layers": layers, "num_attention_heads": 2,
        "intermediate_size": 24, "max_position_embeddings": MOST_TOKENS,
        "initializer_range": 0.1,
    }  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(1)
        if kind == "bert":
            model: Any = transformers.BertModel(transformers.BertConfig(**options | changes))
        elif kind == "gpt2":
            model = transformers.GPT2Model(
                transformers.GPT2Config(
                    vocab_size=len(VOCABULARY), n_embd=16, n_layer=layers, n_head=2, n_positions=MOST_TOKENS, **changes
                )
            )
        else:
            model = transformers.DistilBertModel(
                transformers.DistilBertConfig(
                    vocab_size=len(VOCABULARY), dim=16, hidden_dim=24, n_layers=layers, n_heads=2,
                    max_position_embeddings=MOST_TOKENS, **changes,
                )
            )  # fmt: skip
    model.save_pretrained(folder)
    return folder


def reviews(number: int, seed: int = 0) -> list[tuple[str, str]]:
    """Texts of 2 to 10 words, and what is thought of the film."""
    drawn = random.Random(seed)
    found = []
    for _ in range(number):
        label = drawn.randrange(2)
        words = [drawn.choice((BAD_WORDS, GOOD_WORDS)[label]), *drawn.choices(FILLING, k=drawn.randint(1, 9))]
        drawn.shuffle(words)
        found.append((" ".join(words), LABELS[label]))
    return found


def write_reviews(folder: Path, train: int = 200, test: int = 60) -> dict[str, Any]:
    """The table [data] of a recipe for a file of reviews."""
    for name, number, seed in (("train", train, 0), ("test", test, 1)):
        lines = ["text\tliked", *(f"{text}\t{label}" for text, label in reviews(number, seed))]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return {
        "path": str(folder / "train.tsv"), "test": str(folder / "test.tsv"), "text": "text", "target": "liked",
        "labels": [*LABELS], "max_length": 16,
    }  # fmt: skip


def text_recipe(data: dict[str, Any], model: Path, **changes: Any) -> Recipe:
    """A recipe for texts; keys are replaced as by `tiny`."""
    settings: dict[str, Any] = {
        "data": data,
        "model": {"name": "transformers", "path": str(model)},
        "optimizer": {"kind": "adamw", "lr": 0.01},
        "privacy": {"noise_multiplier": 1.0, "delta": 1e-4, "batch_size": 30, "steps": 4, "accountant": "rdp"},
    }
    for key in [key for key in changes if "__" not in key]:
        settings[key] = changes.pop(key)
    return tiny(**settings, **changes)
