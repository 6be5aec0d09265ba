"""Fine-tuning MiniLM on SST-2 privately: `python -m benchmarks.accuracy.sst2 MODEL DATA [--arm ARM] [--epsilon E]`.

MODEL is a folder with all-MiniLM-L6-v2 as transformers saves it, DATA one with GLUE's train.tsv and dev.tsv. Every
finished run is a row of benchmarks/results/accuracy/sst2.json; a run that was broken off goes on from its checkpoint in
the folder that `--runs` names. `--grid` tries learning rates on a small part of the training set instead.
"""

from __future__ import annotations

import argparse
import csv
import fnmatch
import json
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hoarfrost
from benchmarks.accuracy.runs import scaled
from benchmarks.accuracy.tables import FOLDER
from hoarfrost.files import replace_file
from hoarfrost.freeze import Frost
from hoarfrost.measure import Calibration
from hoarfrost.run import Private

BATCH, EPOCHS, CLIP, CHUNK = 1024, 3, 0.1, 64
RATIO = 0.25**2  # of the parameters that a chosen subset has at the most, the head not counted
HEAD = ("classifier.*",)
GRID = (5e-4, 2e-3, 8e-3, 2e-2)
RATES = "sst2-rates.json"
SELECTION_NOISE = 0.01  # of DP-FROST's rounds in a run without noise
GRID_SIZE, GRID_BATCH, GRID_STEPS = 5000, 256, 60

Magnitude = Literal["absolute", "norms"]
Batch = dict[str, Tensor]
Example = tuple[list[int], int]


@dataclass(frozen=True)
class Arm:
    """Which part of the model is trained."""

    choose: Callable[[nn.Module, int], nn.Module]  # from the model and a seed; parameters that need no gradient rest
    frost: Magnitude | None = None  # DP-FROST chooses among them by this magnitude
    cached: bool = False  # what is below the first trained layer is computed once


def matching(*patterns: str) -> Callable[[nn.Module, int], nn.Module]:
    """Trains the parameters whose names match."""

    def choose(model: nn.Module, seed: int) -> nn.Module:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(any(fnmatch.fnmatch(name, pattern) for pattern in patterns))
        return model

    return choose


def random_layers(model: nn.Module, seed: int) -> nn.Module:
    """The head, and weights with their biases in a random order as long as they fit into the share of the model."""
    sizes: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        sizes[name.rpartition(".")[0]] = sizes.get(name.rpartition(".")[0], 0) + parameter.numel()
    layers = [layer for layer in sizes if not layer.startswith("classifier")]
    random.Random(seed).shuffle(layers)
    room, chosen = RATIO * sum(sizes.values()), list(HEAD)
    for layer in layers:
        if sizes[layer] <= room:
            room -= sizes[layer]
            chosen.append(f"{layer}.*")
    return matching(*chosen)(model, seed)


def lora(model: nn.Module, seed: int) -> nn.Module:
    """Rank 4 on queries and values, and the head."""
    from peft import LoraConfig, TaskType, get_peft_model

    wanted = LoraConfig(task_type=TaskType.SEQ_CLS, r=4, lora_alpha=8, target_modules=["query", "value"])
    return get_peft_model(model, wanted)


ARMS = {
    "last layer": Arm(matching("bert.encoder.layer.5.*", "bert.pooler.*", *HEAD), cached=True),
    "LoRA": Arm(lora),
    "DP-FROST": Arm(matching("*"), frost="absolute"),
    "DP-FROST, norms": Arm(matching("*"), frost="norms"),
    "random layers": Arm(random_layers),
    "BitFit": Arm(matching("*.bias", *HEAD)),
    "full": Arm(matching("*")),
}


class Texts:
    """Tokens and labels, in the order of their lengths: chunks of neighbours need little padding."""

    def __init__(self, examples: Iterable[Example], pad: int) -> None:
        self.examples, self.pad = sorted(examples, key=lambda example: len(example[0])), pad

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Example:
        return self.examples[index]

    def collate(self, examples: Sequence[Example]) -> tuple[Batch, Tensor]:
        """Padded to the longest."""
        longest = max((len(ids) for ids, _ in examples), default=1)
        ids = torch.full((len(examples), longest), self.pad)
        mask = torch.zeros(len(examples), longest, dtype=torch.long)
        for row, (tokens, _) in enumerate(examples):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = 1
        return {"input_ids": ids, "attention_mask": mask}, torch.tensor([label for _, label in examples])


