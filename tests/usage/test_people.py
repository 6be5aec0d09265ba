"""Programs with person=: what becomes of rows on their way to the model, of losses, of empty batches and of stages."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset, default_collate

import hoarfrost
from hoarfrost.errors import InvalidValue, NotPrivate
from tests import oracle
from tests.usage.small import small, train, weights

SIZES = [1, 3, 2, 1, 3, 3, 2]
OWNERS = [who for who, rows in enumerate(SIZES) for _ in range(rows)]
CLIP = 0.98


def rows() -> TensorDataset:
    torch.manual_seed(6)
    return TensorDataset(torch.randn(len(OWNERS), 4), torch.randint(3, (len(OWNERS),)))


def private(model: nn.Module, data: Any = None, **options: Any) -> hoarfrost.Private:
    """Everybody brings all their rows to every step, without noise, unless ``options`` say otherwise."""
    settings: dict[str, Any] = {
        "sample_rate": 1.0, "steps": 1, "noise_multiplier": 0.0, "delta": 1e-5, "clip": CLIP, "person": OWNERS,
        "per_person": 3,
    }  # fmt: skip
    return hoarfrost.make_private(
        model, torch.optim.SGD(model.parameters(), lr=1.0), rows() if data is None else data, **(settings | options)
    )


def assert_a_loop_over_people(model: nn.Module, before: nn.Module, losses: Callable[[nn.Module, Any], Tensor]) -> None:
    """One step of the private model against one over each person's rows, of whose losses the mean is taken."""
    found = oracle.people(before, rows().tensors, lambda m, batch: losses(m, batch).sum(), SIZES)
    want = oracle.clipped_sum(found, CLIP)
    assert 1 < sum(oracle.norm(gradient) > CLIP for gradient in found) < len(SIZES) - 1
    for name, p in before.named_parameters():
        torch.testing.assert_close(p - model.get_parameter(name), want[name] / len(SIZES), rtol=1e-4, atol=1e-6)


def cross_entropies(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


# Rows on their way to the model.


def sorted_by(key: Callable[[Any], float]) -> DataLoader[Any]:
    return DataLoader(rows(), batch_size=20, collate_fn=lambda found: default_collate(sorted(found, key=key)))


def first_number(row: Any) -> float:
    return float(row[0][0])


def later_ones_first(row: Any) -> float:
    """Rows of which there are as many as people have the same one: what sorts shows in all rows alone."""
    return -float(any(torch.equal(row[0], x) for x in rows().tensors[0][len(SIZES) :]))


@pytest.mark.parametrize("key", [first_number, later_ones_first])
@pytest.mark.parametrize("options", [{}, {"views": 2}], ids=["", "views"])
def test_a_collate_function_that_sorts_is_refused(key: Callable[[Any], float], options: dict[str, int]) -> None:
    run = private(small(), sorted_by(key), **options)
    with pytest.raises(NotPrivate, match=r"changes the order of examples, as sorting does: with views= or person="):
        next(iter(run.loader))


def test_where_everybody_brings_one_row_the_order_is_free() -> None:
    train(private(small(), sorted_by(first_number), per_person=1))


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t[1:],
        lambda t: t[:-1],
        lambda t: t[:4],
        lambda t: torch.cat([t, t[:1]]),
        lambda t: t.repeat(2, *[1] * (t.dim() - 1)),
    ],
    ids=["without the first", "without the last", "whole people", "one twice", "all twice"],
)
def test_other_rows_than_were_drawn_are_refused(change: Callable[[Tensor], Tensor]) -> None:
    run = private(small())
    for x, y in run.loader:
        with pytest.raises(NotPrivate, match="whose its rows are cannot be known"):
            F.cross_entropy(run.model(change(x)), change(y)).backward()


def test_a_collate_function_that_drops_rows_is_refused() -> None:
    run = private(small(), DataLoader(rows(), batch_size=20, collate_fn=lambda found: default_collate(found[:-2])))
    with pytest.raises(NotPrivate, match=r"collate function .* drops rows .*person="):
        next(iter(run.loader))


