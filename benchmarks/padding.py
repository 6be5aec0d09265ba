"""How many words a model computes on for each text, with and without chunks of like length.

    python -m benchmarks.padding                                      # skewed lengths, made up
    python -m benchmarks.padding --texts train.tsv --tokenizer FOLDER # a TSV with a column "sentence" (SST-2)

Some Poisson batches are drawn and cut into chunks in either way; a text is computed as if it were as long as the
longest of its chunk.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

import torch

from hoarfrost.sampling import PoissonLoader

BATCHES = 8


def skewed(texts: int = 4096) -> list[int]:
    """Lengths of made-up texts: most are short, some are long."""
    generator = torch.Generator().manual_seed(0)
    return torch.empty(texts).log_normal_(2.5, 0.6, generator=generator).clamp(1, 128).int().tolist()


def tokenized(file: Path, folder: Path, most: int = 128) -> list[int]:
    """The lengths of a file's texts in words of this tokenizer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    with file.open(encoding="utf-8", newline="") as lines:
        sentences = [row["sentence"] for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)]
    return [len(ids) for ids in tokenizer(sentences, truncation=True, max_length=most)["input_ids"]]


def padded_words(lengths: Sequence[int], *, batch_size: int, rows: int) -> tuple[float, float, float]:
    """Words for each text: as it is, padded to the longest of its chunk, and of its chunk of like length."""

    def mean(**options: object) -> tuple[float, float]:
        loader = PoissonLoader(
            torch.tensor(lengths).unsqueeze(1), batch_size=batch_size, steps=BATCHES, max_physical_batch=rows, seed=0,
            **options,  # type: ignore[arg-type]
        )  # fmt: skip
        texts = true = computed = 0
        while loader.steps_drawn < BATCHES:
            for chunk in loader:
                texts, true = texts + len(chunk), true + int(chunk.sum())
                computed += len(chunk) * int(chunk.max()) if len(chunk) else 0
        return true / texts, computed / texts

    (true, plain), (_, by_length) = mean(), mean(lengths=lengths)
    return true, plain, by_length


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=64, help="of a chunk")
    chosen = parser.parse_args()
    lengths = tokenized(chosen.texts, chosen.tokenizer) if chosen.texts else skewed()
    true, plain, by_length = padded_words(lengths, batch_size=chosen.batch_size, rows=chosen.rows)
    print(f"{len(lengths)} texts, batches of {chosen.batch_size}, chunks of {chosen.rows}: words for each text")
    print(f"  as it is {true:.1f}; padded {plain:.1f}; padded in chunks of like length {by_length:.1f}")


if __name__ == "__main__":
    main()
