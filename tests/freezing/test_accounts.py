"""What a freezer costs: whatever it released is in every account of the run, and what it cannot do is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, StackDataset, Subset, TensorDataset
from typer.testing import CliRunner

import hoarfrost
from hoarfrost import audit, budget
from hoarfrost.cli import app
from hoarfrost.data import Augmented
from hoarfrost.errors import BudgetSpent, HoarfrostError, InvalidValue, NotPrivate
from hoarfrost.freezing import Channels, Facts, Freezer, Largest, Layers, Live, Pruned, Random, RandomTensors, Ranked
from hoarfrost.freezing.base import Both
from hoarfrost.sampling.overlap import shares_data
from hoarfrost.train import checkpoint as checkpoints
from hoarfrost.train import read_recipe, run
from hoarfrost.train.prepare import prepare
from hoarfrost.train.reading import to_toml

from .test_steps import data, make, net, step

SELECTION = budget.Gaussian(noise_multiplier=2.0)


class Selecting(Freezer):
    """As if it had looked at the data once, with noise."""

    def live(self, step: int, facts: Facts) -> Live:
        return {name: name != "0.weight" for name in facts.shapes}

    def events(self) -> tuple[budget.Gaussian | budget.Unprotected, ...]:
        return (SELECTION,)


def peeking() -> Pruned:
    return Pruned(0.5, net(), private=False)


def ledger(folder: Path, epsilon: float | None = None) -> budget.Ledger:
    return budget.Ledger.create(folder / "ledger.jsonl", epsilon=epsilon, delta=1e-5)


PLAN = {"sample_rate": 0.5, "steps": 4, "noise_multiplier": 3.0}


NAN = {name: torch.full_like(value, torch.nan) for name, value in net().state_dict().items()}
OTHER = {name: torch.randn_like(value) for name, value in net().state_dict().items()}


def plan() -> budget.Gaussian:
    return budget.Gaussian(noise_multiplier=3.0, sample_rate=0.5, steps=4)


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
    assert len(budget.Ledger(books.path).entries) == 2
    assert again.events() == private.events()


def test_two_equal_releases_are_two(tmp_path: Path) -> None:
    books = ledger(tmp_path)
    private = make(net(), freeze=Selecting() & Selecting(), ledger=books.path, run="first", **PLAN)
    step(private)
    checkpoints.save(tmp_path / "a.safetensors", private)
    for later, times in ((None, 2), (Selecting() & Selecting(), 2), (Selecting(), 3)):  # another one: another release
        again = make(net(), freeze=later, **PLAN)
        for _ in range(2):
            checkpoints.Checkpoint.read(tmp_path / "a.safetensors").restore(again)
        assert again.freezer_events() == (SELECTION,) * times
    assert budget.Ledger(books.path).epsilon() == pytest.approx(private.epsilon(), rel=1e-6)


def test_a_release_that_was_admitted_and_not_reserved_is_paid_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    books, reserve = ledger(tmp_path), budget.Allowance.reserve
    with monkeypatch.context() as patch:
        patch.setattr(budget.Allowance, "reserve", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            make(net(), freeze=Selecting(), ledger=books.admit(plan(), run="first"), **PLAN)
    assert budget.Allowance.reserve is reserve
    private = make(net(), freeze=Selecting(), ledger=books.path, run="first", **PLAN)
    step(private)
    assert budget.Ledger(books.path).epsilon() == pytest.approx(private.epsilon(), rel=1e-6)


def test_what_only_the_ledger_knows_is_not_refunded(tmp_path: Path) -> None:
    books = ledger(tmp_path)
    private = make(net(), ledger=books.path, run="first", **PLAN)
    step(private)
    checkpoints.save(tmp_path / "a.safetensors", private)
    make(net(), freeze=Selecting(), ledger=books.path, run="first", **PLAN)  # and it crashed
    again = make(net(), ledger=books.path, run="first", **PLAN)
    checkpoints.Checkpoint.read(tmp_path / "a.safetensors").restore(again)
    assert again.epsilon() == pytest.approx(budget.Ledger(books.path).epsilon(), rel=1e-6)
    assert again.freezer_events() == (SELECTION,)


def test_events_may_be_told_one_by_one(tmp_path: Path) -> None:
    class Telling(Selecting):
        def events(self) -> Any:
            yield SELECTION

    private = make(net(), freeze=Telling(), ledger=ledger(tmp_path).path, **PLAN)
    step(private)
    assert private.freezer_events() == (SELECTION,)
    assert budget.Ledger(tmp_path / "ledger.jsonl").epsilon() == pytest.approx(private.epsilon(), rel=1e-6)


def test_what_was_never_released_costs_nothing(tmp_path: Path) -> None:
    class Idle(Selecting):
        def events(self) -> tuple[budget.Gaussian | budget.Unprotected, ...]:
            return (budget.Gaussian(noise_multiplier=1.0, steps=0),)

    make(net(), freeze=Idle(), ledger=ledger(tmp_path).path, **PLAN)
    assert len(budget.Ledger(tmp_path / "ledger.jsonl").entries) == 1


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
    alone, beside = make(net(), freeze=freezer, **many), make(net(), freeze=freezer & Selecting(), **many)
    begins = [freezer.begins(private.optimizer.switch.facts) for private in (alone, beside)]
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
    assert len(again.freezer_events()) == 1


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
    assert all(row["epsilon"] is None and row["private"] is False for row in rows)

    shown = CliRunner().invoke(app, ["ledger", "show", str(folder / "ledger.jsonl")])
    assert "not private" in shown.output
    assert "epsilon 3" not in shown.output
    facts = CliRunner().invoke(app, ["ledger", "show", str(folder / "ledger.jsonl"), "--json"])
    assert json.loads(facts.output)["private"] is False

    for subject in (folder, tmp_path / "recipe.toml"):
        (tmp_path / "recipe.toml").write_text(to_toml(recipe))
        audited = CliRunner().invoke(app, ["audit", str(subject)])
        assert audited.exit_code == 0, audited.output
        assert "not private" in audited.output
    assert audit.accounts.books(folder).stated_epsilon is None


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


# A freezer is for one run.


def test_a_freezer_that_was_used_before_begins_anew() -> None:
    freezer = Ranked(0.5)
    for _ in range(2):
        private = make(net(), freeze=freezer, **PLAN)
        switch = private.optimizer.switch
        assert switch.freezer.state().keys() == {"epoch"}
        assert all(live is True for live in switch.freezer.live(3, switch.facts).values())
        for _ in range(4):
            step(private)
        assert len(switch.freezer.state()) > 1


def test_two_runs_do_not_share_what_a_freezer_keeps() -> None:
    freezer, small = Largest(0.5) & Random(0.0), net()
    with torch.no_grad():
        small[0].weight[:2] *= 1e-6
    first, second = make(net(), freeze=freezer, **PLAN), make(small, freeze=freezer, **PLAN)
    for private in (first, second):
        step(private)
    masks = [private.optimizer.switch.masks[private.model[0].weight].mask for private in (first, second)]
    assert masks[0][:2].any()
    assert not masks[1][:2].any()


# What is asked of the freezer, and when.


class Toggled(Freezer):
    """Rests when somebody says so."""

    def __init__(self) -> None:
        self.mask = torch.ones(4, 1, 3, 3) > 0
        self.asked = 0

    def live(self, step: int, facts: Facts) -> Live:
        self.asked += 1
        return dict.fromkeys(facts.shapes, True) | {"0.weight": self.mask}


def test_one_of_your_own_may_change_its_mind_between_backward_and_step() -> None:
    freezer = Toggled()
    private = make(net(), freeze=freezer, noise_multiplier=1.0, sample_rate=1.0, steps=3)
    before = private.model[0].weight.clone()
    for x, y in private.loader:
        F.cross_entropy(private.model(x), y).backward()
        freezer.mask[:2] = False  # in place
        private.optimizer.step()
        break
    assert torch.equal(private.model[0].weight[:2], before[:2])
    assert (private.model[0].weight[2:] != before[2:]).all()


def test_what_is_said_twice_is_worked_out_once() -> None:
    private = make(net(), freeze=Toggled(), noise_multiplier=1.0, sample_rate=1.0, steps=3)
    private.optimizer.switch.freezer.mask[0] = False
    step(private)
    part = private.optimizer.switch.masks[private.model[0].weight]
    step(private)
    assert private.optimizer.switch.masks[private.model[0].weight] is part
    assert private.optimizer.switch.freezer.asked >= 4


def test_an_epsilon_is_translated_to_a_step_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = budget.steps
    monkeypatch.setattr(budget, "steps", lambda *args, **named: calls.append(args) or real(*args, **named))
    private = make(net(), freeze=Layers(first=1, epsilon=1.0), max_physical_batch=2, **PLAN)
    for _ in range(4):
        step(private)
    assert 1 <= len(calls) <= 3  # before the run, and when the order of the layers became known


class Backwards(nn.Module):
    """Uses its layers in the opposite order of that in which it lists them."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first = nn.Linear(4, 3), nn.Linear(36, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x.flatten(1)).tanh())


