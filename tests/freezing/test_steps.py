"""A step under a freezer: what is frozen does not move by one bit, what is live is clipped and noised as usual."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import hoarfrost
from hoarfrost.errors import InvalidValue, NotPrivate
from hoarfrost.freezing import Channels, Freezer, Live, RunInfo
from hoarfrost.gradients import contributions
from hoarfrost.masks import as_tensor, resolve_mask
from hoarfrost.noise import Noise
from tests import oracle
from tests.support.freezing import N, Scripted, data, make, net, random_masks, step
from tests.support.optimizers import OPTIMIZERS


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_fifty_steps_of_any_freezes_and_thaws_equal_the_oracle(seed: int) -> None:
    """Masks of every kind, drawn anew for every step, with clipping that clips, in one piece or in chunks."""
    model, plain = net(), net()
    chunks = (None, 5, 1)[seed % 3]
    private = make(model, freeze=Scripted(lambda step: random_masks(model, seed + step)), max_physical_batch=chunks)
    x, y = data().tensors
    shares = []
    for number in range(50 if seed % 5 == 0 else 10):
        masks = {
            name: as_tensor(mask, plain.get_parameter(name).shape)
            for name, mask in random_masks(model, seed + number).items()
        }
        gradients = oracle.gradients(
            plain, (x, y), lambda m, batch: F.cross_entropy(m(batch[0]), batch[1], reduction="sum")
        )
        total = oracle.clipped_sum(oracle.masked(gradients, masks), 0.5)
        with torch.no_grad():
            for name, p in plain.named_parameters():
                p -= 0.5 * total[name] / N
        before = {name: p.clone() for name, p in model.named_parameters()}
        step(private)
        for name, p in model.named_parameters():
            torch.testing.assert_close(p, plain.get_parameter(name), rtol=1e-3, atol=1e-5)
            assert torch.equal(p[~masks[name]], before[name][~masks[name]])
        shares.append(private.optimizer.controller.live_share)
    assert min(shares) < 1  # in some of the steps, chance leaves everything live


def matrices() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 6, bias=False), nn.Tanh(), nn.Linear(6, 3, bias=False))


@pytest.mark.parametrize("kind", [*OPTIMIZERS, "Muon"])
@pytest.mark.parametrize("chunks", [None, 2])
def test_what_is_frozen_does_not_move_by_one_bit_whatever_the_optimizer(kind: str, chunks: int | None) -> None:
    """With noise, momentum, weight decay, a schedule, chunks and empty batches; its optimizer state stands still."""
    model = matrices() if kind == "Muon" else net()
    optimizer = OPTIMIZERS.get(kind, torch.optim.Muon)(model.parameters())
    some = {"0.weight": False, "3.weight": torch.rand(6, 64) < 0.3, "5.weight": True}
    fixed = {"1.weight": torch.rand(6, 36) < 0.3, "3.weight": True} if kind == "Muon" else random_masks(model, 5) | some

    def script(step: int) -> Live:
        return fixed if 3 <= step < 8 else dict.fromkeys(fixed, True)

    private = make(
        model,
        optimizer,
        freeze=Scripted(script),
        noise_multiplier=1.0,
        sample_rate=0.15,
        max_physical_batch=chunks,
        seed=2,
    )
    sizes: set[int] = set()
    private.loader.on_chunk = lambda chunk: sizes.add(chunk.examples)
    schedule = torch.optim.lr_scheduler.StepLR(private.optimizer, 2, 0.9)
    frozen = {n: ~as_tensor(m, model.get_parameter(n).shape) for n, m in fixed.items()}
    kept: dict[str, dict[str, Tensor]] = {}
    for number in range(12):
        if number == 3:
            kept = {name: snapshot(p, optimizer) for name, p in model.named_parameters()}
        step(private)
        schedule.step()
        if number in (3, 7):
            for name, p in model.named_parameters():
                for what, value in snapshot(p, optimizer).items():
                    if value.shape == p.shape:
                        assert torch.equal(value[frozen[name]], kept[name][what][frozen[name]]), (name, what)
    for name, p in model.named_parameters():
        assert (p[frozen[name]] != kept[name]["weight"][frozen[name]]).all(), name  # thawed, and moving again
    assert 0 in sizes
    assert max(sizes) > 2 if chunks is None else max(sizes) == 2


def test_what_stands_for_many_coordinates_stands_still_when_all_of_them_are_frozen() -> None:
    """Adafactor keeps a number for a row, and one for a column."""
    model = net()
    mask = torch.rand(6, 64) < 0.5
    mask[2], mask[:, 7] = False, False
    optimizer = torch.optim.Adafactor(model.parameters())
    fixed = dict.fromkeys(dict(model.named_parameters()), True) | {"3.weight": mask}
    script = Scripted(lambda number: fixed if number > 0 else dict.fromkeys(fixed, True))
    private = make(model, optimizer, freeze=script, noise_multiplier=1.0)
    step(private)
    before = snapshot(model[3].weight, optimizer)
    step(private)
    after = snapshot(model[3].weight, optimizer)
    assert (after["row_var"][[0, 1, 3, 4, 5]] != before["row_var"][[0, 1, 3, 4, 5]]).all()
    assert torch.equal(after["row_var"][2], before["row_var"][2])
    assert torch.equal(after["col_var"][0] != before["col_var"][0], mask.any(0))


def snapshot(p: Tensor, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = {str(k): v.clone() for k, v in optimizer.state[p].items() if isinstance(v, Tensor)}
    return {"weight": p.detach().clone(), **state}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_live_coordinates_move_as_if_nothing_had_been_frozen(kind: str) -> None:
    """Given the same gradient and state, a live coordinate's step is the plain optimizer's."""
    model = net()
    private = make(model, OPTIMIZERS[kind](model.parameters()), freeze=Scripted(lambda n: random_masks(model, n)))
    seen: dict[Tensor, Tensor | None] = {}  # before the step: torch's own may change the gradient it is handed
    private.optimizer.inner.register_step_pre_hook(
        lambda *_: seen.update({p: None if p.grad is None else p.grad.clone() for p in model.parameters()})
    )
    for number in range(4):
        twin = copy.deepcopy(model)
        plain = OPTIMIZERS[kind](twin.parameters())
        plain.load_state_dict(copy.deepcopy(private.optimizer.inner.state_dict()))
        seen.clear()
        step(private)
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            q.grad = seen[p]
        plain.step()
        masks = {n: as_tensor(m, twin.get_parameter(n).shape) for n, m in random_masks(model, number).items()}
        for name, q in twin.named_parameters():
            torch.testing.assert_close(model.get_parameter(name)[masks[name]], q[masks[name]], rtol=0, atol=0)


def test_noise_of_the_right_size_reaches_live_coordinates_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    model = net()
    masks = random_masks(model, 8) | {"3.weight": torch.rand(6, 64) < 0.5}
    drawn: list[int] = []
    add = Noise.add_

    def counted(self: Noise, tensors: list[Tensor], stds: list[float]) -> None:
        drawn.append(sum(t.numel() for t in tensors))
        add(self, tensors, stds)

    monkeypatch.setattr(Noise, "add_", counted)
    private = make(
        model, torch.optim.SGD(model.parameters(), lr=1.0), freeze=Scripted(lambda step: masks), noise_multiplier=3.0,
        sample_rate=1e-9, steps=400,
    )  # fmt: skip
    private.optimizer.expected_batch = 1.0
    live = {n: as_tensor(m, model.get_parameter(n).shape) for n, m in masks.items()}
    F.cross_entropy(model(data().tensors[0]), data().tensors[1])  # the model is seen before the empty batches come
    moved = []
    for _ in range(400):
        before = {name: p.clone() for name, p in model.named_parameters()}
        step(private)
        change = {name: p - before[name] for name, p in model.named_parameters()}
        assert all((change[name][~live[name]] == 0).all() for name in live)
        moved.append(torch.cat([change[name][live[name]] for name in live]))
    number = sum(int(mask.sum()) for mask in live.values())
    assert set(drawn) == {number}
    noise = torch.stack(moved).double()
    samples = noise.numel()
    assert abs(noise.std() / 1.5 - 1) < 5 / math.sqrt(2 * samples)  # 3 times the clipping norm of 0.5
    assert (noise.std(0) > 1.2).all()


def test_velocity_flows_only_if_it_is_asked_to() -> None:
    for velocity in ("stands", "flows"):
        model = net()
        freezer = hoarfrost.freeze.Random(0.5, redraw="step", velocity=velocity, seed=3)  # type: ignore[arg-type]
        private = make(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), freeze=freezer, steps=20)
        step(private)
        before = {name: p.clone() for name, p in model.named_parameters()}
        step(private)
        info = private.optimizer.controller.info
        live = freezer.live(1, info)
        still = all(
            torch.equal(p[~as_tensor(live[name], p.shape)], before[name][~as_tensor(live[name], p.shape)])
            for name, p in model.named_parameters()
        )
        assert still == (velocity == "stands")


def test_the_posterior_variant_clips_with_everything_and_moves_what_is_live() -> None:
    model, plain = net(), net()
    freezer = hoarfrost.freeze.Random(0.5, posterior=True)
    private = make(model, freeze=freezer, steps=20)
    x, y = data().tensors
    gradients = oracle.gradients(
        plain, (x, y), lambda m, batch: F.cross_entropy(m(batch[0]), batch[1], reduction="sum")
    )
    total = oracle.clipped_sum(gradients, 0.5)
    step(private)
    live = freezer.live(0, private.optimizer.controller.info)
    for name, p in plain.named_parameters():
        expected = p - 0.5 * total[name] * as_tensor(live[name], p.shape) / N
        torch.testing.assert_close(model.get_parameter(name), expected, rtol=1e-3, atol=1e-5)


def test_a_frozen_prefix_ends_the_backward_pass() -> None:
    model = net()
    private = make(model, freeze=hoarfrost.freeze.Layers(first=1, step=0))
    seen: list[bool] = []
    model[1].register_forward_hook(lambda module, inputs, output: seen.append(output.requires_grad))
    step(private)
    assert seen[-1] is False
    assert model[0].weight.requires_grad is False


def test_freezing_by_hand_between_backward_and_step_wins() -> None:
    model = net()
    private = make(model, freeze=Scripted(lambda step: dict.fromkeys(dict(net().named_parameters()), True)))
    for x, y in private.loader:
        F.cross_entropy(model(x), y).backward()
        model[3].requires_grad_(False)
        before = model[3].weight.clone()
        private.optimizer.step()
        assert torch.equal(model[3].weight, before)
        break
    else:
        pytest.fail("there was no batch")


def test_what_somebody_else_froze_is_not_thawed() -> None:
    model = net()
    model[3].requires_grad_(False)
    private = make(model, freeze=hoarfrost.freeze.Layers(first=1, step=1))
    before = model[3].weight.clone()
    for _ in range(3):
        step(private)
    assert torch.equal(model[3].weight, before)
    assert model[3].weight.requires_grad is False


REFUSED: dict[str, tuple[Callable[[], Freezer], str]] = {
    "rate 1": (lambda: hoarfrost.freeze.Random(1.0), "below 1"),
    "nothing left": (lambda: hoarfrost.freeze.Random(0.999, granularity="tensor"), "leaves none"),
    "a name": (lambda: hoarfrost.freeze.Layers(names=["conv7"]), "named 'conv7'"),
    "all layers": (lambda: hoarfrost.freeze.Layers(first=3), "leave none"),
    "everything": (lambda: Scripted(lambda step: {}), "nothing is live in step 0"),
    "unknown name": (lambda: Scripted(lambda step: {"head": True, "0.weight": True}), "speaks of head"),
    "wrong shape": (lambda: Scripted(lambda step: {"0.weight": torch.ones(2, dtype=torch.bool)}), "parameter's shape"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_schedule_that_makes_no_sense_is_an_error_and_never_a_full_step(case: str) -> None:
    freezer, message = REFUSED[case]
    model = net()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InvalidValue, match=message):
        step(make(model, freeze=freezer(), steps=5))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_rate_0_is_training_as_ever() -> None:
    a, b = net(), net()
    frozen, plain = make(a, freeze=hoarfrost.freeze.Random(0.0), steps=3), make(b, steps=3)
    step(frozen)
    step(plain)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


class Notes(Freezer):
    """Remembers what it was shown."""

    observes = True

    def __init__(self) -> None:
        self.seen: list[Mapping[str, Tensor]] = []

    def live(self, step: int, info: RunInfo) -> Live:
        return {name: name != "0.weight" for name in info.shapes}

    def observe(self, step: int, gradients: Mapping[str, Tensor], info: RunInfo) -> None:
        self.seen.append({name: g.clone() for name, g in gradients.items()})


def test_an_observing_freezer_sees_the_very_noise_that_moved_the_weights() -> None:
    """One draw of noise over all coordinates: a second one would be a second release."""
    model, notes = net(), Notes()
    private = make(model, torch.optim.SGD(model.parameters(), lr=1.0), freeze=notes, noise_multiplier=2.0)
    before = {name: p.clone() for name, p in model.named_parameters()}
    step(private)
    for name, p in model.named_parameters():
        if name == "0.weight":
            assert torch.equal(p, before[name])
            assert (notes.seen[0][name] != 0).all()  # noise alone
        else:
            torch.testing.assert_close(before[name] - p, notes.seen[0][name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("runs", [True, False])
def test_a_first_batch_that_is_empty_is_no_full_step(runs: bool) -> None:
    """Whether or not the model is called on it: what is frozen gets no noise."""
    model = net()
    private = make(
        model, freeze=hoarfrost.freeze.Layers(names="0", step=0), noise_multiplier=1.0, sample_rate=1e-9, steps=2
    )
    before = model[0].weight.clone()
    for x, y in private.loader:
        if runs:
            F.cross_entropy(model(x), y).backward()
        private.optimizer.step()
    assert private.steps_taken == 2
    assert torch.equal(model[0].weight, before)
    assert (model[5].weight != net()[5].weight).all()


def test_two_freezers_mean_the_same_by_frozen() -> None:
    flowing, after = hoarfrost.freeze.Random(0.5, velocity="flows"), hoarfrost.freeze.Random(0.5, posterior=True)
    for one, words in ((flowing, "lets velocity flow"), (after, "freezes after clipping")):
        with pytest.raises(InvalidValue, match=words):
            hoarfrost.freeze.Layers(first=1, step=0) & one
    assert (flowing & flowing).velocity_flows
    assert (after & after).clips_everything


@pytest.mark.parametrize("granularity", ["element", "channel"])
def test_parameters_may_lie_in_memory_as_they_like(granularity: str) -> None:
    weights = []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Conv2d(8, 6, 2), nn.Flatten(), nn.Linear(54, 2))
        model.to(memory_format=layout)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        freezer = hoarfrost.freeze.Random(0.5, redraw="never", granularity=granularity)
        data = torch.utils.data.TensorDataset(torch.randn(9, 3, 6, 6), torch.randint(2, (9,)))
        private = hoarfrost.make_private(
            model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, weight_decay=0.1), data, sample_rate=1.0,
            steps=3, noise_multiplier=0.0, delta=1e-3, freeze=freezer,
        )  # fmt: skip
        for _ in range(3):
            for x, y in private.loader:
                private.optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                private.optimizer.step()
        live = freezer.live(0, private.optimizer.controller.info)
        for name, p in model.named_parameters():
            moved = p != before[name]
            assert torch.equal(moved, as_tensor(live[name], p.shape)), name
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-4, atol=1e-5)


def test_channels_may_be_named_in_any_order_and_must_exist() -> None:
    parameter = torch.zeros(3, 2)
    part = resolve_mask(Channels(torch.tensor([2, 0, 2])), parameter)
    assert part.rows.tolist() == [0, 2]
    assert part.mask.tolist() == [[True, True], [False, False], [True, True]]
    assert contributions.Dense(torch.tensor([[1.0, 2.0, 3.0]])).masked(
        resolve_mask(Channels(torch.tensor([2, 0])), torch.zeros(3))
    ).weighted_sum(torch.ones(1)).tolist() == [1.0, 0.0, 3.0]
    for wrong in ([3], [-1]):
        with pytest.raises(InvalidValue, match="numbers of its rows"):
            resolve_mask(Channels(torch.tensor(wrong)), parameter)


def test_what_a_part_of_a_composition_says_wrongly_is_refused() -> None:
    model = net()
    everything = Scripted(lambda step: {name: torch.ones_like(p).bool() for name, p in model.named_parameters()})
    small = torch.ones(1, 1, dtype=torch.bool)
    for wrong, words in (({"nowhere": True}, "speaks of nowhere"), ({"5.weight": small}, "got torch.bool of shape")):
        private = make(net(), freeze=everything & Scripted(lambda step, wrong=wrong: wrong))
        with pytest.raises(InvalidValue, match=words):
            step(private)


def test_what_somebody_else_took_out_of_training_stays_out() -> None:
    for freezer in (hoarfrost.freeze.Random(0.5, velocity="flows"), hoarfrost.freeze.Ranked(0.5)):
        model = net()
        model.get_parameter("5.weight").requires_grad_(False)
        before = model.get_parameter("5.weight").clone()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        private = make(model, optimizer, freeze=freezer, noise_multiplier=1.0)
        for _ in range(8):
            step(private)
        assert torch.equal(model.get_parameter("5.weight"), before)
        controller = private.optimizer.controller
        live = controller.freezer.live(7, controller.info)
        parameters = dict(model.named_parameters())
        counts = {name: int(as_tensor(live[name], p.shape).sum()) for name, p in parameters.items()}
        everything = sum(p.numel() for p in parameters.values())
        assert controller.live_share == (sum(counts.values()) - counts["5.weight"]) / everything < 0.6


def test_the_public_seed_is_a_number() -> None:
    for seed in (None, True, 1.5, -1):
        with pytest.raises(InvalidValue, match="seed must be"):
            hoarfrost.freeze.Random(0.5, seed=seed)


def test_pruning_by_the_private_data_is_refused_unless_it_is_said() -> None:
    data = torch.utils.data.TensorDataset(torch.randn(40, 3), torch.randint(2, (40,)))
    for source in (data, torch.utils.data.DataLoader(data, batch_size=4)):
        for private in (True, False):
            model = nn.Linear(3, 2)
            pruned = hoarfrost.freeze.prune_from(model, data, keep=0.5, epochs=1, private=private)
            options = {"sample_rate": 0.1} if source is data else {}
            arguments = (model, torch.optim.SGD(model.parameters(), lr=0.1), source)
            settings = {**options, "noise_multiplier": 1.0, "delta": 1e-3, "freeze": pruned}
            if private:
                with pytest.raises(NotPrivate, match="private data set itself"):
                    hoarfrost.make_private(*arguments, **settings)
            else:
                assert hoarfrost.make_private(*arguments, **settings).epsilon() == float("inf")


def test_rprop_thaws_with_the_step_that_it_begins_with() -> None:
    model = net()
    freezer = Scripted(lambda number: random_masks(model, 3) if number < 2 else dict.fromkeys(names, True))
    names = [name for name, _ in model.named_parameters()]
    optimizer = torch.optim.Rprop(model.parameters(), lr=0.01)
    private = make(model, optimizer, freeze=freezer)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    masks = {n: as_tensor(m, model.get_parameter(n).shape) for n, m in random_masks(model, 3).items()}
    for _ in range(2):
        step(private)
    for name, p in model.named_parameters():
        assert torch.equal(p[~masks[name]], before[name][~masks[name]])
        if masks[name].any() and not masks[name].all():
            assert (optimizer.state[p]["step_size"][~masks[name]] == 0.01).all()


@pytest.mark.parametrize(
    "settings", [{}, {"maximize": True}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"foreach": False}]
)
def test_not_one_bit_moves_not_even_of_a_zero(settings: dict[str, Any]) -> None:
    for value in (-0.0, 0.0, 1e-45, -3.0):
        model = net()
        masks = random_masks(model, 8)
        freezer = Scripted(lambda _, masks=masks: masks)
        for name, p in model.named_parameters():
            p.data[~as_tensor(masks[name], p.shape)] = value
        before = {name: p.detach().clone().view(torch.int32) for name, p in model.named_parameters()}
        private = make(model, torch.optim.SGD(model.parameters(), lr=0.5, **settings), freeze=freezer)
        step(private)
        step(private)
        for name, p in model.named_parameters():
            frozen = ~as_tensor(masks[name], p.shape)
            assert torch.equal(p.detach().view(torch.int32)[frozen], before[name][frozen])