def read(path: Path, tokenizer: Any) -> list[Example]:
    """Sentences of a GLUE file as token ids, with their labels."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    tokens = tokenizer([row["sentence"] for row in rows], truncation=True, max_length=128)["input_ids"]
    return [(ids, int(row["label"])) for ids, row in zip(tokens, rows, strict=True)]


def build(folder: Path, seed: int, labels: int = 2) -> nn.Module:
    """The pretrained encoder with a new head, without dropout."""
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(seed)
    model: nn.Module = AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=labels, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, local_files_only=True
    )
    return model.train()  # as after every evaluation: what is cached holds for one mode


def frost(magnitude: Magnitude, noise: float | None) -> Frost:
    """The paper's rounds and share of the budget; noise of its own where a run states none in epsilon."""
    return Frost(RATIO, magnitude=magnitude, noise=noise, head=HEAD, loss=own_loss)


def own_loss(model: nn.Module, batch: tuple[Batch, Tensor]) -> Tensor:
    """The loss of a batch of one example."""
    return F.cross_entropy(model(**batch[0]).logits, batch[1])


def make(arm: Arm, model: nn.Module, data: Texts, seed: int, lr: float, **privacy: Any) -> Private:
    """AdamW without weight decay, clipping norm 0.1."""
    model = arm.choose(model, seed)
    if arm.frost is not None:
        privacy["freeze"] = frost(arm.frost, None if "epsilon" in privacy else SELECTION_NOISE)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr, weight_decay=0.0)
    loader = torch.utils.data.DataLoader(data, collate_fn=data.collate)  # type: ignore[var-annotated, arg-type]
    return hoarfrost.make_private(
        model, optimizer, loader, delta=1 / (2 * len(data)), clip=CLIP, max_physical_batch=CHUNK, seed=seed,
        cache_frozen=arm.cached, **privacy,
    )  # fmt: skip


def train(private: Private, scheduler: Any, each: Callable[[], None] = lambda: None) -> None:
    """Steps with a learning rate that falls to zero in a line."""
    model, optimizer, loader = private
    assert private.steps is not None
    while private.steps_taken < private.steps:
        for batch, labels in loader:
            optimizer.zero_grad()
            optimizer.backward(F.cross_entropy(model(**batch).logits, labels, reduction="none"))
            optimizer.step()
            if private.stepped:
                scheduler.step()
                each()


def falling(private: Private) -> Any:
    steps = private.steps
    assert steps is not None
    return torch.optim.lr_scheduler.LambdaLR(private.optimizer, lambda step: max(0.0, 1 - step / steps))


@torch.no_grad()
def logits_of(model: nn.Module, data: Texts) -> tuple[Tensor, Tensor]:
    """On all examples."""
    found, labels = [], []
    for start in range(0, len(data), 256):
        batch, y = data.collate([data[index] for index in range(start, min(start + 256, len(data)))])
        found.append(model(**batch).logits)
        labels.append(y)
    return torch.cat(found), torch.cat(labels)


def figures(model: nn.Module, data: Texts) -> dict[str, Any]:
    """Accuracy and calibration."""
    model.eval()
    logits, labels = logits_of(model, data)
    model.train()
    found = Calibration.of(logits, labels)
    return {"accuracy": found.accuracy, "nll": found.nll, "ece": found.ece, "mce": found.mce,
            "scaled": scaled(logits, labels)}  # fmt: skip


def add(path: Path, row: dict[str, Any]) -> None:
    """One more row of a JSON file."""
    rows = [*rows_of(path), row]
    text = "[\n" + ",\n".join(json.dumps(each) for each in rows) + "\n]\n"
    replace_file(path, lambda draft: draft.write_text(text))
    print(json.dumps(row), flush=True)