def test_layers_wait_for_the_order_in_which_they_are_used() -> None:
    model = Backwards()
    private = make(model, freeze=Layers(first=1, step=0), sample_rate=1e-9, noise_multiplier=1.0, steps=2)
    for _ in private.loader:
        with pytest.raises(InvalidValue, match="before the model has run"):
            private.optimizer.step()
        break
    model = Backwards()
    before = model.first.weight.clone()
    private = make(model, freeze=Layers(first=1, step=0), sample_rate=1e-9, noise_multiplier=1.0, steps=2)
    step(private)  # runs the model on an empty batch
    assert torch.equal(model.first.weight, before)


def test_masks_do_not_depend_on_the_optimizers_groups() -> None:
    found = []
    for reverse in (False, True):
        model = net()
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(parameters[::-1] if reverse else parameters, lr=0.1)
        private = make(model, optimizer, freeze=Random(0.5), **PLAN)
        step(private)
        found.append({name: private.optimizer.switch.masks[p].mask for name, p in model.named_parameters()})
    for name, mask in found[0].items():
        assert torch.equal(mask, found[1][name])


def test_ranked_and_random_keep_as_many() -> None:
    facts = Facts({"weight": torch.Size([15])}, (("weight",),), 100, 0.1, int)
    ranked = Ranked(0.9)
    ranked.observe(9, {"weight": torch.randn(15)}, facts)
    assert ranked.live(10, facts)["weight"].sum() == Random(0.9).live(10, facts)["weight"].sum() == 2


