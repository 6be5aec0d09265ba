"""DP-FROST in a run: when it looks, what that costs, what it finds, and what it shows."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import Dataset, TensorDataset

import hoarfrost
from hoarfrost import budget
from hoarfrost.errors import BudgetSpent, InvalidValue
from hoarfrost.freezing import Chosen, Freezer, Frost, Layers, Param
from hoarfrost.query import Query
from hoarfrost.sampling import Poisson
from hoarfrost.testing import check_freezer

N, WIDTH = 240, 6


class Heads(nn.Module):
    """Four equal partitions beside the head; the loss depends on the second one most, and on the fourth not at all."""

    STRENGTH = (0.1, 5.0, 0.5, 0.0)

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in self.STRENGTH)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        pairs = zip(self.STRENGTH, self.parts, strict=True)
        return self.head(sum((strength * part(x).tanh() for strength, part in pairs), torch.zeros(())))


def data() -> TensorDataset:
    torch.manual_seed(5)
    x = torch.randn(N, WIDTH)
    return TensorDataset(x, (x[:, 0] > 0).long())


def loss(output: Tensor, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(output, batch[1])


FROST: dict[str, Any] = {"ratio": 0.4, "rounds": 2, "sample_rate": 0.2, "partitions": "module"}
PLAN: dict[str, Any] = {"batch_size": 24, "steps": 10, "epsilon": 6.0, "delta": 1e-4}

STATED: dict[str, Any] = {"epsilon": None, "noise_multiplier": 1.5}  # quicker: nothing to calibrate


def make(freeze: Freezer | None = None, dataset: Any = None, **options: Any) -> Any:
    torch.manual_seed(7)
    model = Heads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    given = PLAN | {"loss": loss, "freeze": freeze or Frost(**FROST)} | options
    return hoarfrost.make_private(model, optimizer, dataset or data(), **given)


def train(private: Any, until: int) -> None:
    while private.steps_taken < until:
        for batch in private.loader:
            private.optimizer.zero_grad()
            loss(private.model(batch[0]), batch).backward()
            private.optimizer.step()
            if private.steps_taken == until:
                return


def made(private: Any) -> int:
    """How many releases besides the steps."""
    return len(private.account.releases)


# When it looks.


def test_it_looks_before_training_and_not_inside_of_the_loop() -> None:
    private = make()
    scheduler = StepLR(private.optimizer, step_size=3)
    before = copy.deepcopy(private.model.state_dict())
    assert private.freezer.selection is None
    private.prepare()
    assert (made(private), private.steps_taken, private.charged, private.loader.steps_drawn) == (2, 0, 0, 0)
    assert all(torch.equal(before[name], value) for name, value in private.model.state_dict().items())
    assert private.freezer.selection.chosen == ("parts.1",)
    private.prepare()
    assert made(private) == 2  # nothing is due any more
    for batch in private.loader:
        private.optimizer.zero_grad()
        loss(private.model(batch[0]), batch).backward()
        private.optimizer.step()
        scheduler.step()
    assert made(private) == 2
    assert scheduler.last_epoch == private.steps_taken == 10
    moved = {name for name, value in private.model.state_dict().items() if not torch.equal(before[name], value)}
    assert moved == {"parts.1.weight", "parts.1.bias", "head.weight", "head.bias"}


def test_without_prepare_it_looks_when_the_first_batch_is_asked_for() -> None:
    private = make()
    train(private, 1)
    assert made(private) == 2
    assert private.freezer.selection.chosen == ("parts.1",)


def test_it_is_chosen_anew_during_the_run() -> None:
    private = make(Frost(**FROST, selections=3, noise=2.0), **STATED)
    assert [release.step for release in private.plan.releases] == [0, 0, 3, 3, 6, 6]
    private.prepare()
    for until, expected in ((3, 2), (4, 4), (6, 4), (7, 6)):
        train(private, until)
        assert made(private) == expected
    with pytest.raises(InvalidValue, match="spread over the run, which has 2"):
        make(Frost(**FROST, selections=3), steps=2)
    with pytest.raises(InvalidValue, match="which has no end"):
        make(Frost(**FROST, selections=3, noise=3.0), steps=None, epsilon=None, noise_multiplier=1.0)


def test_a_loss_of_its_own_and_a_loss_of_the_model() -> None:
    def of_one(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    private = make(Frost(**FROST, loss=of_one), loss=None)
    private.prepare()
    assert private.freezer.selection.chosen == ("parts.1",)
    with pytest.raises(InvalidValue, match="returns no loss of its own"):
        make(loss=None).prepare()

    class WithLoss(Heads):
        def forward(self, x: Tensor, labels: Tensor) -> Any:  # type: ignore[override]
            return {"loss": nn.functional.cross_entropy(super().forward(x), labels), "logits": None}

    class Named(Dataset[Any]):
        def __len__(self) -> int:
            return N

        def __getitem__(self, index: int) -> Any:
            x, y = data()[index]
            return {"x": x, "labels": y}

    model = WithLoss()
    run = hoarfrost.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), Named(), **PLAN, freeze=Frost(**FROST)
    )
    run.prepare()
    assert isinstance(run.freezer, Frost)
    assert run.freezer.selection is not None


# What it costs.


def test_the_split_of_the_budget() -> None:
    private = make(Frost(**FROST, budget=0.2))
    releases = [release.event for release in private.plan.releases]
    steps = private.plan.event(10)
    assert budget.epsilon(steps, 1e-4) == pytest.approx(0.8 * 6, rel=1e-3)
    assert 5.99 < budget.epsilon([steps, *releases], 1e-4) <= 6.0
    train(private, 10)
    assert 5.99 < private.epsilon() <= 6.0
    assert "2 steps at sampling rate 0.2" in str(private.statement())
    with pytest.raises(BudgetSpent):
        train(private, 11)


def test_a_split_that_is_found_and_noise_that_is_stated() -> None:
    private = make(Frost(**FROST, budget="auto"))
    assert private.noise_multiplier < make(Frost(**FROST, budget=0.2)).noise_multiplier
    train(private, 10)
    assert 5.99 < private.epsilon() <= 6.0
    with pytest.raises(InvalidValue, match=r"state its own noise \(Frost\(noise=...\)\), or give epsilon="):
        make(**STATED)
    private = make(Frost(**FROST, noise=2.0), **STATED)
    assert [release.event.noise_multiplier for release in private.plan.releases] == [2.0, 2.0]
    both = make(Frost(**FROST, noise=2.0))
    train(both, 10)
    assert 5.99 < both.epsilon() <= 6.0


def test_a_budget_that_is_too_small_is_seen_before_anything_is_trained() -> None:
    with pytest.warns(UserWarning, match="the choice will be close to random"):
        make(epsilon=0.05).prepare()
    with pytest.raises(BudgetSpent, match="are for the steps, and other releases spend that"):
        make(Frost(**FROST) & Frost(**FROST | {"head": ["head"]}, noise=0.3), epsilon=1.0)


def test_a_round_is_booked_before_it_looks_and_stays_booked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second round fails; what it cost stays charged, and the run ends a few steps short."""
    books = budget.Ledger.create(tmp_path / "ledger.jsonl", epsilon=None, delta=1e-4)
    private = make(ledger=books.path, run="first")
    with monkeypatch.context() as patch:
        patch.setattr(Query, "_noised", _failing_at(2))
        with pytest.raises(RuntimeError, match="power"):
            private.prepare(lambda: private.save(tmp_path / "between.safetensors"))
    paid = [entry for entry in budget.Ledger(books.path).entries if entry.owner is not None and entry.reserved]
    assert len(paid) == 2
    assert private.freezer.selection is None

    again = make(ledger=books.path, run="first")
    again.load(tmp_path / "between.safetensors")
    assert again.epsilon() == pytest.approx(private.epsilon())
    first = again.freezer.state()["0.0"]
    again.prepare()
    assert made(again) == 3  # one of them lost
    assert torch.equal(again.freezer.state()["0.0"], first)
    assert 0 < again.steps < 10
    train(again, again.steps)
    assert again.epsilon() <= 6.0
    assert budget.Ledger(books.path).epsilon() == pytest.approx(again.epsilon(), rel=1e-6)