def rows_of(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    return found


def has(path: Path, **wanted: Any) -> bool:
    return any(all(row.get(key) == value for key, value in wanted.items()) for row in rows_of(path))


def try_rates(name: str, model: Path, examples: list[Example], pad: int, path: Path, seed: int = 100) -> None:
    """Learning rates on a small part, with as much noise in a step's gradient as the whole run has at epsilon 2."""
    part = examples.copy()
    random.Random(seed).shuffle(part)
    data, held_out = Texts(part[:GRID_SIZE], pad), Texts(part[GRID_SIZE : GRID_SIZE + 2000], pad)
    whole = hoarfrost.budget.Plan.solve(
        size=len(examples), sample_rate=BATCH / len(examples), delta=1 / (2 * len(examples)), epochs=EPOCHS, epsilon=2.0
    )
    noise = whole.noise_multiplier * GRID_BATCH / BATCH
    for lr in GRID:
        if has(path, arm=name, lr=lr):
            continue
        began = time.process_time()
        private = make(
            ARMS[name], build(model, seed), data, seed, lr,
            batch_size=GRID_BATCH, steps=GRID_STEPS, noise_multiplier=noise,
        )  # fmt: skip
        train(private, falling(private))
        found = figures(private.model, held_out)
        add(path, {"arm": name, "lr": lr, "seed": seed, **found, "seconds": round(time.process_time() - began)})


def best_rate(name: str, path: Path) -> float:
    """Of those that were tried, the one with the highest accuracy; of several, the smallest."""
    tried = [(-row["accuracy"], row["lr"]) for row in rows_of(path) if row["arm"] == name]
    if not tried:
        raise SystemExit(f"no learning rate was tried for {name!r}: run this with --grid first")
    rate: float = min(tried)[1]
    return rate


def run(
    name: str, epsilon: float | None, seed: int, model: Path, data: tuple[Texts, Texts], path: Path, runs: Path
) -> None:
    """A whole run; epsilon None is one without noise, for comparison."""
    lr = best_rate(name, path.with_name(RATES))
    private = make(
        ARMS[name], build(model, seed), data[0], seed, lr, batch_size=BATCH, epochs=EPOCHS,
        **({"noise_multiplier": 0.0} if epsilon is None else {"epsilon": epsilon}),
    )  # fmt: skip
    scheduler = falling(private)
    runs.mkdir(parents=True, exist_ok=True)
    checkpoint = runs / f"{name} {epsilon} {seed}.safetensors".replace(" ", "-")
    if checkpoint.exists():
        private.load(checkpoint, scheduler=scheduler)
    began = time.process_time()
    private.prepare()  # DP-FROST's selection
    selected = time.process_time()
    curve, first = [], private.steps_taken

    def each() -> None:
        if private.steps_taken % 20 == 0:
            private.save(checkpoint, scheduler=scheduler)
            curve.append((private.steps_taken, round(figures(private.model, data[1])["accuracy"], 4)))
            print(name, epsilon, seed, curve[-1], f"{time.process_time() - selected:.0f} s", flush=True)

    train(private, scheduler, each)
    taken = max(1, private.steps_taken - first)
    add(path, {
        "arm": name, "target": epsilon, "seed": seed, "lr": lr, **figures(private.model, data[1]),
        "epsilon": private.epsilon() if epsilon is not None else "not private", "steps": private.steps_taken,
        "noise_multiplier": round(private.noise_multiplier, 4), "curve": curve,
        "parameters": sum(p.numel() for p in private.model.parameters() if p.requires_grad),
        "seconds_a_step": round((time.process_time() - selected) / taken, 2),
        "seconds_of_selection": round(selected - began),
    })  # fmt: skip


def main() -> None:
    from transformers import AutoTokenizer

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--arm", action="append", choices=list(ARMS))
    parser.add_argument("--epsilon", action="append", help="default: 8, 2, 0.5; none for a run without noise")
    parser.add_argument("--seed", type=int, action="append")
    parser.add_argument("--grid", action="store_true", help="try learning rates on a part of the training set")
    parser.add_argument("--runs", type=Path, default=Path("runs-sst2"), help="where checkpoints are kept meanwhile")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(wanted.model, local_files_only=True)
    examples = read(wanted.data / "train.tsv", tokenizer)
    texts = partial(Texts, pad=tokenizer.pad_token_id)
    if wanted.grid:
        for name in wanted.arm or ARMS:
            try_rates(name, wanted.model, examples, tokenizer.pad_token_id, wanted.folder / RATES)
        return
    data = texts(examples), texts(read(wanted.data / "dev.tsv", tokenizer))
    path = wanted.folder / "sst2.json"
    for epsilon in (None if e == "none" else float(e) for e in wanted.epsilon or ("8", "2", "0.5")):
        for seed in wanted.seed or (1,):
            for name in wanted.arm or ARMS:
                if not has(path, arm=name, target=epsilon, seed=seed):
                    run(name, epsilon, seed, wanted.model, data, path, wanted.runs)


if __name__ == "__main__":
    main()
