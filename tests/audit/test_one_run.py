"""The one-run audit: the bound holds, guesses do not depend on the coin flips, and training that leaks is detected."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from hoarfrost import budget, data
from hoarfrost.audit import one_run_audit as module
from hoarfrost.audit.one_run_audit import make_canaries, one_run
from hoarfrost.audit.one_run_bound import OneRunAudit, default_guesses, lower_bound
from hoarfrost.errors import InvalidValue
from hoarfrost.noise import Noise
from hoarfrost.recipes.schema import Recipe
from hoarfrost.run import Private
from hoarfrost.train import prepare as preparing


def chances(trials: int, p: float) -> list[float]:
    return [math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(trials + 1)]


def luck(epsilon: float, right: int, guesses: int, canaries: int, delta: float) -> float:
    """β + 2mδα, letter by letter."""
    chance = chances(guesses, 1 / (1 + math.exp(-epsilon)))
    alpha = max(sum(chance[right - i : right]) / i for i in range(1, right + 1))
    return min(1.0, sum(chance[right:]) + 2 * canaries * delta * alpha)


@pytest.mark.parametrize("guesses", [1, 7, 40])
@pytest.mark.parametrize(("canaries", "delta"), [(40, 0.0), (40, 1e-4), (1000, 1e-4), (1000, 3e-3)])
def test_the_bound_is_where_the_formula_crosses_the_level(guesses: int, canaries: int, delta: float) -> None:
    for right in range(1, guesses + 1):
        bound = lower_bound(right, guesses=guesses, canaries=canaries, delta=delta)
        if bound > 0:
            assert luck(bound - 1e-6, right, guesses, canaries, delta) < 0.05
        assert luck(bound + 1e-6, right, guesses, canaries, delta) >= 0.05 - 1e-6
        # The refuted values are an interval: none beyond the bound, none missing below it.
        for epsilon in np.arange(0, 8, 0.1):
            assert (luck(epsilon, right, guesses, canaries, delta) < 0.05) == (epsilon < bound)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("guesses", [20, 200])
@pytest.mark.parametrize("delta", [0.0, 1e-4, 1e-3])
def test_private_mechanisms_are_falsely_refuted_at_most_as_often_as_stated(
    epsilon: float, guesses: int, delta: float
) -> None:
    """Exactly, over all outcomes, for randomised response that gives all away with probability δ: for each canary
    by itself, and for all of them at once."""
    refuted = [lower_bound(v, guesses=guesses, canaries=guesses, delta=delta) > epsilon for v in range(guesses + 1)]
    p = 1 / (1 + math.exp(-epsilon))
    each = chances(guesses, delta + (1 - delta) * p)
    at_once = (1 - delta) * np.array(chances(guesses, p))
    at_once[-1] += delta
    for chance in (each, at_once):
        assert np.dot(chance, refuted) <= 0.05
    if delta == 0 and guesses == 200:  # nor is a tenth of the level thrown away
        assert np.dot(each, refuted) > 0.02


def gaussian(epsilon: float, canaries: int, noise: float = 1.0) -> OneRunAudit:
    """Every canary has a coordinate of its own in one release of the Gaussian mechanism."""
    sigma = noise * budget.noise_multiplier(epsilon, 1e-5, 1.0, 1)
    included = torch.rand(canaries) < 0.5
    return OneRunAudit.of(included + sigma * torch.randn(canaries), included, epsilon_claimed=epsilon, delta=1e-5)


@pytest.mark.parametrize(("epsilon", "expected"), [(1.0, 0.45), (4.0, 1.85)])
def test_a_gaussian_mechanism_gets_the_known_bound_and_no_alarm(epsilon: float, expected: float) -> None:
    torch.manual_seed(0)
    audits = [gaussian(epsilon, 10_000) for _ in range(20)]
    assert np.mean([audit.epsilon_lower for audit in audits]) == pytest.approx(expected, abs=0.1)
    assert all(audit.passed for audit in audits)


def test_a_gaussian_mechanism_with_a_quarter_of_its_noise_alarms() -> None:
    torch.manual_seed(0)
    assert all(not gaussian(1.0, 2000, noise=0.25).passed for _ in range(20))


def test_a_guesser_without_any_knowledge_hardly_ever_refutes_anything() -> None:
    torch.manual_seed(0)
    bounds = [
        OneRunAudit.of(torch.randn(300), torch.rand(300) < 0.5, epsilon_claimed=0.0, delta=1e-5).epsilon_lower
        for _ in range(200)
    ]
    assert np.mean([bound > 0 for bound in bounds]) <= 0.1  # 0.05 and three standard deviations


def test_more_right_guesses_show_more_and_more_doubt_shows_less() -> None:
    bounds = [lower_bound(v, guesses=100, canaries=500, delta=1e-5) for v in range(101)]
    assert bounds == sorted(bounds)
    assert bounds[0] == bounds[50] == 0 < bounds[70]
    settings: dict[str, Any] = {"guesses": 100, "canaries": 500, "delta": 1e-5}
    assert lower_bound(90, **settings, confidence=0.99) < bounds[90]
    assert lower_bound(90, **settings | {"delta": 1e-3}) < bounds[90]
    assert lower_bound(90, **settings | {"canaries": 50_000}) < bounds[90]


@pytest.mark.parametrize(
    "wrong",
    [
        {"guesses": 0},
        {"guesses": 11},
        {"correct": 6},
        {"correct": -1},
        {"delta": 1.0},
        {"delta": -0.1},
        {"confidence": 1},
    ],
)
def test_counts_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"correct": 5, "guesses": 5, "canaries": 10, "delta": 1e-5} | wrong
    with pytest.raises(InvalidValue):
        lower_bound(given.pop("correct"), **given)


def test_the_guesser_names_the_highest_as_in_and_the_lowest_as_out() -> None:
    included = torch.tensor([True, True, False, True, False, True, False])
    scores = torch.tensor([9.0, -9.0, -8.0, 0.0, 1.0, 8.0, 7.0])
    assert OneRunAudit.of(scores, included, epsilon_claimed=1, delta=0.1, guesses=4).correct == 3
    assert (
        OneRunAudit.of(scores, included, epsilon_claimed=1, delta=0.1, guesses=5).correct == 3
    )  # an odd one is an "in"
    assert OneRunAudit.of(scores, included, epsilon_claimed=1, delta=0.1, guesses=1).correct == 1
    assert OneRunAudit.of(scores * math.nan, included, epsilon_claimed=1, delta=0.1).guesses == 7
    with pytest.raises(InvalidValue, match="tensors"):
        OneRunAudit.of(scores, included[1:], epsilon_claimed=1, delta=0.1)
    with pytest.raises(InvalidValue, match="8 guesses"):
        OneRunAudit.of(scores, included, epsilon_claimed=1, delta=0.1, guesses=8)


def test_the_audit_says_when_it_could_not_have_alarmed() -> None:
    could_not = OneRunAudit.of_counts(20, guesses=20, canaries=20, epsilon_claimed=8.0, delta=1e-5)
    assert could_not.passed
    assert "could not have alarmed" in str(could_not)
    could = OneRunAudit.of_counts(10, guesses=20, canaries=20, epsilon_claimed=1.0, delta=1e-5)
    assert could.epsilon_lower_max == could_not.epsilon_lower
    assert "could not" not in str(could)
    facts = OneRunAudit.of_counts(20, guesses=20, canaries=20, epsilon_claimed=math.inf, delta=1e-5).as_dict()
    assert (facts["epsilon_claimed"], facts["passed"], facts["correct"]) == (None, True, 20)


# End to end


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """Few examples and a wide model, trained for long without much clipping: it remembers what it sees."""
    draw = np.random.RandomState(0)
    x, y = draw.rand(500, 100), draw.randint(10, size=500)
    np.savez(tmp_path / "data.npz", x_train=x[:400], y_train=y[:400], x_test=x[400:], y_test=y[400:])
    return Recipe.model_validate(
        {
            "data": {"path": str(tmp_path / "data.npz")},
            "model": {"name": "mlp", "hidden": [256]},
            "optimizer": {"kind": "adam", "lr": 0.01},
            "clip": {"norm": 1000.0},
            "privacy": {"epsilon": 1.0, "delta": 1e-5, "batch_size": 200, "steps": 60},
            "loop": {"threads": 1},
        }
    )


def changed(recipe: Recipe, **privacy: Any) -> Recipe:
    return Recipe.model_validate(recipe.model_dump() | {"privacy": recipe.privacy.model_dump() | privacy})


def test_training_without_noise_that_claims_epsilon_1_is_caught(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Noise, "add_", lambda *args: None)
    audit = one_run(recipe, canaries=400)
    assert 0.9 < audit.epsilon_claimed <= 1
    assert audit.epsilon_lower > 1.5
    assert not audit.passed
    assert "ALARM" in str(audit)


def test_the_same_training_with_its_noise_is_not(recipe: Recipe) -> None:
    audit = one_run(recipe, canaries=400)
    assert (audit.canaries, audit.guesses, audit.seeded) == (400, 200, False)
    assert 0.9 < audit.epsilon_claimed <= 1 < audit.epsilon_lower_max
    assert audit.passed


@pytest.fixture
def quick(recipe: Recipe) -> Recipe:
    return changed(recipe, steps=3, epsilon=None, noise_multiplier=2.0, accountant="rdp")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Private, dict[str, Any]]]:
    """What the audit asked for, and got."""
    seen: list[tuple[Private, dict[str, Any]]] = []
    plain = preparing.assemble

    def spy(*args: Any, **settings: Any) -> Private:
        seen.append((plain(*args, **settings), settings | {"data": args[2].dataset, "plan": args[3]}))
        return seen[-1][0]

    monkeypatch.setattr(preparing, "assemble", spy)
    return seen


def test_sampling_steps_and_divisor_are_the_recipes_whatever_the_coins(
    quick: Recipe, made: list[tuple[Private, dict[str, Any]]]
) -> None:
    for recipe in (quick, changed(quick, batch_size=None, sample_rate=0.5, steps=None, epochs=1.5)):
        audit = one_run(recipe, canaries=100)
        private, settings = made[-1]
        assert private.sample_rate == 0.5
        assert private.optimizer.expected_batch == 200
        assert private.steps == private.steps_taken == 3
        assert private.allowance is None
        assert audit.epsilon_claimed == private.epsilon()
        included = len(settings["data"]) - 350  # half as many examples as there are canaries make room for them
        assert 20 <= included <= 80
    assert len({len(settings["data"]) for _, settings in made}) <= 2


def test_a_ledger_is_charged(quick: Recipe, tmp_path: Path) -> None:
    ledger = budget.Ledger.create(tmp_path / "ledger.jsonl", epsilon=None, delta=1e-5)
    one_run(quick, canaries=10, ledger=tmp_path / "ledger.jsonl")
    ledger.refresh()
    (entry,) = ledger.entries
    assert (entry.reserved, entry.committed, entry.closed) == (3, 3, True)
    assert entry.what.startswith("audit of")


def test_a_seed_repeats_the_audit_and_leaves_the_callers_randomness_alone(quick: Recipe) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    seeded = changed(quick, seed=3)
    first = one_run(seeded, canaries=100)
    assert torch.equal(torch.rand(3), expected)
    assert first == one_run(seeded, canaries=100)
    assert "seeded" in str(first)


def test_coins_are_fair_fresh_and_unrelated_to_torchs_generator() -> None:
    torch.manual_seed(0)
    first = module._coin_flips(10_000, None)
    torch.manual_seed(0)
    second = module._coin_flips(10_000, None)
    for coins in (first, second, first == second, module._coin_flips(10_000, seed=1)):
        assert abs(coins.double().mean() - 0.5) < 0.025  # five standard deviations
    assert torch.equal(module._coin_flips(100, seed=1), module._coin_flips(100, seed=1))


def test_only_canaries_that_came_out_in_are_trained_on() -> None:
    examples = TensorDataset(torch.arange(50.0), torch.zeros(50, dtype=torch.long))
    canary_set = TensorDataset(torch.arange(100.0, 120.0), torch.ones(20, dtype=torch.long))
    included = torch.arange(20) % 3 == 0
    splits = data.Splits(examples, examples, classes=2)
    x, y = module._with_canaries(splits, canary_set, included).train.tensors
    assert set(x[y == 1].tolist()) == set((torch.arange(100.0, 120.0)[included]).tolist())
    assert len(set(x[y == 0].tolist())) == 40


def test_canaries_know_nothing_of_the_training_set_and_fit_the_model() -> None:
    test = torch.tensor([[0.0, 5.0, 7.0], [1.0, 9.0, 7.0]])
    splits = data.Splits.of(torch.full((4, 3), 1e9), torch.zeros(4, dtype=torch.long), test, torch.tensor([0, 1]))
    x, y = make_canaries(splits, 2000).tensors
    assert x.mean(0).sub(torch.tensor([0.5, 7.0, 7.0])).abs().max() < 3
    assert x.std(0).tolist() == pytest.approx([3, 12, 27], rel=0.1)
    assert sorted(y.unique().tolist()) == [0, 1]
    tokens = data.Splits.of(torch.tensor([[1, 2]]), torch.tensor([0]), torch.tensor([[7, 9]]), torch.tensor([1]))
    assert make_canaries(tokens, 50).tensors[0].unique().tolist() == [7, 9]


def test_what_cannot_be_audited_is_refused_before_anything_is_trained(quick: Recipe, made: list[Any]) -> None:
    with pytest.raises(InvalidValue, match="fewer than 800"):
        one_run(quick, canaries=800)
    with pytest.raises(InvalidValue, match="11 guesses"):
        one_run(quick, canaries=10, guesses=11)
    with pytest.raises(InvalidValue, match="confidence"):
        one_run(quick, canaries=10, confidence=95)
    assert made == []


def test_the_default_number_of_guesses_depends_on_nothing_but_the_number_of_canaries() -> None:
    assert [default_guesses(m) for m in (1, 199, 201, 1999, 3000)] == [1, 199, 200, 200, 300]
