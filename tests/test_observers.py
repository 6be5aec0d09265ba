"""What an observer is shown, and that nobody can tell whether a run was observed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hoarfrost.clipping import Clipping
from hoarfrost.gradients import contributions
from hoarfrost.observers import Observer, Released, Sums
from tests import oracle
from tests.clipping.settings import TABLE, Style
from tests.support.clipping import CASES, PLAIN, Case, Run

BY_CASE = {case.name: case for case in CASES}
STYLES = {style.name: style for style in TABLE}
SOME = ["plain", "chunks, mean", "views in chunks", "elements frozen", "layers frozen", "float64", "tied weights"]
every_style = pytest.mark.parametrize("style", TABLE, ids=repr)


class Watching(Observer):
    """Keeps copies of all that it is shown."""

    def __init__(self) -> None:
        self.passes: list[tuple[Tensor, Tensor, Clipping, dict[str, Tensor], dict[str, Tensor]]] = []
        self.steps: list[Released] = []

    def on_sums(self, sums: Sums) -> None:
        clipped = {name: t.clone() for name, t in sums.clipped.items()}
        unclipped = {name: t.clone() for name, t in sums.unclipped().items()}
        self.passes.append((sums.norms.clone(), sums.factors.clone(), sums.clipping, clipped, unclipped))

    def on_release(self, released: Released) -> None:
        copies = {
            kind: {name: t.clone() for name, t in getattr(released, kind).items()} for kind in ("clipped", "gradients")
        }
        self.steps.append(replace(released, **copies))


def unclipped_sum(run: Run, rows: Tensor) -> dict[str, Tensor]:
    """The sum of the gradients of one chunk as they are."""
    plain = oracle.Rule([run.known().names], [1e30], lambda norms: [1.0])
    return run.expected(rows, plain)[1].sums


@every_style
@pytest.mark.parametrize("name", SOME)
def test_every_chunk_is_shown_as_the_oracle_sees_it(style: Style, name: str) -> None:
    case = BY_CASE[name]
    run, watching = Run(style, case), Watching()
    run.private.observe(watching)
    expected = []
    for x in run.private.loader:
        expected.append((run.expected(x)[1], unclipped_sum(run, x)))
        run.backward(x)
        run.private.optimizer.step()
    assert (len(expected) > 1) == (case.chunk is not None)
    bound = max(style.rule(run.known()).bounds)
    for (norms, factors, clipping, clipped, unclipped), (want, whole) in zip(watching.passes, expected, strict=True):
        torch.testing.assert_close(norms.double(), torch.tensor(want.norms).double(), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(factors.double(), torch.tensor(want.factors).double(), rtol=1e-4, atol=1e-6)
        assert clipping is watching.passes[0][2]
        for parameter, sums in want.sums.items():
            zeros = torch.zeros_like(sums)
            torch.testing.assert_close(clipped.get(parameter, zeros), sums, rtol=2e-4, atol=2e-5 * min(bound, 1.0))
            torch.testing.assert_close(unclipped.get(parameter, zeros), whole[parameter], rtol=2e-4, atol=2e-5)


def test_an_example_without_a_finite_norm_is_shown_without_a_factor() -> None:
    inputs = PLAIN.new_inputs()
    inputs[2, 0, 1, 1] = float("inf")
    (style,) = (style for style in TABLE if style.name == "PerLayer(Local)")
    run, watching = Run(style, inputs=inputs), Watching()
    run.private.observe(watching)
    (step,) = run.steps(1)
    ((norms, factors, _, clipped, unclipped),) = watching.passes
    assert not norms[2].isfinite().all()
    assert norms[2].isfinite().any()
    assert (factors[2] == 0).all()
    assert (factors[[0, 1, *range(3, 11)]] > 0).all()
    for name, want in step.clipped.sums.items():
        torch.testing.assert_close(clipped[name], want, rtol=2e-4, atol=1e-5)
        assert unclipped[name].isfinite().all()


@every_style
@pytest.mark.parametrize("name", ["plain", "chunks, mean", "elements frozen", "layers frozen"])
def test_a_release_is_shown_as_the_inner_optimizer_is_handed_it(
    style: Style, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, watching = Run(style, BY_CASE[name], noise_multiplier=0.8), Watching()
    run.private.observe(watching)
    handed: list[dict[str, Tensor]] = []
    inner = run.private.optimizer.inner
    original = inner.step

    def step(*args: Any) -> Any:
        handed.append({n: p.grad.clone() for n, p in run.model.named_parameters() if p.grad is not None})
        return original(*args)

    monkeypatch.setattr(inner, "step", step)
    taken = list(run.steps(3))
    assert [released.step for released in watching.steps] == [0, 1, 2]
    for released, gradients, step_taken in zip(watching.steps, handed, taken, strict=True):
        assert released.gradients.keys() == gradients.keys()
        assert all(torch.equal(t, gradients[n]) for n, t in released.gradients.items())
        assert all(torch.equal(t, step_taken.sums[n]) for n, t in released.clipped.items())
        assert released.clipped.keys() == step_taken.sums.keys()
        assert released.statistics == step_taken.noisy.statistics
        stds, _ = oracle.stds(step_taken.rule, 0.8)
        for block, std in zip(step_taken.rule.blocks, stds, strict=True):
            assert all(released.stds[n] == pytest.approx(std) for n in block if n in released.stds)
        assert set(gradients) <= set(released.stds)


def test_a_batch_without_examples_is_shown_as_a_release_alone() -> None:
    run, watching = Run(TABLE[0], sample_rate=1e-9, noise_multiplier=1.0, steps=1), Watching()
    run.private.observe(watching)
    for x in run.private.loader:
        run.backward(x)
        run.private.optimizer.step()
    assert watching.passes == []
    (released,) = watching.steps
    assert released.clipped == {}
    assert len(released.gradients) == len(list(run.model.parameters()))


def test_chunks_that_are_shown_add_up_to_the_release() -> None:
    run, watching = Run(TABLE[0], Case("chunks", chunk=3), noise_multiplier=1.0), Watching()
    run.private.observe(watching)
    list(run.steps(1))
    assert len(watching.passes) == 4
    for name, total in watching.steps[0].clipped.items():
        torch.testing.assert_close(total, sum(clipped[name] for *_, clipped, _ in watching.passes))


@pytest.mark.parametrize("name", ["plain", "chunks, mean", "views in chunks", "elements frozen", "float64"])
def test_gradients_are_summed_with_any_weights(name: str) -> None:
    run = Run(STYLES["PerLayer(Local)"], BY_CASE[name])
    weights: list[Tensor] = []
    found: list[dict[str, Tensor]] = []

    class Weighing(Observer):
        def on_sums(self, sums: Sums) -> None:
            weights.append(torch.linspace(-1, 2, sums.norms.numel()).view(sums.norms.shape))
            found.append(dict(sums.weighted(weights[-1])))

    run.private.observe(Weighing())
    block_of = None
    for x in run.private.loader:
        per_example = run.gradients(x)
        run.backward(x)
        block_of = run.private.optimizer.engine.clipping.block_of
        for parameter, total in found[-1].items():
            each = weights[-1][:, block_of[parameter]]
            want = sum(float(w) * g[parameter] for w, g in zip(each, per_example, strict=True))
            torch.testing.assert_close(total, want, rtol=2e-4, atol=2e-5, check_dtype=False)
        run.private.optimizer.step()
    assert block_of is not None
    assert len(found) >= 1


def test_an_observer_is_shown_the_steps_that_it_looks_at_and_no_others() -> None:
    class EverySecond(Watching):
        def looks(self, step: int) -> bool:
            return step % 2 == 1

    run, always, second = Run(TABLE[0], BY_CASE["chunks, mean"]), Watching(), EverySecond()
    run.private.observe(second)
    run.private.observe(always)
    list(run.steps(4))
    assert [released.step for released in always.steps] == [0, 1, 2, 3]
    assert [released.step for released in second.steps] == [1, 3]
    assert len(always.passes) == 2 * len(second.passes) > 4
    per_step = len(second.passes) // 2
    for mine, (norms, *_) in zip(second.passes, always.passes[per_step : 2 * per_step], strict=False):
        assert torch.equal(mine[0], norms)


@pytest.mark.parametrize("name", ["elements frozen", "layers frozen", "plain"])
def test_a_release_says_what_is_frozen_and_what_sums_are_divided_by(name: str) -> None:
    run, watching = Run(TABLE[0], BY_CASE[name]), Watching()
    run.private.observe(watching)
    list(run.steps(1))
    (released,) = watching.steps
    assert released.info.expected_batch == run.private.expected_batch
    for parameter, live in run.masks.items():
        mask = released.masks.get(parameter, True)
        written = torch.full(live.shape, mask) if isinstance(mask, bool) else mask.mask
        assert torch.equal(written, live)


# Observing changes nothing.


def train(style: Style, case: Case, *observers: Observer) -> tuple[list[Tensor], list[dict[str, float]]]:
    run = Run(style, case, noise_multiplier=1.1)
    for observer in observers:
        run.private.observe(observer)
    list(run.steps(4))
    state = [t for entries in run.private.optimizer.state.values() for t in entries.values() if isinstance(t, Tensor)]
    return [*run.model.parameters(), *state], run.seen


@every_style
@pytest.mark.parametrize("name", [*SOME, "Poisson chunks, mean", "channels frozen", "momentum", "Adam", "bfloat16"])
def test_an_observed_run_is_the_same_run_bit_for_bit(style: Style, name: str) -> None:
    plain, seen = train(style, BY_CASE[name])
    observed, seen_by_observed = train(style, BY_CASE[name], Watching(), Watching())
    assert len(plain) == len(observed)
    assert all(torch.equal(a, b) for a, b in zip(plain, observed, strict=True))
    assert seen == seen_by_observed


def test_without_observers_nothing_is_computed_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """One weighted sum for every parameter and pass; an observer costs more only if it asks for more."""

    class Glancing(Observer):
        def on_sums(self, sums: Sums) -> None:
            assert set(sums.clipped) == {name for name, _ in run.model.named_parameters()}

    class Elsewhere(Watching):
        def looks(self, step: int) -> bool:
            return False

    calls: list[str] = []
    made: list[type] = []  # what is made for observers
    for where, kind in (("hoarfrost.gradients.engine.Sums", Sums), ("hoarfrost.optim.private.Released", Released)):
        monkeypatch.setattr(where, lambda *args, kind=kind, **options: made.append(kind) or kind(*args, **options))
    kinds = [
        k for k in vars(contributions).values() if isinstance(k, type) and issubclass(k, contributions.Contribution)
    ]
    depth = [0]
    for kind in kinds:
        if "weighted_sum" in vars(kind):
            monkeypatch.setattr(kind, "weighted_sum", counting(kind.weighted_sum, calls, depth))
    counts = {}
    several: dict[str, list[Observer]] = {"none": [], "not looking": [Elsewhere()], "glancing": [Glancing()]}
    for name, observers in {**several, "asking": [Watching()]}.items():
        calls.clear()
        run = Run(TABLE[0], Case("chunks", chunk=4))
        for observer in observers:
            run.private.observe(observer)
        for x in run.private.loader:
            run.backward(x)
            run.private.optimizer.step()
        assert bool(made) == (name in ("glancing", "asking"))
        counts[name] = len(calls)
    passes, parameters = 3, len(list(run.model.parameters()))
    assert counts == {
        "none": passes * parameters,
        "not looking": passes * parameters,
        "glancing": passes * parameters,
        "asking": 2 * passes * parameters,
    }


def counting(original: Any, calls: list[str], depth: list[int]) -> Any:
    """Counts calls from outside; a contribution made of others calls theirs."""

    def wrapped(self: Any, weights: Tensor) -> Tensor:
        if not depth[0]:
            calls.append(type(self).__name__)
        depth[0] += 1
        try:
            return original(self, weights)
        finally:
            depth[0] -= 1

    return wrapped
