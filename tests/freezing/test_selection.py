"""From noisy magnitudes to partitions: the estimate is the likeliest one, and what is chosen is what the paper says."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from hoarfrost.errors import InvalidValue
from hoarfrost.freezing.estimate import Estimate, estimate
from hoarfrost.freezing.partitions import Layout, Partition, layout_of
from hoarfrost.freezing.selection import Selecting
from hoarfrost.info import RunInfo
from tests.freezing import frost_oracle

# What several rounds say together.


def rounds(seed: int, partitions: int = 9, count: int = 4, noise: float = 0.3) -> tuple[list[np.ndarray], list[float]]:
    """Noisy magnitudes of fewer partitions in each round, each round with a scale of its own."""
    random = np.random.default_rng(seed)
    v = np.exp(random.normal(0, 1, partitions))
    observed, deltas, part = [], [], np.ones(partitions, bool)
    for t in range(count):
        delta = float(random.uniform(0.5, 1.5))
        scale = 3.0 if t == 0 else float(random.uniform(3, 9))
        row = scale * v + noise * delta * random.normal(0, 1, partitions)
        observed.append(np.where(part, row, np.nan))
        deltas.append(delta)
        part = part & (random.random(partitions) < 0.8)
        part[:2] = True
    return observed, deltas


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("noise", [0.05, 1.0])
def test_no_other_estimate_is_likelier(seed: int, noise: float) -> None:
    observed, deltas = rounds(seed, noise=noise)
    found = estimate(observed, deltas, first_scale=3.0)
    ours = frost_oracle.log_likelihood(observed, deltas, found.magnitudes, list(found.scales))
    best = frost_oracle.best_likelihood(observed, deltas, first=3.0)
    assert ours >= best - 1e-6 * (1 + abs(best))
    assert found.scales[0] == 3.0


def test_one_round_is_divided_by_the_sampling_rate() -> None:
    found = estimate([np.array([6.0, -2.0])], [0.5], first_scale=4.0)
    assert found.magnitudes.tolist() == [1.5, -0.5]
    assert found.per_noise.tolist() == [0.125, 0.125]  # Δ / λ


def test_the_standard_error_is_lemma_6() -> None:
    observed, deltas = rounds(1)
    found = estimate(observed, deltas, first_scale=3.0)
    for i in range(9):
        terms = [found.scales[t] ** 2 / deltas[t] ** 2 for t in range(4) if not np.isnan(observed[t][i])]
        assert found.per_noise[i] == pytest.approx(sum(terms) ** -0.5)


def test_more_rounds_are_nearer_to_the_truth() -> None:
    random, v = np.random.default_rng(0), np.linspace(1, 2, 40)
    errors: dict[int, list[float]] = {1: [], 5: []}
    for _ in range(50):
        observed = [3 * v + random.normal(0, 1, 40) for _ in range(5)]
        for count, found in errors.items():
            found.append(float(abs(estimate(observed[:count], [1.0] * count, 3.0).magnitudes - v).mean()))
    assert np.mean(errors[5]) < 0.6 * np.mean(errors[1])  # 1 / √5 is 0.45; the scales are not known exactly


def test_nothing_but_zeros_is_no_division_by_zero() -> None:
    found: Estimate = estimate([np.zeros(3), np.array([np.nan, 0.0, 0.0])], [1.0, 1.0], first_scale=2.0)
    assert found.magnitudes.tolist() == [0.0, 0.0, 0.0]
    assert np.isfinite(found.per_noise).all()


# What is chosen.


@pytest.mark.parametrize("seed", range(12))
def test_what_is_chosen_is_what_the_paper_says(seed: int) -> None:
    random = np.random.default_rng(seed)
    sizes = {name: int(random.integers(1, 60)) for name in "abcdefghij"}
    room = int(0.4 * sum(sizes.values()))
    candidates = tuple(Partition(name, (name,), size) for name, size in sizes.items() if size <= room)
    never = tuple(Partition(name, (name,), size) for name, size in sizes.items() if size > room)
    selecting = Selecting(
        layout=Layout((), candidates, never, room, sum(sizes.values())), rounds=4, gap=2.0,
        sensitivity=lambda left: 1 / len(left), noise_multiplier=0.2, expected_batch=3.0,
    )  # fmt: skip
    released: list[list[float]] = []
    steps = []
    for _ in range(4):
        left = selecting.after(released).left
        released.append(list(random.exponential(1.0, len(left))))
        steps.append(selecting.after(released))
    chosen = frost_oracle.psel(
        sizes, room, 4, 2.0, [each.magnitudes for each in steps], [each.errors for each in steps]
    )
    assert [each.name for each in steps[-1].chosen] == chosen
    assert sum(sizes[name] for name in chosen) <= room
    left_out = [size for name, size in sizes.items() if name not in chosen]
    assert min(left_out) > room - sum(sizes[name] for name in chosen)  # nothing more fits
    for before, after in pairwise(steps):
        assert after.chosen[: len(before.chosen)] == before.chosen  # what is chosen stays chosen
        assert not set(after.chosen) & set(after.left)


def test_a_partition_that_does_not_fit_is_skipped_and_not_an_end() -> None:
    parts = tuple(Partition(name, (name,), size) for name, size in {"large": 8, "small": 2, "other": 3}.items())
    selecting = Selecting(Layout((), parts, (), 9, 13), 1, 5.0, lambda left: 1.0, 1.0, 1.0)
    assert [each.name for each in selecting.after([[2.0, 3.0, 1.0]]).chosen] == ["small", "other"]


def test_a_state_of_another_model_is_refused() -> None:
    parts = tuple(Partition(name, (name,), 2) for name in "abc")
    selecting = Selecting(Layout((), parts, (), 2, 6), 2, 5.0, lambda left: 1.0, 1.0, 1.0)
    with pytest.raises(InvalidValue, match="is of another model"):
        selecting.after([[1.0, 2.0]])


# What there is to choose between.

NAMES = {
    "bert.embeddings.word_embeddings.weight": (50, 4), "bert.embeddings.LayerNorm.weight": (4,),
    "bert.embeddings.LayerNorm.bias": (4,), "bert.encoder.layer.0.attention.query.weight": (4, 4),
    "bert.encoder.layer.0.attention.query.bias": (4,), "bert.encoder.layer.1.attention.query.weight": (4, 4),
    "bert.encoder.layer.1.attention.query.bias": (4,), "bert.pooler.dense.weight": (4, 4), "classifier.weight": (2, 4),
}  # fmt: skip
INFO = RunInfo({name: torch.Size(shape) for name, shape in NAMES.items()}, head=("classifier.weight",))
TOTAL = 200 + 8 + 20 + 20 + 16 + 8


@pytest.mark.parametrize(("by", "expected"), [
    ("weight", {"bert.embeddings.LayerNorm": 8, "bert.encoder.layer.0.attention.query": 20,
                "bert.encoder.layer.1.attention.query": 20, "bert.pooler.dense": 16}),
    ("block", {"bert.encoder.layer.0": 20, "bert.encoder.layer.1": 20, "bert.pooler": 16}),
    (["*.LayerNorm", "*.query", "*.dense.*", "*.word_embeddings"],
     {"*.LayerNorm": 8, "*.query": 40, "*.dense.*": 16}),
])  # fmt: skip
def test_partitions(by: object, expected: dict[str, int]) -> None:
    layout = layout_of(INFO, by, None, ratio=(8 + 43) / TOTAL)  # type: ignore[arg-type]
    assert {each.name: each.size for each in layout.candidates} == expected
    assert layout.head == ("classifier.weight",)
    assert (layout.room, layout.total) == (43, TOTAL)
    assert [each.size for each in layout.never] == ([208] if by == "block" else [200])
    held = [name for each in (*layout.candidates, *layout.never) for name in each.parameters]
    assert sorted([*held, *layout.head]) == sorted(NAMES)


def test_a_weight_and_its_bias_and_what_a_module_holds() -> None:
    shapes = {"a.in_proj_weight": (6, 2), "a.in_proj_bias": (6,), "a.out_proj.weight": (2, 2), "a.bias_k": (2,),
              "scale": (3,), "head.weight": (1,)}  # fmt: skip
    info = RunInfo({name: torch.Size(shape) for name, shape in shapes.items()}, head=("head.weight",))
    weights = layout_of(info, "weight", None, ratio=0.7)
    assert [each.name for each in weights.candidates] == ["a.in_proj", "a.out_proj", "a.k", "scale"]
    modules = layout_of(info, "module", None, ratio=0.75)
    assert {each.name: each.size for each in modules.candidates} == {"a": 20, "a.out_proj": 4, "scale": 3}


@pytest.mark.parametrize(("settings", "message"), [
    ({"by": ["*.query", "*.layer.0", "*.dense", "*.embeddings"]}, r"in the partitions '\*.query' and '\*.layer.0'"),
    ({"by": ["*.query", "*.dense"]}, "is in no partition"),
    ({"by": ["*.key"]}, r"no parameter or module is named '\*.key'"),
    ({"by": ["classifier", "bert"]}, "holds nothing but the head"),
    ({"by": ["bert", "bert"]}, "is said twice"),
    ({"by": []}, "takes patterns of names"),
    ({"by": "layer"}, "partitions are by 'weight', 'module', 'block'"),
    ({"ratio": 0.05}, r"admits no partition: .* the smallest partition, bert.embeddings.LayerNorm, has 8"),
    ({"ratio": 1.0}, "leaves nothing to choose"),
    ({"head": ["*"]}, "everything is in the head"),
    ({"head": ["qa_outputs"]}, "no parameter or module is named 'qa_outputs'"),
])  # fmt: skip
def test_what_leaves_nothing_to_choose_is_refused(settings: dict[str, object], message: str) -> None:
    given = {"by": "weight", "head": None, "ratio": 0.2} | settings
    with pytest.raises(InvalidValue, match=message):
        layout_of(INFO, **given)  # type: ignore[arg-type]


def test_a_head_that_cannot_be_found_is_asked_for() -> None:
    info = RunInfo(INFO.shapes)
    with pytest.raises(InvalidValue, match=r"which part of the model is its head .* head=\[\] if none is new"):
        layout_of(info, "weight", None, ratio=0.2)
    assert layout_of(info, "weight", [], ratio=0.2).head == ()
    assert layout_of(info, "weight", ["classifier"], ratio=0.2).head == ("classifier.weight",)
