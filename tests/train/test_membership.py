"""Attacks on whole runs: a model that memorised is found out, one that did not is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from hoarfrost.budget import Gaussian, epsilon
from hoarfrost.data import Splits
from hoarfrost.errors import InvalidValue
from hoarfrost.measure import Roc, Tradeoff
from hoarfrost.train import run, shadows
from hoarfrost.train.loading import Trained
from hoarfrost.train.membership import allowed, attack, choose
from tests.support.recipes import tiny

CPU = torch.device("cpu")


def write(path: Path, size: int, *, classes: int = 10, seed: int = 0) -> Path:
    """Examples whose labels nobody can know: only memory helps."""
    random = np.random.default_rng(seed)
    x, y = random.normal(size=(2, size, 10)), random.integers(classes, size=(2, size))
    np.savez(path, x_train=x[0], y_train=y[0], x_test=x[1], y_test=y[1])
    return path


def trained(folder: Path, *, leaky: bool, size: int = 60, **changes: Any) -> Path:
    """A run on so few examples; the leaky one has no noise, and as good as no clipping."""
    data = write(folder / "data.npz", size)
    privacy: dict[str, Any] = {"privacy__seed": 3, "privacy__batch_size": size // 2, "privacy__delta": 1e-3}
    if leaky:
        privacy |= {"privacy__noise_multiplier": 0.0, "privacy__steps": 200}
        changes = {"clip": {"kind": "local", "norm": 1000.0}, "model__hidden": [32]} | changes
    else:
        privacy |= {"privacy__noise_multiplier": 3.0, "privacy__steps": 6}
    run(tiny(data={"path": str(data), "classes": 10}, **privacy, **changes), out=folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def leaky(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("leaky"), leaky=True, size=150)


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("private"), leaky=False, size=400)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where only the shadow models' data are of interest."""
    return trained(tmp_path_factory.mktemp("small"), leaky=False)


@pytest.mark.parametrize("kind", ["threshold", "logistic", "lira"])
def test_a_model_that_memorised_is_found_out(leaky: Path, kind: str) -> None:
    found = attack(leaky, kind, shadow_models=4)
    assert found.auc.low > 0.75
    assert found.claim is None
    assert not found.bound.bounds
    assert found.red_flags == ()  # it claims nothing


@pytest.mark.parametrize("kind", ["threshold", "logistic"])
def test_a_private_one_is_not(private: Path, kind: str) -> None:
    found = attack(private, kind)
    nearly_sure = Roc(found.roc.members, found.roc.non_members, confidence=0.9999).auc
    assert nearly_sure.low < 0.5 < nearly_sure.high
    assert found.red_flags == ()
    assert found.bound.bounds


def test_a_false_claim_is_a_red_flag(leaky: Path, private: Path, tmp_path: Path) -> None:
    """The leaky run, with the private one's statement."""
    liar = tmp_path / "liar"
    liar.mkdir()
    for name in ("recipe.toml", "model.safetensors", "run.json"):
        (liar / name).write_bytes((leaky / name).read_bytes())
    (liar / "budget.json").write_bytes((private / "budget.json").read_bytes())
    flags = attack(liar, "threshold").red_flags
    assert flags[0].startswith("AUC ")
    assert "where at most 0.6" in flags[0]


def test_the_bound_is_that_of_what_was_released(private: Path) -> None:
    stated = json.loads((private / "budget.json").read_text())
    claim, bound = allowed(private)
    event = Gaussian(noise_multiplier=3.0, sample_rate=0.5, steps=6)
    assert claim == (stated["epsilon"], 1e-3)
    assert bound.auc < Tradeoff([claim]).auc  # the whole profile says more than one pair
    assert all(bound.tpr(fpr) <= Tradeoff([(epsilon(event, 0.01), 0.01)]).tpr(fpr) + 1e-3 for fpr in (0.001, 0.1, 0.9))
    assert all(bound.tpr(fpr) <= Tradeoff([claim]).tpr(fpr) for fpr in (0.001, 0.1, 0.9))


