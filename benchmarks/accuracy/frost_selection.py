"""How well DP-FROST's choice survives its noise: `python -m benchmarks.accuracy.frost_selection MODEL DATA`.

MODEL is a folder with a pretrained encoder as transformers saves it, DATA one with GLUE's train.tsv. For some training
examples the gradient norms of every partition are computed once, and rounds are then simulated: samples are drawn from
these examples with replacement, as many as a Poisson sample of the whole training set has; noise is added as the plan
has it. What is reported is the share of the noiseless choice (by numbers that are trained) that is found. Rounds after
the first are exact for "absolute" of order 1 and for "norms". For the others the sums of all partitions are scaled by
one number for all (the paper's own assumption), and sampling changes nothing of them. Nothing here is private.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.accuracy.sst2 import Texts, build, read
from hoarfrost.budget import Gaussian, Plan, PlannedShare
from hoarfrost.files import replace_file
from hoarfrost.freezing.magnitudes import Magnitude, gradients
from hoarfrost.freezing.partitions import Layout, Partition, layout_of
from hoarfrost.freezing.selection import Selecting
from hoarfrost.info import RunInfo, head_of

SIZE, BATCH, EPOCHS, RATE = 67_349, 1024, 3, 0.02
RATIOS, EPSILONS, ROUNDS = (0.25, 0.25**2, 0.25**3), (0.5, 2.0), (1, 5)
EXACT = [("absolute", 1), ("norms", 2), ("norms", 1)]
SCALED = [("clipped", 1), ("clipped", 2), ("normalised", 1), ("normalised", 2), ("absolute", 2)]
Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Measured:
    """Of some examples: norms of each order [examples, partitions], and the sums of the vectors, by partition."""

    partitions: tuple[Partition, ...]
    norms: dict[int, Array]
    sums: dict[tuple[str, int], Array]
    seconds: float


def measure(model: nn.Module, data: Texts, chosen: Sequence[int], partitions: tuple[Partition, ...]) -> Measured:
    """One backward pass for each of the examples."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(**batch[0]).logits, batch[1])

    sizes = np.array([each.size for each in partitions], np.float64)
    rows: dict[int, list[Array]] = {1: [], 2: []}
    kinds = [(kind, order) for kind, order in SCALED if kind != "clipped"] + [("clipped", 1), ("clipped", 2)]
    totals = {kind: [torch.zeros(each.size) for each in partitions] for kind in kinds}
    begun = time.perf_counter()
    for number in chosen:
        own = gradients(model, data.collate([data[number]]), partitions, loss)
        flat = [torch.cat([g.reshape(-1) for g in each]) for each in own]
        for order in (1, 2):
            found = [float(torch.linalg.vector_norm(g, order, dtype=torch.float64)) for g in flat]
            rows[order].append(np.array(found))
        for kind, order in kinds:
            scale = np.ones_like(sizes) if kind == "clipped" else sizes ** (-1 / order)
            factors = scale / np.linalg.norm(rows[order][-1] * scale, order)
            for total, g, factor in zip(totals[kind, order], flat, factors, strict=True):
                total.add_(g.abs() if kind == "absolute" else g, alpha=float(factor))
    sums = {}
    for (kind, order), parts in totals.items():
        found = np.array([float(torch.linalg.vector_norm(each, order, dtype=torch.float64)) for each in parts])
        sums[kind, order] = found * (sizes ** (-1 / order) if kind == "clipped" else 1.0) / len(chosen)
    return Measured(partitions, {k: np.stack(v) for k, v in rows.items()}, sums, time.perf_counter() - begun)


class Simulated:
    """Rounds of one variant, with noise or without."""

    def __init__(
        self, measured: Measured, kind: str, order: int, *, sample_rate: float = RATE, seed: int | None = None
    ) -> None:
        self.expected, self.sample_rate = SIZE * sample_rate, sample_rate
        self.random = np.random.default_rng(seed)
        self.measured, self.kind, self.order = measured, kind, order
        self.magnitude = Magnitude(kind, order)  # type: ignore[arg-type]
        self.place = {each.name: n for n, each in enumerate(measured.partitions)}
        sizes = np.array([each.size for each in measured.partitions], np.float64)
        self.scaled = measured.norms[order] * (1.0 if kind == "clipped" else sizes ** (-1 / order))

    def round(self, left: Sequence[Partition], noise: float, drawn: Array | None) -> Array:
        """The magnitudes of what is left; of all examples, scaled to a sample's size, if nobody was drawn."""
        at = [self.place[each.name] for each in left]
        norm = 1 if self.kind in ("absolute", "clipped", "normalised") and self.order == 1 else 2
        lengths = np.linalg.norm(self.scaled[:, at], norm, axis=1, keepdims=True)
        if (self.kind, self.order) in EXACT:
            shares = self.scaled[:, at] / np.maximum(lengths, 1e-300)
            sums = shares.mean(0) * self.expected if drawn is None else shares[drawn].sum(0)
        else:
            whole = np.linalg.norm(self.scaled, norm, axis=1, keepdims=True)
            sums = self.measured.sums[self.kind, self.order][at] * self.expected * float((whole / lengths).mean())
        std = noise * self.magnitude.sensitivity(left)
        return np.asarray(sums + self.random.normal(0, std, len(at)) if noise else sums)

    def choice(self, layout: Layout, rounds: int, noise: float, *, samples: bool) -> set[str]:
        """The partitions that are chosen in the end."""
        selecting = Selecting(layout, rounds, 5.0, self.magnitude.sensitivity, noise, self.expected)
        released: list[list[float]] = []
        for _ in range(rounds):
            left = selecting.after(released).left
            drawn = None
            if samples:
                drawn = self.random.integers(len(self.scaled), size=self.random.binomial(SIZE, self.sample_rate))
            released.append(list(self.round(left, noise, drawn)) if left else [])
        return {each.name for each in selecting.after(released).chosen}


