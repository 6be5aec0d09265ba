"""The whole step: make_private, the plain loop, any optimizer."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler

import hoarfrost
from hoarfrost.errors import BudgetSpent, Diverged, InvalidValue, NotPrivate
from tests import oracle
from tests.support.optimizers import OPTIMIZERS, REFUSED_OPTIMIZERS

N = 60


def small() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def data(n: int = N) -> TensorDataset:
    torch.manual_seed(6)
    return TensorDataset(torch.randn(n, 4), torch.randint(3, (n,)))


def private(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None, dataset: Any = None, **options: Any
) -> Any:
    settings = {"sample_rate": 1.0, "noise_multiplier": 0.0, "delta": 1e-5, "clip": hoarfrost.clip.Local(1e6)}
    if isinstance(dataset, DataLoader) or "batch_size" in options:
        del settings["sample_rate"]
    return hoarfrost.make_private(
        model, optimizer or torch.optim.SGD(model.parameters(), lr=0.1), data() if dataset is None else dataset,
        **(settings | options),
    )  # fmt: skip


def train(
    p: Any, epochs: int, loss: Callable[..., Tensor] = F.cross_entropy, after: Callable[[], None] = lambda: None
) -> None:
    model, optimizer, loader = p
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
        after()


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_without_noise_and_clipping_it_is_plain_training(kind: str, reduction: str) -> None:
    """Every example in every batch, nothing clipped, nothing added: the same weights, whatever the optimizer."""
    plain, model = small(), small()
    optimizer = OPTIMIZERS[kind](plain.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(plain(data()[:][0]), data()[:][1]).backward()
        optimizer.step()
        schedule.step()
    p = private(model, OPTIMIZERS[kind](model.parameters()), loss_reduction=reduction)
    private_schedule = torch.optim.lr_scheduler.StepLR(p.optimizer, 2, 0.5)
    train(p, 5, lambda o, y: F.cross_entropy(o, y, reduction=reduction), after=private_schedule.step)
    assert p.optimizer.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    for got, want in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


def test_the_gradient_is_the_clipped_sum_over_the_expected_batch() -> None:
    model, x, y = small(), *data()[:]
    per_example = oracle.gradients(model, (x, y), lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    norm = oracle.halving_norm(per_example)
    expected = oracle.clipped_sum(per_example, norm)
    p = private(model, clip=hoarfrost.clip.Local(norm))
    train(p, 1)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name] / N, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 7, 59, 1000])
def test_chunks_add_up_to_the_whole_batch(chunk: int) -> None:
    whole, model = small(), small()
    train(private(whole, clip=hoarfrost.clip.Local(0.3)), 3)
    p = private(model, clip=hoarfrost.clip.Local(0.3), max_physical_batch=chunk)
    train(p, 3)
    assert p.steps_taken == 3
    for got, want in zip(model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


def test_an_accumulating_loop_that_steps_after_the_last_chunk_does_the_same() -> None:
    whole, model = small(), small()
    train(private(whole, clip=hoarfrost.clip.Local(0.3)), 1)
    p = private(model, clip=hoarfrost.clip.Local(0.3), max_physical_batch=20)
    for i, (x, y) in enumerate(p.loader):
        F.cross_entropy(model(x), y).backward()
        if i == 2:
            p.optimizer.step()
    torch.testing.assert_close(model[0].weight, whole[0].weight, rtol=1e-4, atol=1e-6)


def test_the_divisor_is_the_real_expected_batch_and_not_its_whole_part() -> None:
    """N=99 and a rate of 0.1: 9.9, where int(N·q) would be 9."""
    p = private(nn.Linear(4, 3), dataset=data(99), sample_rate=0.1)
    assert p.expected_batch == pytest.approx(9.9)
    model, optimizer, loader = p
    x, _ = next(iter(loader))
    (model(x).sum() / len(x)).backward()
    optimizer.step()
    torch.testing.assert_close(model.bias.grad, torch.full((3,), len(x) / 9.9))


class Augmented(Dataset):
    """Every draw of an example is another view of it."""

    def __init__(self) -> None:
        self.x, self.y = data(12)[:]
        self.drawn = 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        self.drawn += 1
        return self.x[i] + self.drawn, self.y[i]


def test_views_are_averaged_before_they_are_clipped() -> None:
    model = small()
    augmented = Augmented()
    p = private(model, dataset=augmented, views=3, clip=hoarfrost.clip.Local(0.2))
    before = copy.deepcopy(model.state_dict())
    ((x, y),) = list(p.loader)
    plain = small()
    plain.load_state_dict(before)
    per_example = oracle.gradients(plain, (x, y), lambda m, b: F.cross_entropy(m(b[0]), b[1]), views=3)
    expected = oracle.clipped_sum(per_example, 0.2)
    F.cross_entropy(model(x), y).backward()
    p.optimizer.step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name] / 12, rtol=1e-4, atol=1e-6)


def test_noise_has_the_right_size_on_every_live_coordinate_and_is_fresh_every_step() -> None:
    model = nn.Sequential(nn.Linear(300, 400), nn.Linear(400, 300), nn.Linear(300, 5))
    model[1].requires_grad_(False)
    frozen = model[1].weight.clone()
    x = TensorDataset(torch.zeros(8, 300), torch.zeros(8, dtype=torch.long))
    p = private(model, dataset=x, sample_rate=0.5, noise_multiplier=1.7, clip=hoarfrost.clip.Local(0.6), seed=3)
    draws: list[Tensor] = []
    model, optimizer, loader = p
    while len(draws) < 9:
        for images, _labels in loader:
            (model(images).sum() * 0).backward()
            optimizer.step()
            draws.append(torch.cat([q.grad.flatten() for q in model.parameters() if q.grad is not None]))
    noise = torch.stack(draws) * p.expected_batch
    assert noise.numel() > 1_000_000
    assert float(noise.std()) == pytest.approx(1.7 * 0.6, rel=0.005)
    correlation = torch.corrcoef(noise)
    assert float((correlation - torch.eye(len(draws))).abs().max()) < 0.02
    weights, biases = noise[:, : 300 * 400], noise[:, 300 * 400 : 300 * 400 + 400]
    assert float(torch.corrcoef(torch.stack([weights[:, :400].flatten(), biases.flatten()]))[0, 1].abs()) < 0.08
    assert model[1].weight.grad is None
    assert torch.equal(model[1].weight, frozen)


def test_empty_batches_are_steps_of_noise_and_are_counted() -> None:
    model = small()
    p = private(
        model, dataset=data(50), sample_rate=1e-9, steps=30, noise_multiplier=1.0, clip=hoarfrost.clip.Local(1.0)
    )
    gradients = []
    for x, y in p.loader:
        assert len(x) == len(y) == 0
        p.optimizer.zero_grad()
        F.cross_entropy(p.model(x), y).backward()
        p.optimizer.step()
        gradients.append(model[0].weight.grad.clone())
    assert p.steps_taken == len(gradients) == 30
    assert all(g.isfinite().all() and g.std() > 0 for g in gradients)


def test_a_break_inside_a_chunked_batch_loses_no_step_and_mixes_no_batch() -> None:
    model = small()
    p = private(model, max_physical_batch=10)
    for x, y in p.loader:
        F.cross_entropy(model(x * 1000), y).backward()
        p.optimizer.step()
        break
    assert p.steps_taken == 0
    other = small()
    train(p, 2)
    train(private(other), 2)
    assert p.steps_taken == 2
    torch.testing.assert_close(model[0].weight, other[0].weight, rtol=1e-4, atol=1e-6)


def test_steps_without_zero_grad_do_not_reuse_a_gradient() -> None:
    one, two = small(), small()
    train(private(one), 3)
    p = private(two)
    for _ in range(3):
        for x, y in p.loader:
            F.cross_entropy(two(x), y).backward()
            p.optimizer.step()
    torch.testing.assert_close(one[0].weight, two[0].weight)


def test_zero_grad_before_the_step_drops_the_batch() -> None:
    model = small()
    before = model[0].weight.clone()
    p = private(model)
    for x, y in p.loader:
        F.cross_entropy(model(x), y).backward()
        p.optimizer.zero_grad()
        p.optimizer.step()
    assert torch.equal(model[0].weight, before)


def test_a_second_step_without_a_new_batch_is_refused() -> None:
    p = private(small())
    train(p, 1)
    with pytest.raises(NotPrivate, match="without a batch"):
        p.optimizer.step()
    assert p.steps_taken == 1


def test_freezing_between_backward_and_step_releases_nothing_of_that_parameter() -> None:
    model = small()
    before = model[0].weight.clone()
    p = private(model, torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, weight_decay=0.1))
    train(p, 1)
    moved = model[0].weight.clone()
    assert not torch.equal(before, moved)
    for x, y in p.loader:
        F.cross_entropy(model(x), y).backward()
        model[0].requires_grad_(False)
        p.optimizer.step()
    assert torch.equal(model[0].weight, moved)


def test_epsilon_is_zero_before_the_first_step_grows_with_every_step_and_asking_changes_nothing() -> None:
    p = private(small(), sample_rate=0.1, noise_multiplier=1.0)
    assert p.epsilon() == 0.0
    seen = []
    for x, y in p.loader:
        F.cross_entropy(p.model(x), y).backward()
        p.optimizer.step()
        seen.append(p.epsilon())
    assert seen == sorted(seen)
    assert seen[0] > 0
    assert p.epsilon() == p.epsilon() == seen[-1]


def test_a_calibrated_run_spends_its_epsilon_and_no_step_more() -> None:
    p = private(small(), sample_rate=0.1, noise_multiplier=None, epsilon=2.0, epochs=2)
    assert p.steps == 20
    train(p, 2)
    assert 1.99 < p.epsilon() <= 2.0
    with pytest.raises(BudgetSpent, match="20"):
        next(iter(p.loader))
    assert p.steps_taken == 20


def test_no_noise_is_allowed_and_says_infinity() -> None:
    p = private(small())
    train(p, 1)
    assert p.epsilon() == math.inf
    assert "not private" in str(p.statement())


def test_a_seeded_run_repeats_itself_and_says_that_it_must_not_be_released() -> None:
    runs = []
    for _ in range(2):
        p = private(small(), sample_rate=0.3, noise_multiplier=1.0, seed=4)
        train(p, 2)
        runs.append(torch.cat([q.flatten() for q in p.model.parameters()]))
    assert torch.equal(*runs)
    assert "must not be released" in str(p.statement())
    unseeded = private(small(), sample_rate=0.3, noise_multiplier=1.0)
    train(unseeded, 2)
    assert not torch.equal(runs[0], torch.cat([q.flatten() for q in unseeded.model.parameters()]))
    assert "must not be released" not in str(unseeded.statement())


def test_it_unpacks_and_hands_the_same_model_back() -> None:
    model = small()
    keys = list(model.state_dict())
    p = private(model)
    back, optimizer, _ = p
    assert back is model
    assert list(back.state_dict()) == keys
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.state_dict()["param_groups"] == optimizer.inner.state_dict()["param_groups"]


def test_state_dicts_of_the_optimizer_go_in_and_out() -> None:
    model = small()
    p = private(model, torch.optim.Adam(model.parameters()))
    train(p, 2)
    state = copy.deepcopy(p.optimizer.state_dict())
    fresh_model = small()
    fresh = private(fresh_model, torch.optim.Adam(fresh_model.parameters()))
    fresh.optimizer.load_state_dict(state)
    assert fresh.optimizer.state_dict()["state"][0]["step"] == state["state"][0]["step"]


def test_a_data_loader_lends_its_collate_function_workers_and_batch_size() -> None:
    def collate(rows: list[Any]) -> dict[str, Any]:
        return {"x": torch.stack([x for x, _ in rows]), "rest": (torch.stack([y for _, y in rows]),)}

    model = small()
    p = private(
        model, dataset=DataLoader(data(), batch_size=15, shuffle=True, collate_fn=collate), noise_multiplier=1.0
    )
    assert p.sample_rate == 0.25
    sizes = []
    for _ in range(5):
        for batch in p.loader:
            p.optimizer.zero_grad()
            F.cross_entropy(model(batch["x"]), batch["rest"][0]).backward()
            p.optimizer.step()
            sizes.append(len(batch["x"]))
    assert len(set(sizes)) > 3
    assert p.steps_taken == 20


def test_examples_may_lie_along_the_second_dimension() -> None:
    class TimeFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x).mean(0)

    def collate(rows: list[Any]) -> tuple[Tensor, Tensor]:
        return torch.stack([x for x, _ in rows], 1), torch.stack([y for _, y in rows])

    torch.manual_seed(0)
    rows = TensorDataset(torch.randn(9, 5, 4), torch.randint(3, (9,)))
    model = TimeFirst()
    plain = copy.deepcopy(model)
    batch = collate(list(rows))
    per_example = oracle.gradients(plain, batch, lambda m, b: F.cross_entropy(m(b[0]), b[1]), dim=1)
    norm = oracle.halving_norm(per_example)
    p = private(model, dataset=DataLoader(rows, batch_size=9, collate_fn=collate), batch_first=False,
                clip=hoarfrost.clip.Local(norm))  # fmt: skip
    train(p, 1)
    torch.testing.assert_close(
        model.inner.weight.grad, oracle.clipped_sum(per_example, norm)["inner.weight"] / 9, rtol=1e-4, atol=1e-6
    )


def test_a_closure_is_called_once_and_stepped_with() -> None:
    model, other = small(), small()
    train(private(other), 1)
    p = private(model)
    for x, y in p.loader:

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        assert p.optimizer.step(closure) is not None
    torch.testing.assert_close(model[0].weight, other[0].weight)


INVALID = {
    "both epsilon and noise": ({"epsilon": 1.0}, "either epsilon= or noise_multiplier="),
    "neither": ({"noise_multiplier": None}, "either epsilon= or noise_multiplier="),
    "epsilon without a length": ({"noise_multiplier": None, "epsilon": 1.0}, "give epochs= or steps="),
    "both epochs and steps": ({"epochs": 1, "steps": 3}, "not both"),
    "negative noise": ({"noise_multiplier": -1.0}, "noise_multiplier must not be negative"),
    "delta of 1": ({"delta": 1.0}, "delta must lie strictly between"),
    "rate above 1": ({"sample_rate": 1.5}, r"sample_rate must lie in \(0, 1\]"),
    "rate of 0": ({"sample_rate": 0.0}, r"sample_rate must lie in \(0, 1\]"),
    "no views": ({"views": 0}, "views must be a whole number"),
    "a word for the loss": ({"loss_reduction": "average"}, "loss_reduction"),
    "zero steps": ({"steps": 0}, "steps must be a whole number"),
    "zero chunk": ({"max_physical_batch": 0}, "max_physical_batch"),
    "NaN noise": ({"noise_multiplier": math.nan}, "noise_multiplier"),
}


@pytest.mark.parametrize("kind", INVALID)
def test_values_that_make_no_sense_are_refused_and_leave_the_model_alone(kind: str) -> None:
    options, message = INVALID[kind]
    model = small()
    with pytest.raises(InvalidValue, match=message):
        private(model, **options)
    assert "forward" not in model[0].__dict__


@pytest.mark.parametrize("norm", [0.0, -1.0, math.inf, math.nan, "1"])
def test_clipping_norms_that_make_no_sense_are_refused(norm: Any) -> None:
    with pytest.raises(InvalidValue, match="norm"):
        hoarfrost.clip.Local(norm)


def test_parameters_from_elsewhere_in_the_optimizer_are_refused() -> None:
    model = small()
    with pytest.raises(NotPrivate, match="not in the model"):
        private(model, torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(1))], lr=0.1))


def test_parameters_cannot_join_or_leave_the_optimizer_later() -> None:
    model = small()
    p = private(model)
    with pytest.raises(NotPrivate, match="add_param_group"):
        p.optimizer.add_param_group({"params": nn.Linear(3, 1).parameters()})
    p.optimizer.param_groups[0]["params"].append(nn.Parameter(torch.ones(1)))
    with pytest.raises(NotPrivate, match="changed since make_private"):
        train(p, 1)
    assert p.steps_taken == 0


def test_the_noise_cannot_be_changed_after_it_was_accounted_for() -> None:
    with pytest.raises(AttributeError):
        private(small()).optimizer.noise_multiplier = 10.0


def test_weighted_sampling_is_refused() -> None:
    with pytest.raises(NotPrivate, match=r"[Ss]ampler"):
        private(small(), dataset=DataLoader(data(), batch_size=5, sampler=WeightedRandomSampler([1.0] * N, N)))


def test_lbfgs_and_a_private_optimizer_are_refused() -> None:
    model = small()
    for name in REFUSED_OPTIMIZERS:
        with pytest.raises(NotPrivate, match=name):
            private(model, getattr(torch.optim, name)(model.parameters()))
    p = private(model)
    with pytest.raises(NotPrivate, match="already"):
        private(model, p.optimizer)


@pytest.mark.parametrize("first", [lambda: nn.Linear(4, 6), lambda: nn.EmbeddingBag(9, 6), lambda: OwnScale()])
def test_parameters_that_the_optimizer_leaves_out_get_no_gradient_at_all(first: Callable[[], nn.Module]) -> None:
    model = nn.Sequential(first(), nn.Linear(6, 3))
    whole = isinstance(model[0], nn.EmbeddingBag)
    x = torch.randint(9, (N, 4)) if whole else torch.randn(N, 6 if isinstance(model[0], OwnScale) else 4)
    p = private(
        model, torch.optim.SGD(model[1].parameters(), lr=0.1), TensorDataset(x, data()[:][1]), noise_multiplier=1.0
    )
    train(p, 2)
    assert all(q.grad is None for q in model[0].parameters())
    assert p.steps_taken == 2


class OwnScale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def test_parameters_that_the_optimizer_leaves_out_do_not_move_and_do_not_count() -> None:
    model = small()
    head = model[2]
    before = model[0].weight.clone()
    p = private(model, torch.optim.SGD(head.parameters(), lr=0.1), noise_multiplier=1.0, clip=hoarfrost.clip.Local(0.1))
    train(p, 2)
    assert torch.equal(model[0].weight, before)
    assert model[0].weight.grad is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_numbers_are_refused_before_a_batch_is_drawn(bad: float) -> None:
    model = small()
    drawn: list[int] = []

    class Watched(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            drawn.append(index)
            return super().__getitem__(index)

    p = private(model, dataset=Watched(*data().tensors))
    with torch.no_grad():
        model[2].weight[1, 2] = bad
    with pytest.raises(Diverged, match=r"2\.weight"):
        train(p, 1)
    assert drawn == []
    assert p.epsilon() == 0


def test_weights_whose_sum_overflows_are_numbers_still() -> None:
    model = small()
    with torch.no_grad():
        model[0].weight.fill_(3e38)
    p = private(model)
    train(p, 1)
    assert p.steps_taken == 1


def test_an_example_without_a_finite_gradient_is_counted_and_contributes_nothing() -> None:
    x, y = data().tensors
    x = x.clone()
    x[3], x[7, 1] = math.nan, math.inf
    model, other = small(), small()
    p = private(model, dataset=TensorDataset(x, y), clip=hoarfrost.clip.Local(0.1))
    train(p, 1)
    assert p.optimizer.engine.dropped == 2
    kept = torch.tensor([index for index in range(N) if index not in (3, 7)])
    q = private(other, dataset=TensorDataset(x[kept], y[kept]), clip=hoarfrost.clip.Local(0.1))
    q.optimizer.expected_batch = float(N)
    train(q, 1)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("delta", "warned"), [(0.5, True), (1 / 60, True), (1 / 61, False), (1e-5, False)])
def test_a_delta_that_would_allow_to_publish_an_example_is_warned_of(delta: float, warned: bool) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        private(small(), delta=delta, noise_multiplier=1.0)
    assert any("published outright" in str(each.message) for each in told) == warned


def test_hooks_on_the_private_optimizer_are_called_once_around_each_step() -> None:
    p, seen = private(small()), []
    weights = p.model[0].weight
    p.optimizer.register_step_pre_hook(lambda *_: seen.append(weights.detach().clone()))
    p.optimizer.register_step_post_hook(lambda *_: seen.append(weights.detach().clone()))
    before = weights.detach().clone()
    x, y = next(iter(p.loader))
    F.cross_entropy(p.model(x), y).backward()
    p.optimizer.step()
    assert len(seen) == 2
    assert torch.equal(seen[0], before)
    assert torch.equal(seen[1], weights)
    assert not torch.equal(before, weights)
