"""What is looked at before a backward pass: whether examples meet in the loss, hooks on outputs, leaves outside."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from hoarfrost.errors import NotPrivate
from hoarfrost.gradients import Engine, loss_graph
from hoarfrost.gradients.loss_watch import CLOSELY, PASSES
from hoarfrost.groups import Groups
from hoarfrost.sampling import Chunk
from tests.support.engines import announce, engine_for, flat, sums_so_far

MEET = r"loss\.backward\(\).*depends on other examples.*optimizer\.backward\(losses\)"
Loss = Callable[[Tensor], Tensor]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def centred(output: Tensor) -> Tensor:
    return (output - output.mean(0)).square().sum()


def apart(output: Tensor) -> Tensor:
    return output.exp().sum()


def one_pass(engine: Engine, loss: Loss, rows: int = 6, **options: Any) -> None:
    announce(engine, rows)
    loss(engine.model(torch.randn(rows, 4))).backward(**options)
    engine.release()


# Examples that meet.


def test_a_refused_pass_has_brought_nothing() -> None:
    engine = engine_for(network())
    announce(engine, 6)
    with pytest.raises(NotPrivate, match=MEET):
        centred(engine.model(torch.randn(6, 4))).backward()
    assert sums_so_far(engine) == {}


@pytest.mark.parametrize("passes", [1, 2, 3, 10, 100])
def test_a_loss_that_begins_to_mix_is_found_in_the_first_passes_and_then_now_and_then(passes: int) -> None:
    engine = engine_for(network())
    for _ in range(passes - 1):
        one_pass(engine, apart)
    with pytest.raises(NotPrivate, match=MEET):
        one_pass(engine, centred)


def test_other_passes_are_not_differentiated_twice() -> None:
    """What a look costs is no part of every step."""
    calls = []

    class Counted(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            calls.append(gradient)
            return gradient

    engine = engine_for(network())
    for _ in range(CLOSELY):
        one_pass(engine, lambda o: apart(Counted.apply(o)))
    assert len(calls) > CLOSELY
    calls.clear()
    for _ in range(PASSES):
        if engine.loss_watch._runs + 1 != 10:
            one_pass(engine, lambda o: apart(Counted.apply(o)))
        else:
            one_pass(engine, apart)
    assert len(calls) == PASSES - 1


def test_views_of_one_example_may_meet_and_those_of_others_may_not() -> None:
    def pairs(output: Tensor) -> Tensor:
        one, other = output.unflatten(0, (-1, 2)).unbind(1)
        return (1 - F.cosine_similarity(one, other)).sum()

    engine = engine_for(network(), views=2)
    for _ in range(3):
        announce(engine, 4)
        pairs(engine.model(torch.randn(8, 4))).backward()
        engine.release()
    engine = engine_for(network(), views=2)
    announce(engine, 4)
    with pytest.raises(NotPrivate, match=MEET):
        pairs(engine.model(torch.randn(8, 4)).roll(1, 0)).backward()


def test_the_rows_of_a_person_may_meet_and_those_of_others_may_not() -> None:
    def within(output: Tensor, sizes: list[int]) -> Tensor:
        return sum((centred(part) for part in output.split(sizes)), torch.zeros(()))

    for sizes, meets in (([3, 1, 2], False), ([2, 2, 2], True)):
        engine = engine_for(network(), views=3)
        chunk = Chunk(examples=3, first=True, last=True, groups=Groups(3, sizes=[3, 1, 2]))
        engine.sums.tickets.hand_over(chunk)
        output = engine.model(torch.randn(6, 4))
        if meets:
            with pytest.raises(NotPrivate, match=MEET):
                within(output, sizes).backward()
        else:
            within(output, sizes).backward()


def test_a_little_is_enough() -> None:
    engine = engine_for(network())
    with pytest.raises(NotPrivate, match=MEET):
        one_pass(engine, lambda o: apart(o) + 1e-3 * centred(o))


class Both(nn.Module):
    """Of two outputs one is computed from the other, or each from the input."""

    def __init__(self, above: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other, self.above = nn.Linear(4, 4), nn.Linear(4, 4), above

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        one = self.one(x)
        return one, self.other(one if self.above else x)


@pytest.mark.parametrize("above", [False, True])
def test_each_of_two_outputs_is_looked_at(above: bool) -> None:
    def loss(outputs: tuple[Tensor, Tensor], meeting: int) -> Tensor:
        return apart(outputs[0] + outputs[1]) + centred(outputs[meeting])

    for meeting in range(2):
        engine = engine_for(Both(above))
        with pytest.raises(NotPrivate, match=MEET):
            one_pass(engine, lambda outputs, meeting=meeting: loss(outputs, meeting))  # type: ignore[misc]
    engine = engine_for(Both(above))
    for _ in range(3):
        one_pass(engine, lambda outputs: apart(outputs[0]) + apart(outputs[1]) + apart(outputs[0] * outputs[1]))


def test_examples_that_meet_between_two_outputs_are_seen() -> None:
    engine = engine_for(Both(above=False))
    with pytest.raises(NotPrivate, match=MEET):
        one_pass(engine, lambda outputs: apart(outputs[0]) + (outputs[0] * outputs[1].roll(1, 0)).sum())


def test_a_model_that_returns_other_rows_is_let_through() -> None:
    class Shorter(nn.Sequential):
        drops = False

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[int(self.drops) :]

    engine = engine_for(Shorter(nn.Linear(4, 3)))
    one_pass(engine, apart)
    engine.model.drops = True
    announce(engine, 6)
    output = engine.model(torch.randn(6, 4))
    output.register_hook(lambda g: g * 2)
    apart(output).backward()


def test_one_example_meets_nobody() -> None:
    engine = engine_for(network())
    one_pass(engine, centred, rows=1)


def test_an_example_that_is_not_finite_does_not_hide_the_others_and_is_no_meeting() -> None:
    def batch() -> Tensor:
        x = torch.randn(6, 4)
        x[2] = torch.nan
        return x

    engine = engine_for(network())
    for _ in range(3):
        announce(engine, 6)
        apart(engine.model(batch())).backward()
        engine.release()
    engine = engine_for(network())
    announce(engine, 6)
    output = engine.model(batch()).exp()
    with pytest.raises(NotPrivate, match=MEET):
        (output * output.roll(1, 0)).sum().backward()


def test_what_cannot_be_differentiated_twice_is_let_through() -> None:
    class Once(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            return gradient

    class Numbers(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            if gradient.requires_grad:
                raise ValueError("numbers alone")
            return gradient

    for function in (Once, Numbers):
        engine = engine_for(network())
        announce(engine, 6)
        x = torch.randn(6, 4)
        apart(function.apply(engine.model(x))).backward()
        found = flat(sums_so_far(engine))
        engine.release()
        other = engine_for(network())
        announce(other, 6)
        apart(other.model(x)).backward()
        torch.testing.assert_close(found, flat(sums_so_far(other)))


def test_a_loss_with_a_gradient_of_its_own_and_several_losses_are_looked_at() -> None:
    def weighted(output: Tensor) -> None:
        losses = (output - output.mean(0)).square().sum(1)
        losses.backward(torch.arange(6.0))

    def several(output: Tensor) -> None:
        torch.autograd.backward([apart(output), centred(output)])

    for backward in (weighted, several):
        engine = engine_for(network())
        announce(engine, 6)
        with pytest.raises(NotPrivate, match=MEET):
            backward(engine.model(torch.randn(6, 4)))


def test_the_loss_of_another_model_in_between_is_not_looked_at_and_hides_nothing() -> None:
    engine, other = engine_for(network()), nn.Linear(4, 3)
    announce(engine, 6)
    output = engine.model(torch.randn(6, 4))
    centred(other(torch.randn(6, 4))).backward()
    with pytest.raises(NotPrivate, match=MEET):
        centred(output).backward()


def test_a_generator_s_loss_through_the_model_may_mix() -> None:
    engine, generator = engine_for(network()), nn.Linear(2, 4)
    announce(engine, 6)
    engine.model.requires_grad_(False)
    centred(engine.model(generator(torch.randn(6, 2)))).backward()
    engine.model.requires_grad_(True)
    centred(engine.model(generator(torch.randn(6, 2)))).backward(inputs=list(generator.parameters()))
    assert sums_so_far(engine) == {}


def test_a_run_without_a_backward_pass_leaves_nothing_behind() -> None:
    engine = engine_for(network())
    announce(engine, 6)
    output = engine.model(torch.randn(6, 4))
    gone = weakref.ref(output)
    output.register_hook(lambda g: g * 2)
    del output
    gc.collect()
    assert gone() is None


# Hooks.


def hooked(hook: Callable[[Tensor], Any], loss: Loss = apart, rows: int = 6) -> Tensor:
    engine = engine_for(network(), clip_norm=1e9)
    announce(engine, rows)
    torch.manual_seed(1)

    def run() -> Tensor:  # nobody has the output when the pass begins
        output = engine.model(torch.randn(rows, 4))
        output.register_hook(hook)
        return loss(output)

    run().backward()
    return flat(sums_so_far(engine))


def silently(change: Callable[[Tensor], Any]) -> Callable[[Tensor], None]:
    """A hook that returns nothing, and may change the gradient in place."""

    def lambda_(gradient: Tensor) -> None:
        change(gradient)

    return lambda_


@pytest.mark.parametrize(
    "hook",
    [
        lambda g: g / g.norm(),
        lambda g: g - g.mean(0),
        lambda g: g.clamp(max=g.quantile(0.9)),
        lambda g: g * (1e6 / g.norm()).clamp(max=1),
        lambda g: g.flip(0),
        lambda g: g * (g.norm(dim=1) >= g.norm(dim=1).max()).unsqueeze(1),
        silently(lambda g: g.sub_(g.mean(0))),
    ],
)  # fmt: skip
def test_a_hook_that_looks_at_other_rows_is_refused(hook: Any) -> None:
    with pytest.raises(NotPrivate, match=r"the hook .*lambda.* depends on other examples"):
        hooked(hook)


@pytest.mark.parametrize(
    "hook",
    [
        lambda g: g * 3,
        lambda g: g / g.norm(dim=1, keepdim=True),
        lambda g: g.clamp(-0.1, 0.1),
        lambda g: g + 0.1 * torch.randn_like(g),
        lambda g: g * torch.tensor([1.0, 0.0, 2.0]),
        silently(lambda g: g.sign_()),
        silently(lambda g: g.norm().item()),
        lambda g: torch.zeros_like(g),
    ],
)  # fmt: skip
def test_a_hook_that_treats_rows_alike_does_what_it_does_without_the_look(
    hook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = hooked(hook)
    monkeypatch.setattr("hoarfrost.gradients.output_hooks.watch", lambda *_: None)
    torch.testing.assert_close(hooked(hook), found)


def test_a_hook_that_only_looks_is_called_once_a_pass_with_what_the_pass_brings() -> None:
    engine = engine_for(network())
    seen: list[Tensor] = []
    for number in range(4):
        announce(engine, 6)
        output = engine.model(torch.randn(6, 4))
        output.register_hook(seen.append)
        output.retain_grad()
        output.exp().sum().backward()
        engine.release()
        assert len(seen) == number + 1
        torch.testing.assert_close(seen[-1], output.detach().exp())
        torch.testing.assert_close(output.grad, output.detach().exp())


def test_a_hook_that_fails_on_other_numbers_is_let_through() -> None:
    def particular(g: Tensor) -> Tensor:
        if bool((g.abs() > 100).any()):
            raise ValueError("too large")
        return g * 2

    hooked(particular)


# Leaves outside.


def beside(temperature: Tensor, passes: int = 1) -> tuple[Engine, Any]:
    engine = engine_for(network())
    for _ in range(passes):
        one_pass(engine, lambda o: apart(o * temperature))
    return engine, engine.loss_watch.outside.of_private_examples([temperature])


def test_a_leaf_of_the_loss_is_marked_as_long_as_it_has_that_gradient() -> None:
    temperature = nn.Parameter(torch.ones(()))
    engine, found = beside(temperature)
    assert found is temperature
    outside = engine.loss_watch.outside
    temperature.grad = None
    assert outside.of_private_examples([temperature]) is None
    temperature.square().backward()
    assert outside.of_private_examples([temperature]) is None
    one_pass(engine, lambda o: apart(o * temperature))
    temperature.square().backward()
    assert outside.of_private_examples([temperature]) is temperature, "added to what was there"


def test_gradients_set_to_zero_are_forgotten_before_a_pass_to_some_leaves() -> None:
    temperature = nn.Parameter(torch.ones(()))
    engine, _ = beside(temperature)
    torch.optim.SGD([temperature]).zero_grad(set_to_none=False)
    temperature.square().backward(inputs=[temperature])
    assert engine.loss_watch.outside.of_private_examples([temperature]) is None


def test_one_that_nobody_steps_is_let_be_and_later_passes_do_not_look_for_it() -> None:
    temperature = nn.Parameter(torch.ones(()))
    engine, _ = beside(temperature, passes=PASSES)
    temperature.grad = None
    one_pass(engine, lambda o: apart(o * temperature))
    assert engine.loss_watch.outside.of_private_examples([temperature]) is None
    engine.loss_watch.outside.stepping = True
    one_pass(engine, lambda o: apart(o * temperature))
    assert engine.loss_watch.outside.of_private_examples([temperature]) is temperature


def test_shifts_of_each_row_are_inputs_and_a_parameter_of_that_length_is_none() -> None:
    engine = engine_for(network())
    shift, parameter = torch.zeros(6, 4, requires_grad=True), nn.Parameter(torch.zeros(6, 1))
    announce(engine, 6)
    apart(engine.model(torch.randn(6, 4) + shift + parameter)).backward()
    assert engine.loss_watch.outside.of_private_examples([shift]) is None
    assert engine.loss_watch.outside.of_private_examples([shift, parameter]) is parameter


def test_passes_without_a_private_model_are_left_alone() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer = nn.Linear(4, 3)
        centred(layer(torch.randn(6, 4))).backward()
        torch.autograd.backward((layer(torch.randn(6, 4)).sum(),), None, None, False, None, list(layer.parameters()))
    assert layer.weight.grad is not None


def test_the_graph_of_a_loss_is_read_once_however_many_models_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that nobody uses any more listen until Python collects them: in a notebook, hundreds."""
    others = [engine_for(network()) for _ in range(20)]
    for other in others:
        announce(other, 6)
        other.model(torch.randn(6, 4))  # and waits for a backward pass that never comes
    engine = engine_for(network())
    announce(engine, 6)
    loss = apart(engine.model(torch.randn(6, 4)))
    reads: list[object] = []

    def nodes_of(tensors: object) -> set[Any]:
        reads.append(tensors)
        return loss_graph_nodes_of(tensors)  # type: ignore[arg-type]

    loss_graph_nodes_of = loss_graph.nodes_of
    monkeypatch.setattr(loss_graph, "nodes_of", nodes_of)
    loss.backward()
    assert len(reads) == 1
    assert sums_so_far(engine)
    assert not any(map(sums_so_far, others))