def shares(measured: Measured, info: RunInfo, draws: int) -> list[dict[str, Any]]:
    """For each variant, ratio, epsilon and number of rounds: how much of the noiseless choice is found."""
    found = []
    for epsilon in EPSILONS:
        for rounds in ROUNDS:
            plan = Plan.solve(
                size=SIZE, batch_size=BATCH, epochs=EPOCHS, epsilon=epsilon, delta=1 / (2 * SIZE),
                releases=[PlannedShare(share=0.1, sample_rate=RATE, what="a round")] * rounds,
            )  # fmt: skip
            event = plan.releases[0].event
            assert isinstance(event, Gaussian)
            for kind, order in (*EXACT, *SCALED):
                simulated = Simulated(measured, kind, order)
                for ratio in RATIOS:
                    layout = layout_of(info, "weight", None, ratio)
                    size = {each.name: each.size for each in layout.candidates}
                    wanted = simulated.choice(layout, 1, 0.0, samples=False)
                    overlaps = []
                    for _ in range(draws):
                        chosen = simulated.choice(layout, rounds, event.noise_multiplier, samples=True)
                        overlaps.append(sum(size[each] for each in chosen & wanted) / sum(map(size.get, wanted)))  # type: ignore[arg-type]
                    found.append({
                        "magnitude": kind, "order": order, "ratio": ratio, "epsilon": epsilon, "rounds": rounds,
                        "noise_multiplier": event.noise_multiplier, "found": float(np.mean(overlaps)),
                        "least": float(min(overlaps)), "wanted": sorted(wanted),
                    })  # fmt: skip
                    print(f"epsilon {epsilon:g}, {rounds} round(s), {kind}-{order}, ratio {ratio:.3g}: "
                          f"{found[-1]['found']:.2f}", flush=True)  # fmt: skip
    return found


def table(facts: dict[str, Any]) -> str:
    """One row a variant: what one round finds, and what five do, for each budget and ratio."""
    names = {1: "0.25", 2: "0.25²", 3: "0.25³"}
    columns = [(epsilon, power) for epsilon in EPSILONS for power in names]
    heads = [f"ε {epsilon:g}, {names[power]}" for epsilon, power in columns]
    lines = [f"| one round / five | {' | '.join(heads)} |", "|---" * (len(columns) + 1) + "|"]
    found = {
        (row["magnitude"], row["order"], row["epsilon"], round(np.log(row["ratio"]) / np.log(0.25)), row["rounds"]): row
        for row in facts["rows"]
    }
    for kind, order in dict.fromkeys((row["magnitude"], row["order"]) for row in facts["rows"]):
        cells = [
            " / ".join(f"{found[kind, order, epsilon, power, rounds]['found']:.2f}" for rounds in ROUNDS)
            for epsilon, power in columns
        ]
        lines.append(f'| "{kind}", order {order} | {" | ".join(cells)} |')
    return "\n".join(lines)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--examples", type=int, default=1500)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the new head, and of the examples that are taken")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.model, local_files_only=True)
    data = Texts(read(args.data / "train.tsv", tokenizer), tokenizer.pad_token_id)
    model = build(args.model, args.seed)
    named = dict(model.named_parameters())
    info = RunInfo({name: p.shape for name, p in named.items()}, head=head_of(model, named))
    partitions = layout_of(info, "weight", None, max(RATIOS)).candidates
    chosen = random.Random(args.seed).sample(range(len(data)), args.examples)
    print(f"{len(partitions)} partitions; always trained: {', '.join(info.head)}", flush=True)
    measured = measure(model, data, chosen, partitions)
    print(f"measured in {measured.seconds:.0f} s", flush=True)
    rows = shares(measured, info, args.draws)
    if args.json is not None:
        facts = {
            "command": "python -m benchmarks.accuracy.frost_selection MODEL DATA --json ...",
            "examples": args.examples, "draws": args.draws, "seed": args.seed,
            "partitions": [{"name": each.name, "size": each.size} for each in partitions], "rows": rows,
        }  # fmt: skip
        replace_file(args.json, lambda path: path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8"))


if __name__ == "__main__":
    main()