def _failing_at(number: int) -> Any:
    noised, calls = Query._noised, iter(range(1, 100))

    def fails(self: Query, exact: Tensor, sensitivity: float) -> Tensor:
        if next(calls) == number:
            raise RuntimeError("power")
        return noised(self, exact, sensitivity)

    return fails


# What it keeps.


def test_a_run_that_goes_on_has_the_choice_and_does_not_look_again(tmp_path: Path) -> None:
    private = make()
    train(private, 4)
    private.save(tmp_path / "a.safetensors")
    again = make()
    again.load(tmp_path / "a.safetensors")
    assert again.freezer.live(4, again.info()) == private.freezer.live(4, private.info())
    assert again.freezer.selection == private.freezer.selection
    train(again, 10)
    assert made(again) == 2
    assert again.epsilon() <= 6.0
    other = make(Frost(**FROST | {"gap": 1.0}))  # with other settings it is another freezer
    other.load(tmp_path / "a.safetensors")
    other.prepare()
    assert made(other) == 4


def test_two_freezers_and_two_stages() -> None:
    private = make(Frost(**FROST) & Layers(names=["head.bias"], step=0))
    before = private.model.head.bias.detach().clone()
    private.prepare()
    train(private, 10)
    assert torch.equal(private.model.head.bias, before)
    assert made(private) == 2
    second = hoarfrost.make_private(
        private.model, torch.optim.SGD(private.model.parameters(), lr=0.1), data(), **PLAN, loss=loss,
        freeze=Frost(**FROST), after=private,
    )  # fmt: skip
    second.prepare()
    assert made(second) == 4
    train(second, 10)
    assert second.epsilon() > private.epsilon()
    assert second.account.stage_events() != second.events()


