"""Which backward passes may enter a step: one for each batch, and each other one is refused for its own reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, default_collate

import hoarfrost
from hoarfrost.errors import NotPrivate
from hoarfrost.observers import Sums
from tests.usage.small import assert_same, private, small, train, trained, weights

# Twice on one batch.


def test_a_second_backward_through_one_run_is_told_to_add_losses_up() -> None:
    run = private(small())
    for x, y in run.loader:
        output = run.model(x)
        F.cross_entropy(output, y).backward(retain_graph=True)
        with pytest.raises(NotPrivate, match=r"a second backward.. through one run of the model.*Add losses up"):
            output.square().mean().backward()


def test_a_second_run_on_one_batch_is_told_of_one_forward() -> None:
    run = private(small())
    for x, y in run.loader:
        F.cross_entropy(run.model(x), y).backward()
        with pytest.raises(NotPrivate, match=r"two runs of the model on one batch.*forward of one module"):
            run.model(x).square().mean().backward()


@pytest.mark.parametrize("part", [slice(0, 20), [*range(20)]], ids=["slice", "numbers"])
def test_the_same_part_of_a_batch_cannot_count_twice(part: Any) -> None:
    """20 + 20 of 60 rows are fewer than were drawn, and are the same examples."""
    run = private(small())
    for x, y in run.loader:
        F.cross_entropy(run.model(x[part]), y[part]).backward()
        with pytest.raises(NotPrivate, match=r"two runs of the model on one batch.*max_physical_batch="):
            F.cross_entropy(run.model(x[part]), y[part]).backward()


def test_overlapping_parts_are_refused() -> None:
    run = private(small())
    for x, y in run.loader:
        F.cross_entropy(run.model(x[:20]), y[:20]).backward()
        with pytest.raises(NotPrivate, match=r"two runs of the model on one batch"):
            F.cross_entropy(run.model(x[19:40]), y[19:40]).backward()


@pytest.mark.parametrize("copied", [False, True], ids=["of the loader's tensors", "of a copy of them"])
def test_a_batch_may_be_worked_on_in_slices(copied: bool) -> None:
    model = small()
    run = private(model)
    for batch in run.loader:
        x, y = (t.clone() for t in batch) if copied else batch
        for part, wanted in zip(x.split(23), y.split(23), strict=True):
            F.cross_entropy(model(part), wanted).backward()
        run.optimizer.step()
    assert_same(weights(model), trained(small()))


def test_slices_of_sequences_with_time_first() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).mean(0)

    def collate(examples: list[Any]) -> Any:
        x, y = default_collate(examples)
        return x.transpose(0, 1).contiguous(), y

    torch.manual_seed(2)
    examples = [(torch.randn(5, 4), torch.tensor(i % 3)) for i in range(12)]
    models = Tagger(), Tagger()
    for model, sizes in zip(models, (12, 5), strict=True):
        run = private(model, dataset=DataLoader(examples, batch_size=12, collate_fn=collate), batch_first=False)
        for x, y in run.loader:
            for part, wanted in zip(x.split(sizes, 1), y.split(sizes), strict=True):
                F.cross_entropy(model(part), wanted).backward()
            run.optimizer.step()
    assert_same(weights(models[1]), weights(models[0]))


# Twice, where nothing is left of the first pass.


def test_after_zero_grad_a_second_pass_takes_the_place_of_the_first() -> None:
    """Sums, statistics and examples are those of the second pass alone."""
    seen: list[Sums] = []

    class Seen(hoarfrost.Observer):
        def on_sums(self, sums: Sums) -> None:
            seen.append(sums)

    run = private(small(), clip=hoarfrost.clip.Adaptive(0.3))
    run.observe(Seen())
    sums = run.optimizer.engine.sums
    for x, y in run.loader:
        x.requires_grad_()
        first = F.cross_entropy(run.model(x), y)
        first.backward(retain_graph=True)
        assert x.grad is not None
        before = {name: t.clone() for name, t in sums.total.statistics.items()}
        run.optimizer.zero_grad()
        assert not sums.total.sums
        assert not sums.total.statistics
        F.cross_entropy(run.model(x.detach() + x.grad.sign()), y).backward()
        assert sums.ticket.covered == len(y)
        for name, t in sums.total.sums.items():
            torch.testing.assert_close(t, seen[1].clipped[name])
        assert before
        for name, t in sums.total.statistics.items():
            torch.testing.assert_close(t, next(s for s in seen[1].clipping.statistics if s.name == name).total(seen[1].norms))  # fmt: skip # noqa: E501
        with pytest.raises(NotPrivate, match=r"two runs of the model on one batch"):
            first.backward()
        run.optimizer.step()
    assert run.steps_taken == 1


@pytest.mark.parametrize("fetched", [iter, list])
def test_after_zero_grad_copies_of_the_last_batch_are_recognised(fetched: Any) -> None:
    """The loader may have nothing more to give, and another tensor is the batch."""
    run = private(small())
    for batch in fetched(run.loader):
        x, y = (t.clone() for t in batch)
        for _ in range(3):
            F.cross_entropy(run.model(x + 0.1), y).backward()
            run.optimizer.zero_grad()
        F.cross_entropy(run.model(x.clone()), y).backward()
        run.optimizer.step()
    assert_same(weights(run.model), trained(small()))


def test_zero_grad_amid_a_batch_in_chunks_gives_nothing_back() -> None:
    run = private(small(), max_physical_batch=25)
    for number, (x, y) in enumerate(run.loader):
        F.cross_entropy(run.model(x), y).backward()
        run.optimizer.zero_grad()
        with pytest.raises(NotPrivate, match=r"torch\.autograd\.grad\(loss, x\)"):
            F.cross_entropy(run.model(x), y).backward()
        assert bool(run.optimizer.engine.sums.total.sums) == (number < 2), "dropped with the last chunk alone"
        run.optimizer.step()


# More than one batch.


def test_two_copies_put_together_are_told_of_views() -> None:
    run = private(small())
    for x, y in run.loader:
        with pytest.raises(NotPrivate, match=r"torch\.cat\(\[a, b\]\).*views="):
            F.cross_entropy(run.model(torch.cat([x, x + 0.1])), torch.cat([y, y])).backward()


def test_two_batches_put_together_are_refused() -> None:
    run = private(small(), sample_rate=0.4)
    batches = iter(run.loader)
    (a, p), (b, q) = next(batches), next(batches)
    with pytest.raises(NotPrivate, match=r"several batches.*torch\.cat"):
        F.cross_entropy(run.model(torch.cat([a, b])), torch.cat([p, q])).backward()


def test_a_wrapper_that_fetches_irregularly_and_copies_is_told_so() -> None:
    run = private(small(), sample_rate=0.1)

    def fetched() -> Iterator[Any]:
        waiting = []
        for number, batch in enumerate(run.loader):
            waiting.append([t.clone() for t in batch])
            while len(waiting) > number % 3:
                yield waiting.pop(0)

    def program() -> None:
        for x, y in fetched():
            F.cross_entropy(run.model(x), y).backward()
            run.optimizer.step()

    with pytest.raises(NotPrivate, match=r"same number of batches ahead|order in which the loader gives them"):
        program()


# A GAN.


def networks() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(7)
    return nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def says(critic: nn.Module, x: Tensor, real: bool) -> Tensor:
    output = critic(x)
    return F.binary_cross_entropy_with_logits(output, torch.full_like(output, float(real)))


@pytest.mark.parametrize("after_the_step", [False, True])
def test_a_generator_s_step_through_the_private_critic_is_told_how(after_the_step: bool) -> None:
    generator, critic = networks()
    run = private(critic)
    for x, _ in run.loader:
        says(critic, x, True).backward()
        if after_the_step:
            run.optimizer.step()
        with pytest.raises(NotPrivate, match=r"a GAN's generator.*inputs=list\(generator\.parameters\(\)\)"):
            says(critic, generator(torch.randn(len(x), 2)), True).backward()


@pytest.mark.parametrize("way", ["inputs", "requires_grad_"])
def test_both_ways_that_it_is_told_of_train_the_generator_and_not_the_critic(way: str) -> None:
    generator, critic = networks()
    run, theirs = private(critic), torch.optim.SGD(generator.parameters(), lr=0.1)
    before = weights(generator)
    for x, _ in run.loader:
        says(critic, x, True).backward()
        run.optimizer.step()
        after = weights(critic)
        loss = says(critic.requires_grad_(way == "inputs"), generator(torch.randn(len(x), 2)), True)
        loss.backward(inputs=list(generator.parameters())) if way == "inputs" else loss.backward()
        critic.requires_grad_(True)
        theirs.step()
    assert not torch.equal(weights(generator)[0], before[0])
    assert_same(weights(critic), after)
    assert run.steps_taken == 1


# Checkpoints.


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.middle, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        hidden = checkpoint(lambda h: torch.tanh(self.middle(h)), hidden, use_reentrant=self.reentrant)
        return self.last(hidden)


@pytest.mark.parametrize("rows", [60, 20])
@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_reentrant_checkpoints_are_refused_on_a_batch_and_on_a_part_of_one(rows: int) -> None:
    run = private(Checkpointed(reentrant=True))
    for x, y in run.loader:
        with pytest.raises(NotPrivate, match=r"use_reentrant=False"):
            F.cross_entropy(run.model(x[:rows]) * 50, y[:rows]).backward()
        assert run.optimizer.engine.sums.total is None, "nothing was counted"


class WholeCheckpointed(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x.requires_grad_(), use_reentrant=True)


def test_a_model_that_is_one_reentrant_checkpoint_is_refused_too() -> None:
    """No layer is outside of it, so that no other tap is there to be compared with."""
    run = private(WholeCheckpointed(nn.Linear(4, 6), nn.Linear(6, 3)))
    for x, y in run.loader:
        with pytest.raises(NotPrivate, match=r"use_reentrant=False"):
            F.cross_entropy(run.model(x), y).backward()


def test_other_checkpoints_are_clipped_as_the_model_without() -> None:
    model = Checkpointed(reentrant=False)
    seen: list[Tensor] = []

    class Norms(hoarfrost.Observer):
        def on_sums(self, sums: Sums) -> None:
            seen.append((sums.norms * sums.factors).squeeze(1))

    run = private(model)
    run.observe(Norms())
    train(run, lambda output, y: F.cross_entropy(output * 50, y))
    assert len(seen) == 1
    assert seen[0].max() <= 1


# Views.


class Augmented(Dataset[tuple[Tensor, int]]):
    """Another picture of an example whenever it is drawn."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.randn(4) + index, index


