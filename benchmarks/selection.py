"""What a round of DP-FROST's selection costs beside private steps: `python -m benchmarks.selection MODEL`.

MODEL is a folder with a pretrained encoder as transformers saves it. Texts are made-up tokens of one length. Each of
these runs in a process of its own, on one thread: a round of selection, steps of LoRA (rank 4 on the attention's
queries and values, or what `--lora` names), and steps that train what DP-FROST has chosen. Printed are the processor
seconds, and the peak of the memory in addition to that of libraries, model and data.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hoarfrost
from benchmarks.memory import CLEAR_REFS, RESET_PEAK, return_memory_at_once, status
from hoarfrost.freeze import Frost

RATIO, NOISE = 0.25**2, 0.01  # with so few examples more would be told of as too much
WAYS = {
    "selection, absolute, order 1": ("absolute", 1),
    "selection, norms, order 2": ("norms", 2),
    "selection, absolute, order 2": ("absolute", 2),
    "LoRA": None,
    "DP-FROST's choice": None,
}


def build(folder: Path) -> nn.Module:
    """The encoder with a new head, without dropout; its weights are memory of the process, and not of a file."""
    from transformers import AutoModelForSequenceClassification
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    model: nn.Module = AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, local_files_only=True
    )
    for p in model.parameters():
        p.data = p.data.clone()
    return model.train()


def texts(model: Any, rows: int, words: int) -> DataLoader[Any]:
    """Made-up tokens, and labels."""
    ids = torch.randint(5, model.config.vocab_size, (rows, words), generator=torch.Generator().manual_seed(1))

    def collate(examples: list[Any]) -> dict[str, Tensor]:
        tokens, labels = (torch.stack(each) for each in zip(*examples, strict=True))
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels}

    return DataLoader(TensorDataset(ids, torch.arange(rows) % 2), collate_fn=collate)


def measured(work: Callable[[], None]) -> dict[str, float]:
    """Processor seconds, and bytes in addition to what was there."""
    before = status("RssAnon")
    CLEAR_REFS.write_text(RESET_PEAK)
    began = time.process_time()
    work()
    seconds = time.process_time() - began
    # The kernel records one peak for all kinds of memory; mapped files do not shrink, so they come off.
    return {"seconds": seconds, "bytes": status("VmHWM") - status("RssFile") - status("RssShmem") - before}


def selection(model: nn.Module, kind: Any, order: Any, wanted: argparse.Namespace) -> dict[str, float]:
    """A round that looks at all examples of the data; seconds are for one of them."""
    frost = Frost(RATIO, rounds=1, sample_rate=1.0, noise=NOISE, magnitude=kind, order=order)
    private = make(model, texts(model, wanted.examples, wanted.words), wanted, freeze=frost)
    found = measured(private.prepare)
    return {**found, "seconds": found["seconds"] / wanted.examples}


def steps(model: nn.Module, wanted: argparse.Namespace, freeze: Any = None) -> dict[str, float]:
    """After the first one, in which the model is looked at. Seconds are for one step, and for one of its examples."""
    private = make(model, texts(model, wanted.batch, wanted.words), wanted, freeze=freeze)
    private.prepare()
    first = measured(lambda: take(private, 1))
    found = measured(lambda: take(private, wanted.steps))
    a_step = found["seconds"] / wanted.steps
    return {**found, "seconds": a_step / wanted.batch, "seconds a step": a_step, "first": first["bytes"]}


def make(model: nn.Module, data: DataLoader[Any], wanted: argparse.Namespace, **options: Any) -> hoarfrost.Private:
    """Every example is in every step."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return hoarfrost.make_private(
        model, torch.optim.AdamW(trained, lr=1e-4), data, sample_rate=1.0, noise_multiplier=1.0, delta=1e-5, clip=0.1,
        max_physical_batch=wanted.chunk, **options,
    )  # fmt: skip


def take(private: hoarfrost.Private, count: int) -> None:
    """So many steps."""
    until = private.steps_taken + count
    while private.steps_taken < until:
        for batch in private.loader:
            private.optimizer.zero_grad()
            private.model(**batch).loss.backward()
            private.optimizer.step()


def with_lora(model: Any, names: list[str]) -> nn.Module:
    """Adapters of rank 4."""
    from peft import LoraConfig, get_peft_model

    wanted = LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=8, target_modules=names)  # type: ignore[arg-type]
    adapted: nn.Module = get_peft_model(model, wanted)
    return adapted


def queries_and_values(model: nn.Module) -> list[str]:
    """As models that are built like BERT or MPNet call them."""
    last = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    for names in (["query", "value"], ["q", "v"], ["q_lin", "v_lin"]):
        if last.issuperset(names):
            return names
    raise SystemExit("which layers LoRA adapts is not known of this model: name them, --lora NAME NAME")


def one(way: str, wanted: argparse.Namespace) -> dict[str, float]:
    """What one of `WAYS` takes, in this process."""
    return_memory_at_once()
    torch.set_num_threads(1)
    model = build(wanted.model)
    size = 4.0 * sum(p.numel() for p in model.parameters())
    if (variant := WAYS[way]) is not None:
        found = selection(model, *variant, wanted)
    elif way == "LoRA":
        found = steps(with_lora(model, wanted.lora or queries_and_values(model)), wanted)
    else:
        found = steps(model, wanted, Frost(RATIO, rounds=1, sample_rate=0.5, noise=NOISE))
    return {"weights": size, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--way", action="append", choices=list(WAYS), help="default: each of them")
    parser.add_argument("--examples", type=int, default=16, help="that a round of selection looks at")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--chunk", type=int, default=16, help="examples that are worked on at once")
    parser.add_argument("--words", type=int, default=32)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--lora", nargs="+", help="names of the layers that LoRA adapts")
    wanted = parser.parse_args()
    print(f"{'':30} {'s an example':>13} {'peak, GB':>9} {'s a step':>9} {'first step, GB':>15}", flush=True)
    for way in wanted.way or WAYS:
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            found = process.submit(one, way, wanted).result()
        row = f"{way:30} {found['seconds']:13.3f} {found['bytes'] / 1e9:9.2f}"
        if "first" in found:
            row += f" {found['seconds a step']:9.2f} {found['first'] / 1e9:15.2f}"
        print(row, flush=True)
    print(f"the weights themselves: {found['weights'] / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