def test_a_choice_can_be_used_again_and_is_counted_once(tmp_path: Path) -> None:
    books = budget.Ledger.create(tmp_path / "ledger.jsonl", epsilon=8.0, delta=1e-4)
    first = make(ledger=books.path, run="choosing")
    first.prepare()
    path = tmp_path / "selection.json"
    first.freezer.selection.save(path, first.account.snapshot())
    first.account.close()
    spent = budget.Ledger(books.path).epsilon()
    assert spent == pytest.approx(first.epsilon(), rel=1e-6)

    for freezer in (Frost.from_file(str(path)), Chosen(str(path))):
        again = make(freezer)
        assert made(again) == 2
        assert again.epsilon() == pytest.approx(first.epsilon())  # before the first step
        assert again.noise_multiplier == pytest.approx(first.noise_multiplier, rel=2e-3)
        train(again, 10)
        assert 5.99 < again.epsilon() <= 6.0
        assert again.freezer.live(0, again.info()) == first.freezer.live(0, first.info())
    shared = make(Chosen(str(path)), ledger=books.path, run="training")
    assert budget.Ledger(books.path).epsilon() == pytest.approx(spent)  # it was paid for
    train(shared, 10)
    assert budget.Ledger(books.path).epsilon() == pytest.approx(shared.epsilon(), rel=1e-6)
    own = budget.Ledger.create(tmp_path / "other.jsonl", epsilon=None, delta=1e-4)
    make(Chosen(str(path)), ledger=own.path)
    assert budget.Ledger(own.path).epsilon() == pytest.approx(spent, rel=1e-6)  # this one did not know

    path.write_text(path.read_text().replace("parts.1.", "blocks.1."))
    with pytest.raises(InvalidValue, match="was chosen for another model"):
        make(Chosen(str(path)))
    for text in ("{}", "[]", "no", '{"format": "hoarfrost selection 1", "train": [], "spent": {}}'):
        path.write_text(text)
        with pytest.raises(InvalidValue, match="is no selection"):
            Chosen(str(path))


# What it sees, and what it shows.


class Counting(Dataset[Any]):
    def __init__(self) -> None:
        self.examples, self.read = data(), list[int]()

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        self.read.append(int(index))
        return self.examples[index]


def test_no_example_outside_of_its_samples_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[list[int]] = []
    draw = Poisson.draw

    def drawing(self: Poisson, *args: Any) -> Any:
        found = draw(self, *args)
        assert self.sample_rate == 0.2
        drawn.append(found.tolist())
        return found

    dataset = Counting()
    private = make(dataset=dataset)
    before = len(dataset.read)
    monkeypatch.setattr(Poisson, "draw", drawing)
    private.prepare()
    assert len(drawn) == 2
    assert dataset.read[before:] == [*drawn[0], *drawn[1]]
    assert before == 0