def kept(examples: list[tuple[Tensor, int]], dropped: set[int]) -> Any:
    return default_collate([example for place, example in enumerate(examples) if place not in dropped])


@pytest.mark.parametrize("dropped", [{7}, {7, 11}, {6, 7}], ids=["one", "of two examples", "all of one"])
def test_views_with_a_collate_function_that_drops_rows_are_refused(dropped: set[int]) -> None:
    data = DataLoader(Augmented(), batch_size=30, collate_fn=lambda examples: kept(examples, dropped))
    run = private(nn.Linear(4, 3), dataset=data, views=2)
    with pytest.raises(NotPrivate, match=r"collate function .* drops rows .*views=.* constant"):
        next(iter(run.loader))


def test_views_with_a_collate_function_that_sorts_are_refused() -> None:
    data = DataLoader(
        Augmented(), batch_size=30, collate_fn=lambda examples: default_collate(sorted(examples, key=lambda e: -e[1]))
    )
    run = private(nn.Linear(4, 3), dataset=data, views=2)
    with pytest.raises(NotPrivate, match=r"changes the order of examples, as sorting does"):
        next(iter(run.loader))
    assert private(nn.Linear(4, 3), dataset=data).loader.views == 1, "without views, rows stand for themselves"
    for x, y in private(nn.Linear(4, 3), dataset=data).loader:
        assert len(x) == len(y) == 30


