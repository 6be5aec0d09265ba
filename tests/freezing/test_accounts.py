"""What a freezer costs: whatever it released is in every account of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, StackDataset, Subset, TensorDataset
from typer.testing import CliRunner

import hoarfrost
from hoarfrost import audit, budget
from hoarfrost import checkpoint as checkpoints
from hoarfrost.cli import app
from hoarfrost.data import Augmented
from hoarfrost.errors import BudgetSpent, InvalidValue, NotPrivate
from hoarfrost.freezing import Freezer, Layers, Live, Pruned, RunInfo
from hoarfrost.query import Query
from hoarfrost.recipes.loading import to_toml
from hoarfrost.sampling.overlap import shares_data
from hoarfrost.train import read_recipe, run
from tests.support.freezing import PLAN, Selecting, data, ledger, make, net, step

SELECTION = budget.Gaussian(noise_multiplier=2.0)


def peeking() -> Pruned:
    return Pruned(0.5, net(), private=False)


OTHER = {name: torch.randn_like(value) for name, value in net().state_dict().items()}


def plan() -> budget.Gaussian:
    return budget.Gaussian(noise_multiplier=3.0, sample_rate=0.5, steps=4)


def released(private: Any) -> tuple[Any, ...]:
    """In addition to the steps."""
    return tuple(private.account.releases.values())


# What it released is accounted for.


def test_noise_is_calibrated_for_what_the_freezer_leaves() -> None:
    alone = make(net(), sample_rate=0.5, steps=4, noise_multiplier=None, epsilon=3.0)
    private = make(net(), freeze=Selecting(), sample_rate=0.5, steps=4, noise_multiplier=None, epsilon=3.0)
    assert private.noise_multiplier > 1.1 * alone.noise_multiplier
    for _ in range(4):
        step(private)
    assert 2.9 < private.epsilon() <= 3.0
    with pytest.raises(BudgetSpent, match="the other releases cost"):
        make(net(), freeze=Selecting(), sample_rate=0.5, steps=4, noise_multiplier=None, epsilon=1.0)


def test_what_a_freezer_released_is_in_the_ledger_once(tmp_path: Path) -> None:
    books = ledger(tmp_path)
    private = make(net(), freeze=Selecting(), ledger=books.path, run="first", **PLAN)
    step(private)
    assert budget.Ledger(books.path).epsilon() == pytest.approx(private.epsilon(), rel=1e-6)
    checkpoints.save(tmp_path / "a.safetensors", private)

    again = make(net(), freeze=Selecting(), ledger=books.path, run="first", **PLAN)
    checkpoints.Checkpoint.read(tmp_path / "a.safetensors").restore(again)
    assert again.events() == private.events()
    step(again)
    assert released(again) == (SELECTION,)
    paid = [entry for entry in budget.Ledger(books.path).entries if entry.owner is not None and entry.reserved]
    assert len(paid) == 1


def test_room_is_kept_for_a_release_until_it_is_made(tmp_path: Path) -> None:
    """Nobody else can spend what it needs; what a restored run does not need is given back."""
    books = ledger(tmp_path)
    private = make(net(), freeze=Selecting(step=2), ledger=books.path, run="first", **PLAN)
    held = budget.Ledger(books.path).held()
    assert SELECTION in held
    for _ in range(2):
        step(private)
    assert released(private) == ()
    step(private)
    assert released(private) == (SELECTION,)
    assert SELECTION not in budget.Ledger(books.path).held()
    checkpoints.save(tmp_path / "a.safetensors", private)
    again = make(net(), freeze=Selecting(step=2), ledger=books.path, run="first", **PLAN)
    assert SELECTION in budget.Ledger(books.path).held()
    checkpoints.Checkpoint.read(tmp_path / "a.safetensors").restore(again)
    assert SELECTION not in budget.Ledger(books.path).held()


def test_a_freezer_is_charged_before_it_looks(tmp_path: Path) -> None:
    books = ledger(tmp_path)
    charged: list[int] = []

    class Watching(Selecting):
        def prepare(self, number: int, query: Query, info: RunInfo) -> None:
            entries = budget.Ledger(books.path).entries
            charged.append(sum(entry.reserved for entry in entries if entry.owner is not None))
            raise RuntimeError("and it fails")

    private = make(net(), freeze=Watching(), ledger=books.path, run="first", **PLAN)
    for _ in range(2):  # each try is a look of its own
        with pytest.raises(RuntimeError):
            step(private)
    assert charged == [1, 2]
    assert released(private) == (SELECTION, SELECTION)
    assert private.charged == 0


def test_two_equal_releases_are_two(tmp_path: Path) -> None:
    books = ledger(tmp_path)
    private = make(net(), freeze=Selecting() & Selecting(), ledger=books.path, run="first", **PLAN)
    step(private)
    checkpoints.save(tmp_path / "a.safetensors", private)
    for later, times in ((None, 2), (Selecting() & Selecting(), 2), (Selecting(), 3)):  # another one: another release
        again = make(net(), freeze=later, **PLAN)
        for _ in range(2):
            checkpoints.Checkpoint.read(tmp_path / "a.safetensors").restore(again)
        step(again)
        assert released(again) == (SELECTION,) * times
    assert budget.Ledger(books.path).epsilon() == pytest.approx(private.epsilon(), rel=1e-6)


def test_a_release_that_was_admitted_and_not_reserved_was_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    books = ledger(tmp_path)
    private = make(net(), freeze=Selecting(), ledger=books.path, run="first", **PLAN)
    with monkeypatch.context() as patch:
        patch.setattr(budget.Allowance, "reserve", lambda self, most=None: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            step(private)
    again = make(net(), freeze=Selecting(), ledger=books.path, run="first", **PLAN)
    step(again)
    assert released(again) == (SELECTION,)
    assert len(budget.Ledger(books.path).entries) == 2  # what was held before the crash is used
    assert budget.Ledger(books.path).epsilon() == pytest.approx(again.epsilon(), rel=1e-6)


def test_what_only_the_ledger_knows_is_not_refunded(tmp_path: Path) -> None:
    books = ledger(tmp_path)
    private = make(net(), ledger=books.path, run="first", **PLAN)
    step(private)
    checkpoints.save(tmp_path / "a.safetensors", private)
    step(make(net(), freeze=Selecting(), ledger=books.path, run="first", **PLAN))  # and it crashed
    again = make(net(), ledger=books.path, run="first", **PLAN)
    checkpoints.Checkpoint.read(tmp_path / "a.safetensors").restore(again)
    assert again.epsilon() == pytest.approx(budget.Ledger(books.path).epsilon(), rel=1e-6)
    assert released(again) == (SELECTION,)


def test_a_calibrated_run_keeps_to_its_epsilon_whatever_freezers_released_before(tmp_path: Path) -> None:
    """By the checkpoint, or by the ledger alone."""
    settings = {**PLAN, "noise_multiplier": None, "epsilon": 3.0}
    first = make(net(), freeze=Selecting(), **PLAN)
    step(first)
    checkpoints.save(tmp_path / "a.safetensors", first)
    later = make(net(), **settings)
    checkpoints.Checkpoint.read(tmp_path / "a.safetensors").restore(later)
    assert later.steps == 2  # of 4, one of which was taken before
    step(later)
    assert later.epsilon() <= 3.0

    books = ledger(tmp_path)
    stated = make(net(), ledger=books.path, run="mine", **PLAN | {"noise_multiplier": later.noise_multiplier})
    with pytest.raises(KeyboardInterrupt), stated.account.release(SELECTION, "a selection"):
        raise KeyboardInterrupt  # and it crashed
    again = make(net(), ledger=books.path, run="mine", **settings)
    assert released(again) == (SELECTION,)
    for _ in range(again.steps):
        step(again)
    assert 0 < again.steps < 4
    assert again.epsilon() <= 3.0


def test_a_release_that_was_not_planned_is_refused_where_it_exceeds_the_epsilon() -> None:
    private = make(net(), **{**PLAN, "noise_multiplier": None, "epsilon": 3.0})
    for noise in (0.2, 0.0):
        event = budget.Gaussian(noise_multiplier=noise)
        with pytest.raises(BudgetSpent, match="above the 3"), private.account.release(event, "too much"):
            pytest.fail("it was let through")
    with private.account.release(SELECTION, "a selection"):
        pass
    assert 0 < private.steps < 4  # it costs steps instead
    for _ in range(private.steps):
        step(private)
    assert private.epsilon() <= 3.0


def test_releases_may_be_told_one_by_one(tmp_path: Path) -> None:
    class Telling(Selecting):
        def releases(self, info: RunInfo) -> Any:
            yield from super().releases(info)

    private = make(net(), freeze=Telling(), ledger=ledger(tmp_path).path, **PLAN)
    step(private)
    assert released(private) == (SELECTION,)
    assert budget.Ledger(tmp_path / "ledger.jsonl").epsilon() == pytest.approx(private.epsilon(), rel=1e-6)


def test_what_was_never_released_costs_nothing(tmp_path: Path) -> None:
    class Idle(Selecting):
        def live(self, step: int, info: RunInfo) -> Live:
            return dict.fromkeys(info.shapes, True)

    idle = Idle(budget.Gaussian(noise_multiplier=1.0, steps=0))
    private = make(net(), freeze=idle, ledger=ledger(tmp_path).path, **PLAN)
    step(private)
    assert len(budget.Ledger(tmp_path / "ledger.jsonl").entries) == 1


def test_a_freezer_that_declares_a_release_must_make_it() -> None:
    class Promising(Freezer):
        def live(self, step: int, info: RunInfo) -> Live:
            return dict.fromkeys(info.shapes, True)

        def releases(self, info: RunInfo) -> tuple[budget.PlannedRelease, ...]:
            return (budget.PlannedRelease(event=SELECTION, what="nothing"),)

    with pytest.raises(InvalidValue, match="has no prepare"):
        step(make(net(), freeze=Promising(), **PLAN))


def test_an_allowance_of_somebody_else_stays_open(tmp_path: Path) -> None:
    books = ledger(tmp_path, epsilon=1.5)
    allowance = books.admit(plan(), run="first")
    with pytest.raises(BudgetSpent):
        make(net(), freeze=Selecting(), ledger=allowance, **PLAN)
    assert not allowance.entry.closed


def test_a_ledger_refuses_a_run_whose_freezer_it_cannot_pay_for(tmp_path: Path) -> None:
    books = ledger(tmp_path, epsilon=1.0)
    for freezer in (Selecting(), Pruned(0.5, OTHER, private=False, rewind=False)):
        model = net()
        with pytest.raises(BudgetSpent):
            make(model, freeze=freezer, ledger=books.path, **PLAN)
        assert budget.Ledger(books.path).epsilon_with_held() == 0  # nothing is held back from others
        for name, weights in net().state_dict().items():
            assert torch.equal(model.state_dict()[name], weights)  # and the model is as it was
        make(model, **PLAN)


def test_steps_within_an_epsilon_count_what_the_freezer_released() -> None:
    freezer = Layers(first=1, epsilon=4.0)
    many = {"sample_rate": 0.5, "steps": 60, "noise_multiplier": 3.0}
    alone, with_release = make(net(), freeze=freezer, **many), make(net(), freeze=freezer & Selecting(), **many)
    begins = [freezer.begins(private.optimizer.controller.info) for private in (alone, with_release)]
    assert 0 < begins[1] < begins[0]


# What was not private stays so, wherever an epsilon would stand.


@pytest.mark.parametrize("later", [None, Pruned(0.5, net()), "the same"])
def test_a_restored_run_does_not_become_private(tmp_path: Path, later: Any) -> None:
    private = make(net(), freeze=peeking(), **PLAN)
    step(private)
    checkpoints.save(tmp_path / "a.safetensors", private)
    again = make(net(), freeze=peeking() if later == "the same" else later, **PLAN)
    checkpoints.Checkpoint.read(tmp_path / "a.safetensors").restore(again)
    assert again.epsilon() == float("inf")
    assert "not private (the pruning mask" in str(again.statement())
    assert len(again.events()) == 2  # the steps, and the mask


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_place_says_that_a_run_is_not_private(tmp_path: Path) -> None:
    changes = ["freeze.kind=pruned", "freeze.keep=0.5", "freeze.public=digits", "freeze.private=false"]
    recipe = read_recipe("digits", [*changes, "freeze.epochs=1", "privacy.epochs=1"])
    folder = tmp_path / "run"
    outcome = run(recipe, out=folder)
    assert "not private" in outcome.summary()
    assert "not private" in (folder / "budget.txt").read_text()
    for name, key in (("budget.json", "private"), ("run.json", "private")):
        assert json.loads((folder / name).read_text())[key] is False
    rows = [json.loads(row) for row in (folder / "metrics.jsonl").read_text().splitlines()]
    assert rows
    assert all(row["epsilon"] is None and row["private"] is False for row in rows)

    shown = CliRunner().invoke(app, ["ledger", "show", str(folder / "ledger.jsonl")])
    assert "not private" in shown.output
    assert "epsilon 3" not in shown.output
    info = CliRunner().invoke(app, ["ledger", "show", str(folder / "ledger.jsonl"), "--json"])
    assert json.loads(info.output)["private"] is False

    for subject in (folder, tmp_path / "recipe.toml"):
        (tmp_path / "recipe.toml").write_text(to_toml(recipe))
        audited = CliRunner().invoke(app, ["audit", str(subject)])
        assert audited.exit_code == 0, audited.output
        assert "not private" in audited.output
    assert audit.ledger(folder).stated_epsilon is None


# Private data is not taken for public.


class Holding(Dataset[Any]):
    def __init__(self, kept: Any) -> None:
        self.kept = kept

    def __len__(self) -> int:
        return len(self.kept)


class Repeated(Dataset[Any]):
    """Longer than what it holds."""

    def __init__(self, kept: Any) -> None:
        self.kept = kept

    def __len__(self) -> int:
        return 2 * len(self.kept)


def test_parts_of_the_private_data_are_recognised() -> None:
    own, other = data(), data()
    images = TensorDataset(torch.rand(5, 1, 8, 8), torch.zeros(5, dtype=torch.long))
    assert shares_data(Augmented(images, shift=1), images)
    same = [own, DataLoader(own), Subset(own, [3]), Subset(Subset(own, [3, 5]), [1]), TensorDataset(*own.tensors)]
    same += [ConcatDataset([other, own]), TensorDataset(own.tensors[0][4:]), Holding(own), Holding([own])]
    same += [Holding(Subset(own, [2])), StackDataset(own, other)]
    same += [Subset(Repeated(own), [17])]
    assert not shares_data([1, 2, 3], own)
    for public in same:
        assert shares_data(public, own)
        assert shares_data(own, public)
        assert not shares_data(public, data())
    assert not shares_data(Subset(own, range(6)), Subset(own, range(6, 12)))
    assert not shares_data(TensorDataset(own.tensors[0][:6]), TensorDataset(own.tensors[0][6:]))
    freezer, model = hoarfrost.freeze.prune_from(net(), Subset(own, range(3)), keep=0.5, epochs=1), net()
    plan = {"sample_rate": 1.0, "noise_multiplier": 1.0, "delta": 1e-5}
    with pytest.raises(NotPrivate, match="or from a part of it"):
        hoarfrost.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), own, freeze=freezer, **plan)


def test_whether_a_reference_is_private_is_said_clearly() -> None:
    with pytest.raises(InvalidValue, match="private must be True or False"):
        Pruned(0.5, net(), private="no")  # type: ignore[arg-type]
