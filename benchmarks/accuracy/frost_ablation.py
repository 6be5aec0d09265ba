"""Which of DP-FROST's choices trains best: `python -m benchmarks.accuracy.frost_ablation MODEL DATA`.

MODEL is a folder with all-MiniLM-L6-v2 as transformers saves it, DATA one with GLUE's train.tsv. Every variant chooses
as in `frost_selection.py` (gradient norms of 1,500 examples, samples and noise as for all of SST-2 at epsilon 2), and
what it has chosen is trained as the learning rates are tried in `sst2.py`: 60 steps on 5,000 sentences, with as much
noise in a step as the whole run has. Variants that chose the same partitions with one seed share one run. Where the
choice is made several times during the run (the paper's Table 4), the library itself makes it, on samples as large as
those of the whole run. Every run is a row of benchmarks/results/accuracy/frost-ablation.json, and so is what each
variant chose. Nothing here is private.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from benchmarks.accuracy import frost_selection, sst2
from benchmarks.accuracy.frost_selection import Measured, Simulated, measure
from benchmarks.accuracy.tables import FOLDER
from hoarfrost.budget import Gaussian, Plan, PlannedShare
from hoarfrost.freeze import Frost
from hoarfrost.freezing.partitions import Layout, layout_of
from hoarfrost.info import RunInfo, head_of
from hoarfrost.run import Private

RATIO, EPSILON, SEEDS = 0.25**2, 2.0, (1, 2, 3)
RATE_OF = "DP-FROST"  # the arm whose learning rate all variants have
EXAMPLES = 1500
Data = tuple[sst2.Texts, ...]


@dataclass(frozen=True)
class Variant:
    """A way to choose; without a kind, as many partitions at random."""

    name: str
    kind: str = ""
    order: int = 2
    rounds: int = 5
    sample_rate: float = 0.02
    selections: int = 0  # during the run, by the library; 0 for one that is computed beforehand


def variants() -> Iterator[Variant]:
    """All that are compared."""
    yield Variant("random")
    for kind, order in (*frost_selection.EXACT, *frost_selection.SCALED):
        for rounds in (1, 5):
            yield Variant(f"{kind}, order {order}, {rounds} round{'s' * (rounds > 1)}", kind, order, rounds)
    for rate in (0.005, 0.08):
        yield Variant(f"absolute, order 1, 5 rounds, sample rate {rate:g}", "absolute", 1, 5, rate)
    for times in (1, 2, 4):
        yield Variant(f"absolute, order 1, 5 rounds, chosen {times}x", "absolute", 1, selections=times)


def choose(variant: Variant, measured: Measured, layout: Layout, seed: int) -> set[str]:
    """The partitions that are chosen with this seed."""
    if not variant.kind:
        order = list(layout.candidates)
        random.Random(seed).shuffle(order)
        room, chosen = layout.room, set()
        for each in order:
            if each.size <= room:
                room -= each.size
                chosen.add(each.name)
        return chosen
    plan = plan_of(variant)
    event = plan.releases[0].event
    assert isinstance(event, Gaussian)
    simulated = Simulated(measured, variant.kind, variant.order, seed=seed, sample_rate=variant.sample_rate)
    return simulated.choice(layout, variant.rounds, event.noise_multiplier, samples=True)


def plan_of(variant: Variant) -> Plan:
    """Of the whole run, a tenth of whose budget the choice gets."""
    rounds = variant.rounds * max(1, variant.selections) if variant.kind else 0
    return Plan.solve(
        size=frost_selection.SIZE, batch_size=sst2.BATCH, epochs=sst2.EPOCHS, epsilon=EPSILON,
        delta=1 / (2 * frost_selection.SIZE),
        releases=[PlannedShare(share=0.1, sample_rate=variant.sample_rate, what="a round")] * rounds,
    )  # fmt: skip


def train(
    trained: Iterable[str], noise: float, lr: float, seed: int, model: Path, data: Data, freeze: Frost | None = None
) -> tuple[float, Private]:
    """The accuracy on sentences that were not trained on, and the run; ``trained`` are patterns of names."""
    private = sst2.make(
        sst2.Arm(sst2.matching(*trained)), sst2.build(model, seed), data[0], seed, lr, freeze=freeze,
        batch_size=sst2.GRID_BATCH, steps=sst2.GRID_STEPS, noise_multiplier=noise * sst2.GRID_BATCH / sst2.BATCH,
    )  # fmt: skip
    private.prepare()
    sst2.train(private, sst2.falling(private))
    accuracy: float = sst2.figures(private.model, data[1])["accuracy"]
    return accuracy, private


def train_reselecting(variant: Variant, lr: float, seed: int, model: Path, data: Data) -> tuple[float, set[str]]:
    """The same where the library chooses, several times; and what it chose last."""
    plan = plan_of(variant)
    event = plan.releases[0].event
    assert isinstance(event, Gaussian)
    rate = variant.sample_rate * frost_selection.SIZE / len(data[0])
    freeze = Frost(
        RATIO, noise=event.noise_multiplier, rounds=variant.rounds, sample_rate=rate, order=1, head=sst2.HEAD,
        selections=variant.selections, loss=sst2.own_loss,
    )  # fmt: skip
    accuracy, private = train(["*"], plan.noise_multiplier, lr, seed, model, data, freeze)
    own = private.freezer
    assert isinstance(own, Frost)
    assert own.selection is not None
    return accuracy, set(own.selection.chosen)


def table(rows: list[dict[str, Any]]) -> str:
    """One row a variant: what it trained, and how well."""
    lines = [
        "| DP-FROST chooses by | numbers chosen | accuracy in % | seed by seed, above random |",
        "|---|---|---|---|",
    ]
    base = {row["seed"]: row["accuracy"] for row in rows if row["variant"] == "random"}
    for name in dict.fromkeys(row["variant"] for row in rows):
        own = [row for row in rows if row["variant"] == name]
        accuracies = [100 * row["accuracy"] for row in own]
        gains = [100 * (row["accuracy"] - base[row["seed"]]) for row in own if row["seed"] in base]
        sizes = sorted({row["parameters"] for row in own})
        cells = [
            f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}",
            f"{mean(accuracies):.1f}" + (f" ± {stdev(accuracies):.1f}" if len(own) > 1 else ""),
            ", ".join(f"{gain:+.1f}" for gain in gains) if name != "random" else "",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """The command."""
    from transformers import AutoTokenizer

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(args.model, local_files_only=True)
    examples = sst2.read(args.data / "train.tsv", tokenizer)
    named = dict(sst2.build(args.model, 0).named_parameters())
    info = RunInfo({name: p.shape for name, p in named.items()}, head=head_of(sst2.build(args.model, 0), named))
    layout = layout_of(info, "weight", None, RATIO)
    path, lr = args.folder / "frost-ablation.json", sst2.best_rate(RATE_OF, args.folder / sst2.RATES)
    for seed in SEEDS:
        part = examples.copy()
        random.Random(100 + seed).shuffle(part)
        cut = (sst2.GRID_SIZE, sst2.GRID_SIZE + 2000)
        data = (
            sst2.Texts(part[: cut[0]], tokenizer.pad_token_id),
            sst2.Texts(part[cut[0] : cut[1]], tokenizer.pad_token_id),
        )
        whole = sst2.Texts(examples, tokenizer.pad_token_id)
        looked_at = random.Random(seed).sample(range(len(whole)), EXAMPLES)
        measured = measure(sst2.build(args.model, seed), whole, looked_at, layout.candidates)
        for variant in variants():
            if sst2.has(path, variant=variant.name, seed=seed):
                continue
            size = {each.name: each.size for each in layout.candidates}
            noise = plan_of(variant).noise_multiplier
            began = time.process_time()
            if variant.selections:
                which = variant.name
                accuracy, chosen = train_reselecting(variant, lr, seed, args.model, data)
            else:
                chosen = choose(variant, measured, layout, seed)
                which = hashlib.sha256(json.dumps([sorted(chosen), round(noise, 3), lr]).encode()).hexdigest()[:12]
                alike = (r["accuracy"] for r in sst2.rows_of(path) if r["run"] == which and r["seed"] == seed)
                patterns = [*sst2.HEAD, *(f"{name}.*" for name in chosen)]
                known = next(alike, None)
                accuracy = train(patterns, noise, lr, seed, args.model, data)[0] if known is None else known
            sst2.add(path, {
                "variant": variant.name, "seed": seed, "accuracy": accuracy, "chosen": sorted(chosen), "run": which,
                "parameters": sum(size[name] for name in chosen), "noise_multiplier": round(noise, 4), "lr": lr,
                "seconds": round(time.process_time() - began),
            })  # fmt: skip


if __name__ == "__main__":
    main()