def test_rows_that_are_dropped_without_views_are_examples_that_do_not_count() -> None:
    def readable(examples: list[tuple[Tensor, int]]) -> Any:
        return default_collate([(x, index) for x, index in examples if index != 3])

    run = private(nn.Linear(4, 3), dataset=DataLoader(Augmented(), batch_size=30, collate_fn=readable))
    for x, y in run.loader:
        F.cross_entropy(run.model(x), y % 3).backward()
        run.optimizer.step()
    assert run.steps_taken == 1


def test_views_in_slices_that_keep_them_together() -> None:
    torch.manual_seed(1)
    fixed = [(torch.randn(4), i) for i in range(12)]
    models = nn.Linear(4, 3), nn.Linear(4, 3)
    models[1].load_state_dict(models[0].state_dict())
    for model, sizes in zip(models, (24, 8), strict=True):
        run = private(model, dataset=DataLoader(fixed, batch_size=12), views=2)
        for x, y in run.loader:
            for part, wanted in zip(x.split(sizes), y.split(sizes), strict=True):
                F.cross_entropy(model(part), wanted % 3).backward()
            run.optimizer.step()
    assert_same(weights(models[1]), weights(models[0]))
    run = private(nn.Linear(4, 3), dataset=DataLoader(fixed, batch_size=12), views=2)
    for x, y in run.loader:
        with pytest.raises(NotPrivate, match=r"views each"):
            F.cross_entropy(run.model(x[1:5]), y[1:5] % 3).backward()


# Second derivatives, penalties.


@pytest.mark.parametrize("model", [small, lambda: nn.Linear(4, 3)], ids=["two layers", "linear"])
def test_a_gradient_penalty_is_refused(model: Any) -> None:
    run = private(model())
    for x, y in run.loader:
        output = run.model(x.requires_grad_())
        (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        with pytest.raises(NotPrivate, match=r"gradient penalty.*clamp its weights"):
            (F.cross_entropy(output, y) + (slope.norm(dim=1) - 1).square().mean()).backward()


def test_slopes_may_be_looked_at() -> None:
    run, plain = private(small()), small()
    for x, y in run.loader:
        output = run.model(x.requires_grad_())
        (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        (want,) = torch.autograd.grad(plain(x).sum(), x)
        torch.testing.assert_close(slope.detach(), want)
        F.cross_entropy(output, y).backward()
        run.optimizer.step()
    assert_same(weights(run.model), trained(small()))


def test_an_l2_penalty_in_the_loss_is_told_of_weight_decay() -> None:
    run = private(small())
    for x, y in run.loader:
        penalty = sum(p.square().sum() for p in run.model.parameters())
        with pytest.raises(NotPrivate, match=r"penalty on the parameter \S+ itself \(L2\).*weight_decay="):
            (F.cross_entropy(run.model(x), y) + 1e-3 * penalty).backward()


def test_another_use_of_a_parameter_is_told_to_call_the_module() -> None:
    run = private(small())
    for x, y in run.loader:
        first = run.model.get_parameter("0.weight")
        with pytest.raises(NotPrivate, match=r"0.weight is used outside of the module.*Call the module"):
            (F.cross_entropy(run.model(x), y) + (x @ first.T).square().mean()).backward()
