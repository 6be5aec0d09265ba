"""Mix-up training of MiniLM on SNLI: `python -m benchmarks.accuracy.snli MODEL DATA [--seed SEED]`.

MODEL is a folder with all-MiniLM-L6-v2 as transformers saves it, DATA one with SNLI's train.jsonl and test.jsonl. The
last encoder layer, the pooler and the head are trained, with local clipping. 95 % of the way, the run is continued in
several ways: with local clipping to the end, with global clipping as in the paper, and with global clipping whose norm
is larger and whose learning rate is smaller by the same factor. Each way is a row of
benchmarks/results/accuracy/snli.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hoarfrost
from benchmarks.accuracy.sst2 import CHUNK, HEAD, Texts, add, build, figures, has, matching, train
from benchmarks.accuracy.tables import FOLDER
from hoarfrost.run import Private

BATCH, EPOCHS, RATE, SWITCH = 1024, 3, 2e-3, 0.95
LOCAL, LARGE = 0.1, 1.0
EPSILON = 5.16  # what the paper's settings really cost
LABELS = ("entailment", "neutral", "contradiction")
LAST = matching("bert.encoder.layer.5.*", "bert.pooler.*", *HEAD)


def then_global(norm: float) -> hoarfrost.clip.Schedule:
    """Local clipping, and global clipping at the end."""
    local, at_the_end = hoarfrost.clip.Local(LOCAL), hoarfrost.clip.Global(norm)
    return hoarfrost.clip.Schedule((0.0, local), (SWITCH, at_the_end, LOCAL / norm))


WAYS: dict[str, hoarfrost.clip.Clipper] = {
    "local": hoarfrost.clip.Local(LOCAL),
    "local, then global": then_global(LOCAL),
    "local, then global, norm 1": then_global(LARGE),
}


def read(path: Path, tokenizer: Any) -> list[tuple[list[int], int]]:
    """Pairs as token ids, with their labels; those without a gold label are left out."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row["gold_label"] in LABELS]
    pairs = ([row["sentence1"] for row in rows], [row["sentence2"] for row in rows])
    tokens = tokenizer(*pairs, truncation=True, max_length=128)["input_ids"]
    return [(ids, LABELS.index(row["gold_label"])) for ids, row in zip(tokens, rows, strict=True)]


def make(way: str, model: nn.Module, data: Texts, seed: int, steps: int | None = None) -> Private:
    """DP-AdamW, as for SST-2."""
    model = LAST(model, seed)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE, weight_decay=0.0)
    loader = torch.utils.data.DataLoader(data, collate_fn=data.collate)  # type: ignore[var-annotated, arg-type]
    return hoarfrost.make_private(
        model, optimizer, loader, batch_size=BATCH, epochs=EPOCHS, epsilon=EPSILON, delta=1 / len(data),
        clip=WAYS[way], max_physical_batch=CHUNK, seed=seed, cache_frozen=True,
    )  # fmt: skip


def main() -> None:
    from transformers import AutoTokenizer

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(wanted.model, local_files_only=True)
    data, test = (
        Texts(read(wanted.data / name, tokenizer), tokenizer.pad_token_id) for name in ("train.jsonl", "test.jsonl")
    )
    path, seed = wanted.folder / "snli.json", wanted.seed
    if all(has(path, way=way, seed=seed) for way in WAYS):
        return
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, before = Path(folder) / "before.safetensors", {}
        for way in WAYS:
            private = make(way, build(wanted.model, seed, labels=len(LABELS)), data, seed)
            scheduler = torch.optim.lr_scheduler.ConstantLR(private.optimizer, 1.0)
            assert private.steps is not None
            switch, began = int(SWITCH * private.steps), time.process_time()

            def each(private: Private = private, scheduler: Any = scheduler, switch: int = switch) -> None:
                if private.steps_taken % 20 == 0:
                    print(private.steps_taken, private.epsilon(), flush=True)
                if private.steps_taken == switch:
                    private.save(checkpoint, scheduler=scheduler)
                    before.update(figures(private.model, test))
                    print("before the switch:", json.dumps(before), flush=True)

            if checkpoint.exists():
                private.load(checkpoint, scheduler=scheduler)
            train(private, scheduler, each)
            add(path, {
                "way": way, "seed": seed, "examples": len(data), "lr": RATE, **figures(private.model, test),
                "before": before, "switched_at": switch, "steps": private.steps_taken, "epsilon": private.epsilon(),
                "noise_multiplier": round(private.noise_multiplier, 4), "seconds": round(time.process_time() - began),
            })  # fmt: skip


if __name__ == "__main__":
    main()