def test_selecting_partitions_leaves_no_trace_of_an_example_but_through_noise() -> None:
    """With the same noise and samples, what is found depends on the data through clipped sums alone."""
    seen: list[tuple[Tensor, float]] = []
    noised = Query._noised

    def watching(self: Query, exact: Tensor, sensitivity: float) -> Tensor:
        seen.append((exact.clone(), sensitivity))
        return noised(self, exact, sensitivity)

    private = make()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Query, "_noised", watching)
        private.prepare()
    state = private.freezer.state()
    for t, (exact, sensitivity) in enumerate(seen):
        released = state[f"0.{t}"]
        assert released.shape == exact.shape
        noise = private.plan.releases[t].event.noise_multiplier * sensitivity
        assert bool(((released - exact).abs() > 1e-9 * noise).all())
        assert float((released - exact).abs().max()) < 7 * noise
    table = str(private.freezer.selection)
    assert "parts.1" in table
    assert "always trained: head.weight, head.bias" in table


def test_a_model_whose_weights_were_not_loaded_is_told_of() -> None:
    class Config:
        name_or_path = ""

    class FromConfig(Heads):
        config = Config()
        base_model_prefix = "parts"

    model = FromConfig()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="does not say that its weights were loaded"):
        private = hoarfrost.make_private(model, optimizer, data(), **PLAN, freeze=Frost(**FROST))
    assert private.info().head == ("head.weight", "head.bias")
    assert private.info().pretrained is False


@pytest.mark.parametrize(("settings", "message"), [
    ({"rounds": 5}, r"rounds=5 are more than the 4 partitions"), ({"ratio": 0.0}, "ratio"), ({"gap": -1}, "gap"),
    ({"budget": 1.0}, "budget is a share"), ({"noise": 0.0}, "noise"), ({"rounds": 0}, "rounds"),
    ({"head": "head"}, "head takes a list"), ({"loss": 3}, "loss is a function"), ({"magnitude": "big"}, "magnitude"),
    ({"sample_rate": 1.5}, "sample_rate"), ({"selections": 0}, "selections"),
])  # fmt: skip
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        make(Frost(**FROST | settings))


def test_every_variant_finds_what_matters() -> None:
    for magnitude in ("clipped", "normalised", "absolute", "norms"):
        for settings in ({"rounds": 1}, {"order": 2}, {"clip": 0.01, "rounds": 1}):
            private = make(Frost(**FROST | settings | {"noise": 0.5}, magnitude=magnitude), **STATED)  # type: ignore[arg-type]
            private.prepare()
            assert private.freezer.selection.chosen == ("parts.1",), (magnitude, settings)


def test_it_keeps_the_contract_of_a_freezer() -> None:
    def of_one(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    frost = Frost(**FROST, noise=2.0, loss=of_one, selections=2, magnitude="norms")
    check_freezer(frost, models=[(Heads(), data())], steps=6)


def test_single_elements_are_chosen_by_param() -> None:
    """With hardly any noise those with the largest summed absolute gradients."""
    private = make(Param(0.3, noise=1e-4, sample_rate=1.0), **STATED)
    private.prepare()
    assert made(private) == 1
    live = private.freezer.live(0, private.info())
    assert live["head.weight"] is True
    chosen = torch.cat([mask.flatten() for name, mask in live.items() if name.startswith("parts")])
    assert int(chosen.sum()) == int(0.3 * 182) - 14

    torch.manual_seed(7)
    model, total = Heads(), torch.zeros(168, dtype=torch.float64)
    names = [name for name in private.info().shapes if name.startswith("parts")]
    named = dict(model.named_parameters())
    for x, y in zip(*data().tensors, strict=True):
        value = nn.functional.cross_entropy(model(x[None]), y[None])
        grads = torch.autograd.grad(value, [named[name] for name in names])
        flat = torch.cat([g.flatten() for g in grads]).abs().double()
        total += flat / flat.norm()
    assert torch.equal(chosen, total >= total.sort(descending=True).values[int(chosen.sum()) - 1])
    split = make(Param(0.3))
    assert budget.epsilon([split.plan.event(10), split.plan.releases[0].event], 1e-4) <= 6.0
    check_freezer(Param(0.3, noise=1.0, loss=lambda m, b: loss(m(b[0]), b)), models=[(Heads(), data())], steps=6)
    with pytest.raises(InvalidValue, match="leaves nothing to choose"):
        make(Param(0.05))