# What cannot be is refused, and leaves nothing behind.


class Saying(Freezer):
    def __init__(self, said: Any) -> None:
        self.said = said

    def live(self, step: int, facts: Facts) -> Any:
        return self.said


REFUSED: dict[str, tuple[Any, str]] = {
    "a word": (lambda: "random", "a freezer is wanted"),
    "a class": (lambda: Layers, "a freezer is wanted"),
    "with nothing": (lambda: Layers() & None, "a freezer is wanted"),  # type: ignore[operator]
    "no layer in so small a share": (lambda: Layers(first=0.1, step=0), "freezes nothing"),
    "infinitely many": (lambda: Layers(first=float("inf")), "first must be finite"),
    "a share above 1": (lambda: Layers(first=1.7), "first is a number of layers"),
    "no names": (lambda: Layers(names=[]), "names takes patterns"),
    "a number for a name": (lambda: Layers(names=[3]), "names takes patterns"),
    "everything trains": (lambda: Layers(train=["*"], step=0), "freezes nothing"),
    "after the run": (lambda: Layers(step=4), "never"),
    "in an epoch after the run": (lambda: Layers(epoch=7), "never"),
    "when more is spent than ever will be": (lambda: Layers(epsilon=500.0), "never"),
    "a fraction that is none": (lambda: Layers(fraction="a"), "fraction must be a number"),
    "both leave nothing": (lambda: Layers(names=["0", "3"], step=2) & Layers(names=["5"]), "in the last step"),
    "NaN": (lambda: Pruned(0.5, NAN), "not finite"),
    "no reference": (lambda: Pruned(0.5, None), "a model or a state dict"),  # type: ignore[arg-type]
    "too few": (lambda: Pruned(0.001, net()), "survives: keep more$"),
    "no tensor": (lambda: RandomTensors(0.05), r"RandomTensors\(share=0.05"),
    "a list": (lambda: Saying([True]), "by their names"),
    "nothing said": (lambda: Saying(None), "by their names"),
    "a mask that does not fit": (lambda: Saying({"0.weight": torch.ones(3) > 0}), "for 0.weight: .*got torch.bool of"),
    "a row that is not there": (lambda: Saying({"0.weight": Channels([7])}), "for 0.weight"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_in_words(case: str) -> None:
    wanted, words = REFUSED[case]
    with pytest.raises(InvalidValue, match=words):
        step(make(net(), freeze=wanted(), **PLAN))


def test_nothing_but_what_somebody_switched_off_is_live() -> None:
    model = net()
    model[5].requires_grad_(False)
    with pytest.raises(InvalidValue, match="nothing is live in step 0"):
        step(make(model, freeze=Layers(train=["5"], step=0), **PLAN))


def test_a_refused_freezer_leaves_the_model_and_the_ledger_as_they_were(tmp_path: Path) -> None:
    books, model = ledger(tmp_path), net()
    with pytest.raises(InvalidValue, match="nope"):
        make(model, freeze=Layers(names=["nope"]), ledger=books.path, **PLAN)
    assert budget.Ledger(books.path).entries == ()
    model(torch.randn(2, 1, 6, 6)).sum().backward()  # it trains as an ordinary model
    assert model[0].weight.grad is not None
    model.zero_grad()
    step(make(model, freeze=Layers(names=["0"], step=0), ledger=books.path, **PLAN))


def test_a_forward_that_somebody_had_put_there_comes_back() -> None:
    model = nn.Linear(36, 3)
    model.forward = other = lambda x: F.linear(x.flatten(1), model.weight, model.bias)  # type: ignore[method-assign]
    with pytest.raises(HoarfrostError):
        make(model, freeze=Layers(names=["nope"]), **PLAN)
    assert model.forward is other


def test_pruning_refuses_before_it_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim.SGD, "step", lambda *_: pytest.fail("it trained"))
    for wrong in ({"keep": 2.0}, {"keep": 0.5, "per": "x"}, {"keep": 0.5, "private": 1}):
        with pytest.raises(InvalidValue):
            hoarfrost.freeze.prune_from(net(), data(), **wrong)


def test_pruning_says_what_does_not_fit() -> None:
    for public in (
        TensorDataset(torch.randn(5, 1, 7, 7), torch.zeros(5, dtype=torch.long)),
        TensorDataset(torch.randn(5)),
    ):
        with pytest.raises(InvalidValue, match="cannot be trained on the public data set"):
            hoarfrost.freeze.prune_from(net(), public, keep=0.5, epochs=1)
    assert hoarfrost.freeze.prune_from(net(), DataLoader(data()), keep=0.5, epochs=1).public()[0].tensors


# Recipes.


def test_a_recipe_composes_freezers() -> None:
    changes = ["freeze.kind=layers", "freeze.step=3", "freeze.also.kind=random", "freeze.also.rate=0.5"]
    recipe = read_recipe("digits", changes)
    freezer = prepare(recipe, torch.device("cpu")).private.optimizer.switch.freezer
    assert isinstance(freezer, Both)
    assert repr(freezer) == repr(Layers(step=3) & Random(0.5))


def test_a_composed_recipe_can_be_written_and_read(tmp_path: Path) -> None:
    changes = ["freeze.kind=layers", "freeze.also.kind=random", "freeze.also.rate=0.5"]
    (tmp_path / "a.toml").write_text(to_toml(recipe := read_recipe("digits", changes)))
    assert read_recipe(tmp_path / "a.toml") == recipe
    with pytest.raises(InvalidValue, match=r"unknown key freeze.also.rat; did you mean rate\?"):
        read_recipe("digits", ["freeze.kind=layers", "freeze.also.kind=random", "freeze.also.rat=0.5"])


def test_a_recipe_prunes_by_weights_in_a_file(tmp_path: Path) -> None:
    plain = read_recipe("digits")
    model = prepare(plain, torch.device("cpu")).private.model
    save_file({name: torch.randn_like(value) for name, value in model.state_dict().items()}, tmp_path / "w.safetensors")
    changes = ["freeze.kind=pruned", "freeze.keep=0.25", f"freeze.reference={tmp_path}/w.safetensors"]
    run = prepare(read_recipe("digits", changes), torch.device("cpu"))
    pruned = [p for p in run.private.model.parameters() if p.dim() > 1]
    assert all(abs((p == 0).float().mean() - 0.75) < 0.01 for p in pruned)

    (tmp_path / "there").mkdir()
    text = to_toml(plain) + '[freeze]\nkind = "pruned"\nkeep = 0.5\nreference = "../w.safetensors"\n'
    (tmp_path / "there" / "a.toml").write_text(text)
    with pytest.raises(InvalidValue, match=r"freeze\.reference .* lies outside"):
        read_recipe(tmp_path / "there" / "a.toml")
    deeper = text.replace("[freeze]", '[freeze]\nkind = "layers"\n[freeze.also]\nkind = "layers"\n[freeze.also.also]')
    (tmp_path / "there" / "a.toml").write_text(deeper)
    with pytest.raises(InvalidValue, match=r"freeze\.also\.also\.reference .* lies outside"):
        read_recipe(tmp_path / "there" / "a.toml")
    both = ["freeze.kind=layers", "freeze.also.kind=pruned", "freeze.also.keep=0.5", "freeze.also.public=digits"]
    replaced = read_recipe("digits", [*both, "freeze.also.reference=w"])
    assert replaced.freeze.also.public is None
    begins = read_recipe("digits", ["freeze.kind=layers", "freeze.step=3", "freeze.epsilon=1"]).freeze
    assert (begins.step, begins.epsilon) == (None, 1.0)
    with pytest.raises(InvalidValue, match="either public or reference"):
        read_recipe("digits", ["freeze.kind=pruned", "freeze.keep=0.5"])
    (tmp_path / "w.safetensors").write_bytes(b"no weights")
    with pytest.raises(InvalidValue, match=r"cannot read freeze\.reference"):
        prepare(read_recipe("digits", changes), torch.device("cpu"))