@pytest.mark.parametrize("stated", ['{"releases": []}', '{"epsilon": 1, "delta": 1e-5, "releases": [{"kind": "x"}]}'])
def test_a_statement_that_cannot_be_read_is_refused(tmp_path: Path, stated: str) -> None:
    (tmp_path / "budget.json").write_text(stated)
    with pytest.raises(InvalidValue, match=r"budget.json is not as `hoarfrost train` writes it"):
        allowed(tmp_path)


def test_it_is_the_same_whenever_it_is_asked(private: Path) -> None:
    assert attack(private, "logistic").row() == attack(private, "logistic").row()


def test_logistic_regression_is_measured_on_what_it_was_not_fitted_on(private: Path) -> None:
    whole, half = attack(private, "threshold", examples=101), attack(private, "logistic", examples=101)
    assert (len(whole.roc.members), len(whole.roc.non_members)) == (101, 101)
    assert (len(half.roc.members), len(half.roc.non_members)) == (51, 51)
    with pytest.raises(InvalidValue, match="needs two members"):
        attack(private, "logistic", examples=1)
    assert len(attack(private, "threshold", examples=1).roc.members) == 1


def splits(train: list[int], test: list[int], classes: int | None = 3) -> Splits:
    def part(labels: list[int]) -> TensorDataset:
        return TensorDataset(torch.zeros(len(labels), 2), torch.tensor(labels, dtype=torch.int64))

    return Splits(part(train), part(test), classes)


def test_members_and_non_members_have_the_same_classes() -> None:
    given = splits([0] * 9 + [1] * 2 + [2] * 3, [0] * 4 + [1] * 5)
    members, others = choose(given, None)
    assert sorted(given.train.tensors[1][members].tolist()) == [0] * 4 + [1] * 2
    assert sorted(given.test.tensors[1][others].tolist()) == [0] * 4 + [1] * 2
    assert len(members.unique()) == len(others.unique()) == 6
    few = choose(given, 3)
    assert [len(each) for each in few] == [3, 3]
    assert few[0].equal(members[:3])


def test_a_regression_has_no_classes_to_balance() -> None:
    members, others = choose(splits([0] * 9, [1] * 4, classes=None), None)
    assert (len(members.unique()), len(others.unique())) == (4, 4)


@pytest.mark.parametrize("most", [0, -1, 2.5])
def test_how_many_examples_is_a_whole_number(most: Any) -> None:
    with pytest.raises(InvalidValue, match="examples must be a whole number"):
        choose(splits([0], [0]), most)


def test_changed_data_are_refused(private: Path, tmp_path: Path) -> None:
    run_folder = trained(tmp_path, leaky=False)
    write(tmp_path / "data.npz", 60, seed=1)
    with pytest.raises(InvalidValue, match="have changed since the run: who was a member is not known any more"):
        attack(run_folder, "threshold")