def test_rows_that_the_loop_leaves_out_are_refused() -> None:
    run = private(small())
    for x, y in run.loader:
        with pytest.raises(NotPrivate, match=r"a part of a batch"):
            F.cross_entropy(run.model(x[:-2]), y[:-2]).backward()


def test_a_part_of_the_model_is_refused() -> None:
    """Right after a run of the whole one on as many rows: what it knew of them says nothing of these."""
    run = private(small())
    layers = list(run.model.children())
    for x, _ in run.loader:
        run.model(x)
        with pytest.raises(NotPrivate, match="a part of a batch, or of the model"):
            layers[0](x.flip(0)).sum().backward()


# Losses.


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_one_loss_for_each_row(reduction: Any) -> None:
    model = small()
    before = copy.deepcopy(model)
    run = private(model, loss_reduction=reduction)
    for batch in run.loader:
        run.optimizer.backward(cross_entropies(model, batch))
        run.optimizer.step()
    assert_a_loop_over_people(model, before, cross_entropies)


def test_another_number_of_losses_is_refused() -> None:
    run = private(small())
    for batch in run.loader:
        for wrong in (lambda t: t[: len(SIZES)], lambda t: t[1:]):
            with pytest.raises(NotPrivate, match="another number of losses than the model had rows"):
                run.optimizer.backward(wrong(cross_entropies(run.model, batch)))
        run.optimizer.backward(cross_entropies(run.model, batch))
        run.optimizer.step()


def test_losses_in_which_people_meet_are_refused() -> None:
    run = private(small())
    for x, y in run.loader:
        output = run.model(x)
        with pytest.raises(NotPrivate, match="an example's loss depends on other examples"):
            run.optimizer.backward(F.cross_entropy(output - output.mean(0), y, reduction="none"))


def test_a_mean_over_rows_is_no_reason_to_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(private(small(), sample_rate=0.5, steps=8, seed=1))


def test_a_loss_is_looked_at_row_by_row() -> None:
    def right(output: Tensor, batch: Any) -> Tensor:
        return F.cross_entropy(output, batch[1])

    def weighted(output: Tensor, batch: Any) -> Tensor:
        return F.cross_entropy(output, batch[1], weight=torch.tensor([1.0, 50.0, 1.0]))

    train(private(small(), loss=right))
    with pytest.raises(NotPrivate, match="the loss: leaving out one example moves what the others contribute"):
        next(iter(private(small(), loss=weighted).loader))


# What the model does.


class Scaled(nn.Module):
    """Parameters of its own, of which every person gets a copy."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.scale, self.head = nn.Parameter(torch.rand(4) + 0.5), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x * self.scale)


class Repeated(Scaled):
    """Run again by a checkpoint as a whole, from within: parameters of its own are not followed then."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scaled, self.own = Scaled(), nn.Sequential(nn.Linear(3, 4), Own())

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.own, checkpoint(self.scaled, x, use_reentrant=False), use_reentrant=False)


