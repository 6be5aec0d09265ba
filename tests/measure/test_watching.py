"""What the measurements of a run say is what one example at a time says, and they change nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from hoarfrost.masks import Mask
from hoarfrost.measure import Clipped, Distortion, FreezeCounts, Frozen, Gram, Measurement, Outside, Truth
from hoarfrost.measure.gram import layers_of
from tests import oracle
from tests.clipping.settings import TABLE
from tests.measure import slow_signals as slow
from tests.support.clipping import CASES, Run
from tests.support.freezing import Scripted

STYLES = {style.name: style for style in TABLE}
BY_CASE = {case.name: case for case in CASES}
SOME = ["plain", "mean", "chunks, mean", "views in chunks", "elements frozen", "channels frozen", "layers frozen"]
SETTINGS = [(style, case) for style in ("Local(1)", "PerLayer(Local)") for case in (*SOME, "Poisson", "tied weights")]
every_setting = pytest.mark.parametrize(("style", "case"), SETTINGS)
near = lambda value: None if value is None else pytest.approx(value, rel=2e-3, abs=1e-3)  # noqa: E731


def same(found: Any, want: Any) -> None:
    """Numbers that are nearly the same, in tables of any depth."""
    if isinstance(want, dict):
        assert found.keys() == want.keys()
        for key in want:
            same(found[key], want[key])
    elif isinstance(want, list):
        same(dict(enumerate(found)), dict(enumerate(want)))
    else:
        assert found == near(want), (found, want)


class Told:
    """A run that is measured, and for each step what the oracle knows of it: before the weights move."""

    def __init__(self, style: str, case: str, *measurements: Callable[[Run], Measurement], noise: float = 0.7) -> None:
        self.run = Run(STYLES[style], BY_CASE[case], noise_multiplier=noise, seed=3)
        self.measurements = [make(self.run) for make in measurements]
        for each in self.measurements:
            self.run.private.observe(each)
        self.names = [n for n, m in self.run.masks.items() if m.any()]
        self.steps: list[tuple[list[slow.Gradient], Any, dict[str, Tensor]]] = []

    def take(self, number: int = 2) -> None:
        run, rows = self.run, []
        while run.private.steps_taken < number:
            for x in run.private.loader:
                rows.append(x)
                per_example = run.gradients(torch.cat(rows)) if sum(map(len, rows)) else []
                rule = run.style.rule(run.known())
                taken = run.private.steps_taken
                run.backward(x)
                run.private.optimizer.step()
                if run.private.steps_taken > taken:
                    released = {n: p.grad.clone() for n, p in run.model.named_parameters() if p.grad is not None}
                    self.steps.append((per_example, rule, released))
                    run.seen.append({})
                    rows = []
                if run.private.steps_taken == number:
                    return

    def signals(self, step: int) -> dict[str, slow.Gradient]:
        """U, B, P and the sums over clipped and other examples, over the expected batch size."""
        per_example, rule, released = self.steps[step]
        like = {n: self.run.model.get_parameter(n).detach() for n in self.names}
        size = self.run.private.expected_batch
        clipped = oracle.clip(per_example, rule) if per_example else None
        sums = like if clipped is None else clipped.sums
        factors = [] if clipped is None else clipped.factors
        block = {name: number for number, names in enumerate(rule.blocks) for name in names}
        parts: dict[str, slow.Gradient] = {"clipped": {}, "unclipped": {}}
        for name in self.names:
            cut = [float(f[block[name]] < 1) for f in factors]
            one = {name: like[name]}
            parts["clipped"] |= slow.added(per_example, [c / size for c in cut], one)
            parts["unclipped"] |= slow.added(per_example, [(1 - c) / size for c in cut], one)
        return {
            "U": slow.added(per_example, [1 / size] * len(per_example), like),
            "B": {n: sums[n].double() / size * bool(per_example) for n in self.names},
            "P": {n: released[n].double() for n in self.names},
            **parts,
        }

    def outside(self) -> Outside:
        return outside(self.run)


def outside(run: Run) -> Outside:
    return Outside(run.model, TensorDataset(run.case.new_inputs()), lambda m, b: run.loss(m, b[0]), batch=4)


def angles(signals: dict[str, slow.Gradient], names: list[str], pairs: tuple[str, ...]) -> dict[str, float | None]:
    found = {key: slow.numbers(vector, names) for key, vector in signals.items()}
    return {pair: slow.angle(found[pair[0]], found[pair[1]]) for pair in pairs}


@every_setting
def test_signals_are_those_of_the_oracle_whole_and_by_layer(style: str, case: str) -> None:
    told = Told(style, case, lambda _: Distortion(every=1))
    told.take()
    rows = told.measurements[0].rows
    assert [row["step"] for row in rows] == [0, 1]
    for step, row in enumerate(rows):
        signals = told.signals(step)
        layers = layers_of(n for n, _ in told.run.model.named_parameters() if n in told.names)
        assert list(row["layers"]) == list(layers)
        for found, names in [(row, told.names), *((row["layers"][layer], names) for layer, names in layers.items())]:
            same(found["norms"], {k: slow.norm(slow.numbers(signals[k], names)) for k in "UBP"})
            same(found["angles"], angles(signals, names, ("UB", "BP", "UP")))


@every_setting
def test_clipping_is_that_of_the_oracle(style: str, case: str) -> None:
    told = Told(style, case, lambda _: Clipped(every=1))
    told.take()
    for step, row in enumerate(told.measurements[0].rows):
        per_example, rule, _ = told.steps[step]
        signals = told.signals(step)
        clipped = oracle.clip(per_example, rule)
        vectors = [slow.numbers(g, told.names) for g in per_example]
        assert row["examples"] == len(vectors)
        same(row["share_clipped"], sum(min(f) < 1 for f in clipped.factors) / len(vectors))
        columns = zip(*clipped.factors, strict=True)
        same(list(row["shares_by_block"].values()), [sum(f < 1 for f in c) / len(vectors) for c in columns])
        assert row["histogram"] == slow.bins([slow.norm(v) for v in vectors], 10)
        same(row["R"], slow.ratio(vectors))
        u, b = (slow.numbers(signals[k], told.names) for k in "UB")
        size = told.run.private.expected_batch / len(vectors)
        inner = sum(x * y for x, y in zip(u, b, strict=True))
        same(row["alignment"], inner / slow.norm(u) * size)
        bound = rule.bounds[0] * (1 - slow.ratio(vectors) / 2)
        same(row["alignment_bound"], bound if len(rule.bounds) == 1 else None)


def true_gradient(run: Run) -> slow.Gradient:
    """The mean over all data at the weights as they are, over all coordinates."""
    plain = copy.deepcopy(run.model)
    for p in plain.parameters():
        p.requires_grad_()
    found = oracle.gradients(plain, run.case.new_inputs(), lambda m, x: run.loss(m, x).sum())
    like = {n: p.detach() for n, p in plain.named_parameters()}
    return slow.added(found, [1 / len(found)] * len(found), like)


@pytest.mark.parametrize(("style", "case"), [s for s in SETTINGS if "views" not in s[1]])
def test_the_truth_is_that_of_the_oracle(style: str, case: str) -> None:
    told = Told(style, case, lambda run: Truth(outside(run), every=1))
    truths = [true_gradient(told.run)]
    told.take(1)
    truths.append(true_gradient(told.run))
    told.take(2)
    for step, row in enumerate(told.measurements[0].rows):
        signals, true, (_, rule, _) = told.signals(step), truths[step], told.steps[step]
        masked = {n: t * told.run.masks[n] for n, t in true.items()}
        want = {
            k: slow.angle(slow.numbers(masked, told.names), slow.numbers(signals[k], told.names))
            for k in ("U", "B", "P", "clipped", "unclipped")
        }
        same(row["angles"], want)
        everything = list(true)
        whole = {k: {n: signals[k].get(n, true[n] * 0) for n in everything} for k in "BP"}
        t, b, p = (slow.numbers(v, everything) for v in (true, whole["B"], whole["P"]))
        same(row["norm"], slow.norm(t))
        same(row["signal_loss"], slow.squared_distance(t, b))
        same(row["squared_error"], slow.squared_distance(t, p))
        live = {n: int(told.run.masks[n].sum()) for n in told.names}
        released = [block for block in rule.blocks if set(block) & set(told.names)]
        kept = [number for number, block in enumerate(rule.blocks) if block in released]
        part = oracle.Rule(released, [rule.bounds[k] for k in kept], rule.factors)
        stds, _ = oracle.stds(part, 0.7)
        deviation = {n: std for block, std in zip(released, stds, strict=True) for n in block}
        variance = sum(live[n] * (deviation[n] / told.run.private.expected_batch) ** 2 for n in live)
        same(row["noise_variance"], variance)
        same(row["mse"], row["signal_loss"] + variance)


@pytest.mark.parametrize("case", ["plain", "elements frozen", "channels frozen", "layers frozen"])
@pytest.mark.parametrize("style", ["Local(1)", "PerLayer(Local)"])
def test_the_same_examples_with_nothing_frozen_and_with_what_is_frozen(style: str, case: str) -> None:
    told = Told(style, case, lambda run: Frozen(outside(run), sample=7, every=1))
    run = told.run
    examples = told.measurements[0].outside.some(7)
    plain = copy.deepcopy(run.model)
    for p in plain.parameters():
        p.requires_grad_()
    per_example = oracle.gradients(plain, run.case.new_inputs()[examples], lambda m, x: run.loss(m, x).sum())
    rule, everything = run.style.rule(run.known()), list(per_example[0])
    told.take(1)
    (row,) = told.measurements[0].rows
    like = {n: t * 0 for n, t in per_example[0].items()}
    true = slow.numbers(slow.added(per_example, [1 / 7] * 7, like), everything)
    cut = {}
    for key, gradients in (("unfrozen", per_example), ("frozen", oracle.masked(per_example, run.masks))):
        clipped = oracle.clip(gradients, rule)
        cut[key] = [min(f) < 1 for f in clipped.factors]
        signal = slow.numbers({n: t / 7 for n, t in clipped.sums.items()}, everything)
        on_live = {n: t * run.masks[n] / 7 for n, t in clipped.sums.items()}
        mean = oracle.masked([slow.added(per_example, [1 / 7] * 7, like)], run.masks)[0]
        lengths = sorted(slow.norm(slow.numbers(g, everything)) for g in gradients)
        names = told.names
        same(row[key]["share_clipped"], sum(cut[key]) / 7)
        same(row[key]["median_norm"], lengths[3])
        same(row[key]["norm_B"], slow.norm(slow.numbers(on_live, names)))
        same(row[key]["angle_UB"], slow.angle(slow.numbers(mean, names), slow.numbers(on_live, names)))
        same(row[key]["signal_loss"], slow.squared_distance(true, signal))
        released = rule.blocks if key == "unfrozen" else [b for b in rule.blocks if set(b) & set(names)]
        bounds = [bound for bound, b in zip(rule.bounds, rule.blocks, strict=True) if b in released]
        stds, _ = oracle.stds(oracle.Rule(released, bounds, rule.factors), 0.7)
        size = {n: m.numel() if key == "unfrozen" else int(m.sum()) for n, m in run.masks.items()}
        noise = sum(size[n] * std**2 for std, b in zip(stds, released, strict=True) for n in b)
        want = row[key]["signal_loss"] + noise / run.private.expected_batch**2
        assert row[key]["mse"] == pytest.approx(want, rel=1e-5)
    same(row["share_released"], sum(a and not b for a, b in zip(cut["unfrozen"], cut["frozen"], strict=True)) / 7)
    counts = {n: int(m.sum()) for n, m in run.masks.items()}
    same(row["live_share"], sum(counts.values()) / sum(m.numel() for m in run.masks.values()))
    if case == "plain":
        same(row["frozen"], row["unfrozen"])
    else:
        assert (
            row["frozen"]["mse"] - row["frozen"]["signal_loss"]
            < row["unfrozen"]["mse"] - row["unfrozen"]["signal_loss"]
        )


def test_freezes_are_counted_for_every_coordinate() -> None:

    case = BY_CASE["elements frozen"]
    run = Run(STYLES["Local(1)"], case, noise_multiplier=0.5)
    torch.manual_seed(1)
    shapes = {n: p.shape for n, p in run.model.named_parameters()}
    scripts: list[dict[str, Mask]] = [
        {n: torch.rand(s) < 0.5 for n, s in shapes.items()} | {"head.weight": True, "body.weight": False},
        {n: torch.rand(s) < 0.3 for n, s in shapes.items()} | {"head.weight": True, "temperature": False},
        {n: n != "body.weight" for n in shapes},
    ]
    script = [0, 0, 1, 2, 2, 0]
    run.private.optimizer.controller.freezer = Scripted(lambda step: scripts[script[step]])
    run.private.optimizer.controller._key = object()
    counts = FreezeCounts(every=5)
    run.private.observe(counts)
    want = {n: torch.zeros(s, dtype=torch.int64) for n, s in shapes.items()}
    taken = 0
    while taken < 6:
        for x in run.private.loader:
            run.backward(x)
            run.private.optimizer.step()
            if run.private.steps_taken > taken:
                for name in want:
                    mask = scripts[script[taken]][name]
                    want[name] += ~torch.as_tensor(mask).expand(shapes[name])
                taken += 1
            if taken == 6:
                break
    first, last = counts.rows
    assert (first["steps"], last["steps"]) == (1, 6)
    flat = torch.cat([t.flatten() for t in want.values()]).tolist()
    assert last["coordinates"] == {str(k): flat.count(k) for k in sorted(set(flat))}
    assert sum(first["coordinates"].values()) == len(flat)


@pytest.mark.parametrize("case", ["plain", "Poisson chunks, mean", "elements frozen", "layers frozen", "bfloat16"])
def test_a_measured_run_is_the_same_run_bit_for_bit(case: str) -> None:
    kinds: list[Callable[[Run], Measurement]] = [
        lambda _: Distortion(every=1),
        lambda _: Clipped(every=2),
        lambda run: Truth(outside(run), every=1),
        lambda run: Frozen(outside(run), sample=3, every=2),
        lambda _: FreezeCounts(every=2),
    ]
    weights = []
    for measurements in ([], kinds):
        torch.manual_seed(0)
        told = Told("Local(1)", case, *measurements)
        told.take(4)
        weights.append([p.detach().clone() for p in told.run.model.parameters()] + [torch.rand(3)])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_nothing_is_looked_at_in_other_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    monkeypatch.setattr(Distortion, "on_sums", lambda self, sums: looked.append("sums"))
    monkeypatch.setattr(Gram, "of", classmethod(lambda cls, vectors: looked.append("gram") or cls((), {})))
    monkeypatch.setattr("hoarfrost.measure.distortion.signals", lambda gram: {})
    told = Told("Local(1)", "plain", lambda _: Distortion(every=3))
    told.take(4)
    assert looked == ["sums", "gram"] * 2


@pytest.mark.parametrize("kind", ["distortion", "clipping", "truth", "freezing", "freeze-counts"])
def test_an_empty_batch_has_values_that_are_defined(kind: str) -> None:
    run = Run(STYLES["Local(1)"], sample_rate=1e-9, noise_multiplier=1.0, steps=1)
    made: dict[str, Measurement] = {
        "distortion": Distortion(1),
        "clipping": Clipped(1),
        "truth": Truth(outside(run), 1),
        "freezing": Frozen(outside(run), 3, 1),
        "freeze-counts": FreezeCounts(1),
    }
    run.private.observe(made[kind])
    for x in run.private.loader:
        run.backward(x)
        run.private.optimizer.step()
    (row,) = made[kind].rows
    if kind == "distortion":
        assert row["norms"]["U"] == row["norms"]["B"] == 0
        assert row["angles"] == {"UB": None, "BP": None, "UP": None}
    if kind == "clipping":
        assert (row["examples"], row["share_clipped"], row["R"], row["histogram"]) == (0, None, None, {})


def test_a_batch_of_one_agrees_with_itself() -> None:
    run = Run(
        STYLES["Local that always clips"],
        BY_CASE["plain"],
        inputs=BY_CASE["plain"].new_inputs()[:1],
        noise_multiplier=0.0,
    )
    clipped = Clipped(1)
    run.private.observe(clipped)
    list(run.steps(1))
    (row,) = clipped.rows
    assert row["R"] == pytest.approx(0, abs=1e-6)
    assert row["alignment"] >= row["alignment_bound"] * (1 - 1e-4)


def test_an_example_without_a_finite_norm_is_counted_apart() -> None:
    inputs = BY_CASE["plain"].new_inputs()
    inputs[2, 0, 1, 1] = float("inf")
    run = Run(STYLES["Local(1)"], inputs=inputs)
    clipped, distortion = Clipped(1), Distortion(1)
    run.private.observe(clipped)
    run.private.observe(distortion)
    list(run.steps(1))
    assert clipped.rows[0]["histogram"]["not finite"] == 1
    assert clipped.rows[0]["R"] > 0
    assert distortion.rows[0]["angles"]["UB"] > 0


def test_what_is_outside_of_the_steps_leaves_the_model_and_the_random_numbers_as_they_were() -> None:
    run = Run(STYLES["Local(1)"])
    look = outside(run)
    state, grads = torch.get_rng_state(), [p.grad for p in run.model.parameters()]
    look.gradient([n for n, _ in run.model.named_parameters()])
    list(look.each(["head.weight"], [0, 3]))
    assert torch.equal(state, torch.get_rng_state())
    assert grads == [p.grad for p in run.model.parameters()] == [None] * len(grads)
    assert not run.private.optimizer.engine._passes


def test_angles_and_lengths_of_vectors_with_other_parameters() -> None:
    a, b = {"x": torch.tensor([3.0, 4.0])}, {"y": torch.tensor([2.0])}
    gram = Gram.of({"a": a, "b": b, "none": {}})
    assert gram.norm("a") == 5
    assert gram.distance("a", "b") == pytest.approx(29**0.5)
    assert gram.angle("a", "b") == pytest.approx(torch.pi / 2)
    assert gram.angle("a", "none") is None
    assert Gram.of({"a": {}, "b": {}}).angle("a", "b") is None
    assert list(gram.layers()) == ["x", "y"]