def test_shadow_models_are_trained_on_as_many_examples_with_half_of_the_attacked_ones(small: Path) -> None:
    found = Trained.load(small)
    assert isinstance(found.splits.train, TensorDataset)
    members, others = choose(found.splits, 20)
    pool = shadows.Pool(members, others)
    for number in range(6):
        included = pool.included(number)
        mixed = shadows.mixed(found.splits, pool, included)
        assert len(mixed) == 60
        rows = {tuple(row) for row in mixed.tensors[0].tolist()}
        inside = [tuple(found.splits.train.tensors[0][i].tolist()) in rows for i in members]
        outside = [tuple(found.splits.test.tensors[0][i].tolist()) in rows for i in others]
        assert inside + outside == included.tolist()
        kept = sorted({*range(60)} - {*members.tolist()})
        assert all(tuple(found.splits.train.tensors[0][i].tolist()) in rows for i in kept)
    counts = torch.stack([pool.included(number) for number in range(6)]).sum(0)
    assert counts.unique().tolist() == [3]  # of members and of non-members alike
    assert not pool.included(0).equal(pool.included(2))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Notes which shadow models are trained."""
    numbers: list[int] = []
    real = shadows._train_one

    def noting(trained: Trained, pool: shadows.Pool, number: int, device: torch.device) -> torch.Tensor:
        if numbers == [0, 1, 2] and number == 3:
            numbers.append(-1)
            raise KeyboardInterrupt
        numbers.append(number)
        return real(trained, pool, number, device)

    monkeypatch.setattr(shadows, "_train_one", noting)
    return numbers


def test_shadow_models_are_kept_and_what_was_broken_off_goes_on(small: Path, counted: list[int]) -> None:
    said: list[str] = []
    before = sorted(small.iterdir())
    with pytest.raises(KeyboardInterrupt):
        attack(small, "lira", shadow_models=4, say=said.append)
    first = attack(small, "lira", shadow_models=4, say=said.append)
    assert counted == [0, 1, 2, -1, 3]
    assert "4 of 4 shadow models are still to be trained" in said[0]
    assert "not-private/shadows" in said[0]
    assert "1 of 4 shadow models are still to be trained" in said[4]
    again = attack(small, "lira", shadow_models=4)
    assert counted == [0, 1, 2, -1, 3]
    assert first.row() == again.row()
    assert sorted(small.iterdir()) == before  # nothing outside of not-private/
    attack(small, "lira", shadow_models=4, examples=10)  # other examples: other models
    assert counted == [0, 1, 2, -1, 3, 0, 1, 2, 3]
    for broken in (small / "not-private/shadows").rglob("shadow-002*"):
        broken.write_bytes(b"junk")
    with pytest.raises(InvalidValue, match=r"shadow-002.safetensors cannot be read; remove it"):
        attack(small, "lira", shadow_models=4)


def test_shadow_models_have_the_noise_and_the_length_of_the_run(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = shadows.train

    def looking(private: Any, *given: Any, **options: Any) -> Any:
        seen.append((private.noise_multiplier, private.sample_rate, private.steps))
        return real(private, *given, **options)

    monkeypatch.setattr(shadows, "train", looking)
    found = Trained.load(small)
    shadows._train_one(found, shadows.Pool(*choose(found.splits, 12)), 0, CPU)
    assert seen == [(3.0, 0.5, 6)]


def test_a_seeded_run_has_shadow_models_with_other_noise() -> None:
    recipe = tiny(privacy__seed=7)
    assert [shadows._reseeded(recipe, number).privacy.seed for number in range(3)] == [8, 9, 10]
    assert shadows._reseeded(tiny(), 0).privacy.seed is None


@pytest.mark.parametrize("count", [2, 5, 0])
def test_lira_needs_an_even_number_of_shadow_models(small: Path, count: int) -> None:
    with pytest.raises(InvalidValue, match=r"even number of shadow models|shadows must be a whole number"):
        attack(small, "lira", shadow_models=count)


def test_a_regression_has_a_loss_and_no_logits(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(2, 40, 10)), random.normal(size=(2, 40))
    np.savez(tmp_path / "data.npz", x_train=x[0], y_train=y[0], x_test=x[1], y_test=y[1])
    folder = tmp_path / "run"
    run(
        tiny(data={"path": str(tmp_path / "data.npz")}, loss={"kind": "squared_error"}, privacy__batch_size=20),
        out=folder,
    )
    assert attack(folder, "threshold").classes == {}
    with pytest.raises(InvalidValue, match="a regression has none of: use threshold"):
        attack(folder, "logistic")
    with pytest.raises(InvalidValue, match="LiRA looks at logits"):
        attack(folder, "lira")


def test_shadow_models_are_for_completed_runs(small: Path, tmp_path: Path) -> None:
    other = tmp_path / "run"
    other.mkdir()
    for name in ("recipe.toml", "model.safetensors", "budget.json"):
        (other / name).write_bytes((small / name).read_bytes())
    facts = json.loads((small / "run.json").read_text()) | {"status": "interrupted"}
    (other / "run.json").write_text(json.dumps(facts))
    with pytest.raises(InvalidValue, match="is not completed, and shadow models would train longer"):
        attack(other, "lira")
    assert attack(other, "threshold").auc.value > 0


def test_an_attack_has_a_name(small: Path) -> None:
    with pytest.raises(InvalidValue, match="an attack is logistic, threshold or lira, got 'magic'"):
        attack(small, "magic")