class Own(nn.Module):
    """Computed by the fallback."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.weight = nn.Parameter(torch.randn(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight).tanh()


@pytest.mark.parametrize("build", [Scaled, Repeated, Checkpointed, Own])
def test_models_with_parameters_of_their_own(build: Callable[[], nn.Module]) -> None:
    model = build()
    before = copy.deepcopy(model)
    train(private(model))
    assert_a_loop_over_people(model, before, cross_entropies)


@pytest.mark.parametrize("build", [small, Scaled, Own])
@pytest.mark.parametrize("first", [True, False], ids=["nobody first", "nobody later"])
def test_batches_without_anybody(build: Callable[[], nn.Module], first: bool) -> None:
    model = build()
    run = private(model, sample_rate=0.1, steps=30, noise_multiplier=1e-3, seed=5 if first else 0)
    empty = [False]
    while run.steps_taken < 30:
        for x, y in run.loader:
            empty.append(len(x) == 0)
            before = weights(model)
            run.optimizer.backward(F.cross_entropy(model(x), y, reduction="none"))
            run.optimizer.step()
            assert all((one != other).any() for one, other in zip(before, weights(model), strict=True))
    assert empty[1] == first
    assert 5 < sum(empty) < 25


class Centred(nn.Module):
    def __init__(self, over: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.over = nn.Linear(4, 3), over

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return y + self.over(y)


@pytest.mark.parametrize(
    "over", [lambda y: y.mean(0), lambda y: y.cumsum(0) - y], ids=["the whole batch", "rows before"]
)
def test_rows_that_have_a_say_in_others_are_refused(over: Callable[[Tensor], Tensor]) -> None:
    run = private(Centred(over))
    for x, y in run.loader:
        with pytest.raises(NotPrivate, match=r"changes what is computed here for others|in another order"):
            F.cross_entropy(run.model(x), y)


def test_rows_stand_for_themselves_whenever_the_model_is_looked_at() -> None:
    """Also after batches of people that have as many rows as are looked at."""
    looked = []

    class Telling(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            engine = run.optimizer.engine
            if engine.seen is not None:
                looked.append((engine.groups.sizes is None, engine.groups.count(len(x)) == len(x)))
            return super().forward(x)

    six = TensorDataset(torch.randn(6, 4), torch.randint(3, (6,)))
    run = private(Telling(4, 3), six, person=[0, 0, 0, 1, 1, 1], steps=2000)
    run.optimizer.engine.prober._rows = 10**6  # looks may cost what they want
    while run.steps_taken < 12:
        train(run)
    assert len(looked) > 20
    before = len(looked)
    run.optimizer.engine.prober.again()
    assert len(looked) > before
    assert all(alone and each for alone, each in looked)


# What is said, and what travels.


def spent(**options: Any) -> hoarfrost.Private:
    run = private(small(), noise_multiplier=2.0, **options)
    train(run)
    return run


def test_stages_are_for_one_person(tmp_path: Path) -> None:
    first = spent()
    first.save(tmp_path / "first.safetensors")
    for earlier in (first, tmp_path / "first.safetensors", first.optimizer.state_dict()):
        with pytest.raises(InvalidValue, match="was spent for one person, and this run is for one example"):
            private(small(), person=None, per_person=None, after=earlier)
    train(first_model := private(small(), noise_multiplier=2.0))
    second = private(first_model.model, noise_multiplier=2.0, after=first_model)
    train(second)
    assert "for one person: add or remove one" in str(second.statement())
    assert second.epsilon() > first.epsilon()
    assert second.account.snapshot().unit == "one person"
    of_examples = spent(person=None, per_person=None)
    with pytest.raises(InvalidValue, match=r"was spent for one example.*without person="):
        private(small(), after=of_examples)
    private(of_examples.model, person=None, per_person=None, after=of_examples)  # that refusal took nothing


def test_a_state_dict_of_the_other_unit_is_refused() -> None:
    state, other = spent().optimizer.state_dict(), private(small(), person=None, per_person=None)
    with pytest.raises(InvalidValue, match="was spent for one person, and this run is for one example"):
        other.optimizer.load_state_dict(state)
    assert other.epsilon() == 0
    same = private(small(), noise_multiplier=2.0, steps=2)
    same.optimizer.load_state_dict(state)
    assert same.steps_taken == 1


def test_delta_is_compared_with_the_number_of_people() -> None:
    with pytest.warns(UserWarning, match=f"not below 1/{len(SIZES)}, one over the number of people"):
        private(small(), delta=1 / len(SIZES))


def test_what_a_loader_shows() -> None:
    assert f"TensorDataset of {len(OWNERS)} rows of {len(SIZES)} people" in repr(private(small()).loader)
