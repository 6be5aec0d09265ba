"""One loss per example: `optimizer.backward(losses)`, and the losses of `hoarfrost.losses`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import hoarfrost
from hoarfrost import losses
from hoarfrost.errors import InvalidValue, NotPrivate
from tests.clipping.settings import TABLE, Style
from tests.support.clipping import CASES, Case, Run, run_of
from tests.support.engines import announce, engine_for


class PerExample(Run):
    """A run whose loop writes `optimizer.backward(losses)`."""

    def backward(self, x: Tensor) -> None:
        self.private.optimizer.backward(self.loss(self.private.model, x))


def assert_equals_the_oracle(style: Style, case: Case, number: int = 2) -> None:
    run, taken = PerExample(style, case), 0
    for step in run.steps(number):
        taken += 1
        rough = case.dtype == torch.bfloat16
        for name, want in step.clipped.sums.items():
            got = step.gradients[name]
            tolerance = {"rtol": 2e-2, "atol": 2e-2} if rough else {"rtol": 2e-4, "atol": 2e-5}
            torch.testing.assert_close(got, want.to(got.dtype), **tolerance, msg=lambda m, n=name: f"{n}: {m}")
        assert step.noisy.statistics == pytest.approx(step.clipped.counts, rel=2e-2 if rough else 1e-4)
    assert taken


@pytest.mark.parametrize("style", TABLE, ids=repr)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_every_clipping_style_equals_the_oracle_whatever_the_loss_reduction(style: Style, reduction: str) -> None:
    assert_equals_the_oracle(style, Case("plain", reduction=reduction))


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_chunks_views_dtypes_and_masks_equal_the_oracle(case: Case) -> None:
    assert_equals_the_oracle(TABLE[0], case)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("views", [1, 3])
def test_it_is_the_plain_backward(dtype: torch.dtype, reduction: str, views: int) -> None:
    case = Case("any", dtype=dtype, reduction=reduction, views=views)
    plain, one = (next(kind(TABLE[0], case).steps(1)).gradients for kind in (Run, PerExample))
    rough = 2e-2 if dtype == torch.bfloat16 else 1e-5
    for name, want in plain.items():
        torch.testing.assert_close(one[name], want, rtol=rough, atol=rough)


def test_an_empty_batch_is_a_step_of_noise() -> None:
    run = PerExample(TABLE[0], sample_rate=1e-9, noise_multiplier=1.0, steps=3)
    for x in run.private.loader:
        run.backward(x)
        run.private.optimizer.step()
        break
    assert run.private.steps_taken == 1
    assert all((p.grad != 0).all() for p in run.model.parameters())


def test_half_precision_is_not_warned_of_where_nothing_is_divided() -> None:
    run = PerExample(TABLE[0], Case("half", dtype=torch.bfloat16, reduction="mean"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(run.steps(1))


SHAPES = {
    "a single number": (lambda losses: losses.mean(), 'reduction="none"'),
    "[rows, 1]": (lambda losses: losses[:, None], r"\[rows, 1\].*losses.flatten\(\)"),
    "[rows, tokens]": (lambda losses: losses[:, None] * torch.ones(3), r"\[rows, 3\].*token_cross_entropy"),
    "one too few": (lambda losses: losses[1:], "another number of losses"),
    "one too many": (lambda losses: torch.cat([losses, losses[:1]]), "another number of losses"),
    "a broadcast one": (lambda losses: losses.mean()[None], "another number of losses"),
}


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("views", [1, 2])
def test_another_shape_is_refused_with_what_to_write(kind: str, views: int) -> None:
    make, message = SHAPES[kind]
    run = run_of(hoarfrost.clip.Local(1.0), Case("any", views=views))
    for x in run.private.loader:
        found = run.loss(run.model, x)
        with pytest.raises(NotPrivate, match=message) as caught:
            run.private.optimizer.backward(make(found))
        assert str(len(x)) not in str(caught.value)  # the size of a batch is private
        run.private.optimizer.backward(run.loss(run.model, x))  # nothing of what was refused is left
        run.private.optimizer.step()
        break
    want = next(Run(TABLE[0], run.case).steps(1)).gradients
    for name, p in run.model.named_parameters():
        torch.testing.assert_close(p.grad * run.private.expected_batch, want[name])


def test_what_is_no_tensor_is_refused() -> None:
    run = run_of(hoarfrost.clip.Local(1.0))
    with pytest.raises(InvalidValue, match="a tensor with one loss per example, got list"):
        run.private.optimizer.backward([1.0])


def test_a_pass_that_failed_leaves_no_trace_for_the_plain_one() -> None:
    model = nn.Linear(3, 2)
    engine = engine_for(model, 1e6, loss_reduction="mean")
    announce(engine, 4)
    x = torch.randn(4, 3)
    with pytest.raises(RuntimeError), engine.added_up(4):
        raise RuntimeError
    model(x).sum(1).mean().backward()
    torch.testing.assert_close(engine.sums.total.sums["weight"], x.sum(0).expand(2, 3))


MEETING = {
    "contrastive": lambda output: F.cross_entropy(output @ output.T, torch.arange(len(output)), reduction="none"),
    "[B, 1] against [B]": lambda output: ((output[:, :1] - output[:, 1]) ** 2).mean(1),
    "divided by their sum": lambda output: output.square().sum(1) / output.square().sum(),
    "centred": lambda output: (output - output.mean(0)).square().sum(1),
    "neighbours": lambda output: (output * output.roll(1, 0)).sum(1),
    "neighbours but one": lambda output: (output * output.roll(2, 0)).sum(1),
    "a little of the others": lambda output: (output + 1e-4 * output.mean(0)).square().sum(1),
}


def given(losses: Callable[[Tensor], Tensor], views: int = 1) -> Tensor:
    """What one step of a model makes of these losses of its outputs, without noise and clipping."""
    torch.manual_seed(4)
    model, x = nn.Linear(4, 3), torch.randn(8, 4)
    private = hoarfrost.make_private(
        model, torch.optim.SGD(model.parameters(), lr=1.0), TensorDataset(x), sample_rate=1.0, noise_multiplier=0.0,
        delta=1e-3, steps=3, views=views, clip=hoarfrost.clip.Local(1e6),
    )  # fmt: skip
    for (x,) in private.loader:
        private.optimizer.backward(losses(model(x)))
    return private.optimizer.engine.sums.total.sums["weight"]


@pytest.mark.parametrize("kind", MEETING)
@pytest.mark.parametrize("views", [1, 2])
def test_losses_through_which_examples_meet_are_refused(kind: str, views: int) -> None:
    with pytest.raises(NotPrivate, match="depends on other examples"):
        given(MEETING[kind], views)


def test_views_of_an_example_may_meet_and_leaves_outside_of_the_model_are_left_alone() -> None:
    outside = torch.ones((), requires_grad=True)

    def losses(output: Tensor) -> Tensor:
        own = output.unflatten(0, (-1, 2)).mean(1, keepdim=True).expand(-1, 2, -1).flatten(0, 1)
        return own.square().sum(1) * outside

    assert given(losses, views=2).any()
    assert outside.grad is not None
    once = outside.grad.clone()
    with torch.no_grad():
        torch.manual_seed(4)
        model, x = nn.Linear(4, 3), torch.randn(8, 4)
        torch.testing.assert_close(once, 2 * model(x).square().sum())  # one gradient, not one for every look


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(4, 2) for _ in range(3))

    def forward(self, x: Tensor) -> list[Tensor]:
        return [head(x) for head in self.heads]


def looks(losses: Callable[[int, Any], Tensor], batches: int, rows: int = 8, bad: float = 0.0) -> None:
    """Batch after batch, each looked at as `optimizer.backward` does it."""
    torch.manual_seed(4)
    engine = engine_for(Heads(), 1e6)
    for number in range(batches):
        announce(engine, rows)
        x = torch.randn(rows, 4)
        x[0] += bad
        engine.apart.check(engine, losses(number, engine.model(x)))
        engine.release()


@pytest.mark.parametrize("head", range(3))
def test_examples_that_meet_in_one_of_several_layers_are_seen(head: int) -> None:
    def losses(_: int, outputs: list[Tensor]) -> Tensor:
        own = sum((output.square().sum(1) for output in outputs), torch.zeros(()))
        return own + (outputs[head] * outputs[head].roll(1, 0)).sum(1)

    with pytest.raises(NotPrivate, match="depends on other examples"):
        looks(losses, 1)


def test_losses_that_begin_to_meet_are_seen_in_the_first_three_batches_and_when_they_are_made_of_other_things() -> None:
    def losses(number: int, outputs: list[Tensor], begin: int) -> Tensor:
        return outputs[0].square().sum(1) if number < begin else MEETING["centred"](outputs[0])

    for begin in (0, 1, 2, 3, 7):
        with pytest.raises(NotPrivate, match="depends on other examples"):
            looks(lambda number, outputs, begin=begin: losses(number, outputs, begin), begin + 1)

    def weighed(number: int, outputs: list[Tensor], begin: int) -> Tensor:
        """The same operations all along, whose numbers let examples meet later."""
        return (outputs[0] - float(number >= begin) * outputs[0].mean(0)).square().sum(1)

    with pytest.raises(NotPrivate, match="depends on other examples"):
        looks(lambda number, outputs: weighed(number, outputs, 2), 3)
    looks(lambda number, outputs: weighed(number, outputs, 3), 4)


def test_an_example_that_is_not_finite_hides_nothing() -> None:
    with pytest.raises(NotPrivate, match="depends on other examples"):
        looks(lambda _, outputs: MEETING["neighbours"](outputs[0]), 3, bad=math.nan)
    looks(lambda _, outputs: outputs[0].square().sum(1), 3, bad=math.nan)


@pytest.mark.parametrize("words", [1, 5])
def test_a_layer_behind_one_of_zeros_has_no_gradients_yet(words: int) -> None:
    """As LoRA begins: norms are rounded up, and what they are rounded up to is nobody's gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 4, bias=False), nn.Linear(4, 300, bias=False), nn.Flatten(), nn.LazyLinear(2))
    model(torch.zeros(1, words, 300))
    nn.init.zeros_(model[1].weight)
    data = TensorDataset(torch.randn(40, words, 300), torch.randint(2, (40,)))
    model, optimizer, loader = hoarfrost.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=20, noise_multiplier=1.0, delta=1e-3
    )
    for x, y in loader:
        optimizer.backward(losses.cross_entropy(model(x), y))
        optimizer.step()


def test_a_look_draws_nothing_and_keeps_nothing() -> None:
    torch.manual_seed(4)
    engine = engine_for(Heads(), 1e6)
    announce(engine, 8)
    losses = engine.model(torch.randn(8, 4))[0].square().sum(1)
    before = torch.get_rng_state()
    engine.apart.check(engine, losses)
    assert torch.equal(torch.get_rng_state(), before)
    assert not engine._passes
    looks(lambda _, outputs: MEETING["centred"](outputs[0]), 3, rows=1)  # with whom


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.body, self.head, self.reentrant = nn.Linear(4, 5), nn.Linear(5, 3), reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = x.requires_grad_() if self.reentrant else x  # or the segment would have no gradient
        return self.head(checkpoint(lambda x: torch.tanh(self.body(x)), x, use_reentrant=self.reentrant))


def checkpointed(reentrant: bool, per_example: bool) -> dict[str, Tensor]:
    torch.manual_seed(5)
    private = checked(Checkpointed(reentrant), None, noise_multiplier=0.0)
    for x, y in private.loader:
        found = F.cross_entropy(private.model(x), y, reduction="none")
        if per_example:
            private.optimizer.backward(found)
        else:
            found.mean().backward()
    return private.optimizer.engine.sums.total.sums


def test_checkpointing_works_as_in_the_plain_backward() -> None:
    one, plain = checkpointed(False, per_example=True), checkpointed(False, per_example=False)
    assert set(one) == {"body.weight", "body.bias", "head.weight", "head.bias"}
    for name, want in plain.items():
        torch.testing.assert_close(one[name], want)
    for per_example in (True, False):
        with pytest.raises(NotPrivate):
            checkpointed(True, per_example)


# hoarfrost.losses, each against torch's loss of one example alone.

B, T, K = 5, 4, 3


def logits(*shape: int) -> Tensor:
    return torch.randn(*shape) * 2


def token_targets() -> Tensor:
    targets = torch.randint(K, (B, T))
    targets[0, 2:] = targets[1, 1:] = targets[3] = -100
    return targets


WEIGHT = torch.tensor([1.0, 100.0, 7.0])


def smoothed(row: Tensor, target: Tensor, smoothing: float) -> Tensor:
    """From the definition: torch divides by the weight even where there is one example."""
    logs = row.log_softmax(0)
    return -(1 - smoothing) * WEIGHT[target] * logs[target] - smoothing / K * (WEIGHT * logs).sum()


def own_tokens(row: Tensor, target: Tensor, reduction: str) -> Tensor:
    kept = target != -100
    if not kept.any():
        return torch.tensor(0.0)
    return F.cross_entropy(row[kept], target[kept], reduction=reduction)


LOSSES: dict[str, tuple[Any, Any, Any]] = {
    "cross entropy": (
        lambda: (logits(B, K), torch.randint(K, (B,))), losses.cross_entropy, F.cross_entropy,
    ),
    "shares of classes": (
        lambda: (logits(B, K), torch.rand(B, K).softmax(1)), losses.cross_entropy,
        lambda row, y: -(y * row.log_softmax(0)).sum(),
    ),
    "weighted": (
        lambda: (logits(B, K), torch.randint(K, (B,))),
        lambda o, y: losses.cross_entropy(o, y, weight=WEIGHT), lambda row, y: WEIGHT[y] * F.cross_entropy(row, y),
    ),
    "weighted and smoothed": (
        lambda: (logits(B, K), torch.randint(K, (B,))),
        lambda o, y: losses.cross_entropy(o, y, weight=WEIGHT.tolist(), label_smoothing=0.2),
        lambda row, y: smoothed(row, y, 0.2),
    ),
    "tokens, mean": (
        lambda: (logits(B, T, K), token_targets()), losses.token_cross_entropy,
        lambda row, y: own_tokens(row, y, "mean"),
    ),
    "tokens, sum": (
        lambda: (logits(B, T, K), token_targets()),
        lambda o, y: losses.token_cross_entropy(o, y, reduction="sum"), lambda row, y: own_tokens(row, y, "sum"),
    ),
    "tokens, another padding, weights": (
        lambda: (logits(B, T, K), torch.randint(K, (B, T))),
        lambda o, y: losses.token_cross_entropy(o, y, ignore_index=0, weight=WEIGHT, reduction="sum"),
        lambda row, y: (F.cross_entropy(row, y, reduction="none") * WEIGHT[y] * (y != 0)).sum(),
    ),
    "binary": (
        lambda: (logits(B), torch.randint(2, (B,))), losses.binary_cross_entropy,
        lambda row, y: -F.logsigmoid(row if y else -row),
    ),
    "several labels, weighted": (
        lambda: (logits(B, K), torch.randint(2, (B, K)).float()),
        lambda o, y: losses.binary_cross_entropy(o, y, pos_weight=WEIGHT),
        lambda row, y: -(WEIGHT * y * F.logsigmoid(row) + (1 - y) * F.logsigmoid(-row)).mean(),
    ),
    "squared error": (lambda: (logits(B), logits(B)), losses.squared_error, lambda row, y: (row - y) ** 2),
    "squared error of images": (
        lambda: (logits(B, 2, 3), logits(B, 2, 3)), losses.squared_error, lambda row, y: ((row - y) ** 2).mean(),
    ),
    "huber": (
        lambda: (logits(B), logits(B)), lambda o, y: losses.huber(o, y, delta=0.5),
        lambda row, y: F.huber_loss(row, y, delta=0.5),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_loss_is_that_of_the_example_alone(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    batch, loss, alone = LOSSES[kind]
    outputs, targets = batch()
    outputs = outputs.to(dtype)
    targets = targets.to(dtype) if targets.is_floating_point() else targets
    found = loss(outputs, targets)
    expected = torch.stack([alone(row.float(), y) for row, y in zip(outputs, targets, strict=True)])
    assert found.shape == (B,)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected.float())


@pytest.mark.parametrize("kind", LOSSES)
def test_a_batch_without_examples_has_no_losses(kind: str) -> None:
    batch, loss, _ = LOSSES[kind]
    outputs, targets = batch()
    found = loss(outputs[:0].requires_grad_(), targets[:0])
    assert found.shape == (0,)
    found.sum().backward()


WRONG = {
    "[B, 1] against [B]": lambda: losses.squared_error(torch.zeros(B, 1), torch.zeros(B)),
    "[B] against [B, 1]": lambda: losses.huber(torch.zeros(B), torch.zeros(B, 1)),
    "[B, 1] against [B], binary": lambda: losses.binary_cross_entropy(torch.zeros(B, 1), torch.zeros(B)),
    "another number": lambda: losses.squared_error(torch.zeros(B), torch.zeros(1)),
    "numbers": lambda: losses.squared_error(torch.tensor(0.0), torch.tensor(0.0)),
    "shares of other classes": lambda: losses.cross_entropy(torch.zeros(B, 3), torch.zeros(B, 2)),
    "classes [B, 1]": lambda: losses.cross_entropy(torch.zeros(B, 3), torch.zeros(B, 1, dtype=torch.long)),
    "tokens as classes": lambda: losses.cross_entropy(torch.zeros(B, 3, 2), torch.zeros(B, 2, dtype=torch.long)),
    "flattened tokens": lambda: losses.token_cross_entropy(torch.zeros(B * 2, 3), torch.zeros(B * 2, dtype=torch.long)),
    "tokens elsewhere": lambda: losses.token_cross_entropy(torch.zeros(B, 3, 2), torch.zeros(B, 2, dtype=torch.long)),
    "no reduction": lambda: losses.token_cross_entropy(
        torch.zeros(B, 2, 3), torch.zeros(B, 2, dtype=torch.long), reduction="none"
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_what_would_be_broadcast_is_refused_without_the_batch_s_size(kind: str) -> None:
    with pytest.raises(InvalidValue, match="must") as caught:
        WRONG[kind]()
    assert str(B) not in str(caught.value)


def test_a_rare_class_with_a_large_weight_moves_a_step_by_the_bound_alone() -> None:
    """What moves the released sum by many bounds with torch's weighted mean."""

    def released(labels: Tensor, per_example: bool) -> Tensor:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        x = torch.randn(len(labels), 3, generator=torch.Generator().manual_seed(1)) * 0.1
        private = hoarfrost.make_private(
            model, torch.optim.SGD(model.parameters(), lr=1.0), TensorDataset(x, labels),
            sample_rate=1.0, noise_multiplier=0.0, delta=1e-3, steps=1,
        )  # fmt: skip
        weight = torch.tensor([1.0, 1000.0])
        for x, y in private.loader:
            if per_example:
                private.optimizer.backward(losses.cross_entropy(model(x), y, weight=weight))
            else:
                F.cross_entropy(model(x), y, weight=weight).backward()
            private.optimizer.step()
        return torch.cat([p.grad.flatten() for p in model.parameters()]) * private.expected_batch

    labels = torch.zeros(40, dtype=torch.long)
    more = torch.cat([labels, torch.ones(1, dtype=torch.long)])
    moved = {kind: float((released(more, kind) - released(labels, kind)).norm()) for kind in (True, False)}
    assert moved[True] <= 1 + 1e-5
    assert moved[False] > 5
    assert math.isfinite(moved[False])


# make_private(..., loss=): the loss is checked on the first batch.


def classifier() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 2))


def classified(number: int = 30) -> TensorDataset:
    torch.manual_seed(1)
    return TensorDataset(torch.randn(number, 4), torch.arange(number) % 2)


def checked(model: nn.Module, loss: Any, dataset: Any = None, **options: Any) -> Any:
    settings = {"sample_rate": 1.0, "noise_multiplier": 1.0, "delta": 1e-3, "steps": 3, "seed": 3} | options
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return hoarfrost.make_private(model, optimizer, dataset or classified(), loss=loss, **settings)


def trained(loss: Any, **options: Any) -> list[Tensor]:
    model = classifier()
    private = checked(model, loss, **options)
    torch.manual_seed(7)
    while private.steps_taken < 3:
        for x, y in private.loader:
            F.cross_entropy(model(x), y).backward()
            private.optimizer.step()
    return [p.detach() for p in model.parameters()]


def logits_and_labels(output: Tensor, batch: Any) -> Tensor:
    return F.cross_entropy(output, batch[1])


@pytest.mark.parametrize("options", [{}, {"views": 3}, {"max_physical_batch": 7}], ids=str)
def test_a_checked_run_is_the_same_run(options: dict[str, Any]) -> None:
    for plain, looked_at in zip(trained(None, **options), trained(logits_and_labels, **options), strict=True):
        assert torch.equal(plain, looked_at)


@pytest.mark.parametrize("views", [1, 3])
def test_a_loss_that_mixes_is_refused_before_the_loop_gets_a_batch(views: int) -> None:
    model, weight = classifier(), torch.tensor([1.0, 100.0])
    before = [p.clone() for p in model.parameters()]
    private = checked(model, lambda o, b: F.cross_entropy(o, b[1], weight=weight), views=views)
    with pytest.raises(NotPrivate, match=r"the loss: .*optimizer\.backward\(losses\)"):
        next(iter(private.loader))
    assert all(torch.equal(p, was) for p, was in zip(model.parameters(), before, strict=True))
    assert private.steps_taken == 0
    assert private.charged == 1  # it was drawn


def test_views_of_one_example_may_meet_in_its_loss() -> None:
    def over_views(output: Tensor, batch: Any) -> Tensor:
        return logits_and_labels(output.unflatten(0, (-1, 3)).mean(1).repeat_interleave(3, 0), batch)

    next(iter(checked(classifier(), over_views, views=3).loader))
    with pytest.raises(NotPrivate, match="the loss"):
        next(iter(checked(classifier(), lambda o, b: logits_and_labels(o - o.mean(0), b), views=3).loader))


def test_batches_of_one_or_two_examples_are_waited_out() -> None:
    seen: list[int] = []

    def loss(output: Tensor, batch: Any) -> Tensor:
        seen.append(len(output))
        return logits_and_labels(output - output.mean(0), batch)

    private = checked(classifier(), loss, sample_rate=0.05, steps=1000)
    sizes: list[int] = []

    def loop() -> None:
        while True:
            sizes.extend(len(x) for x, _ in private.loader)

    with pytest.raises(NotPrivate, match="the loss"):
        loop()
    assert sizes
    assert max(sizes) < 3
    assert max(seen) >= 3


def test_a_batch_that_the_loop_changes_first_is_named() -> None:
    data = TensorDataset(torch.randint(9, (30, 4)), torch.arange(30) % 2)
    private = checked(classifier(), logits_and_labels, data)
    with pytest.raises(InvalidValue, match=r"as the loader gives it.*check_independence"):
        next(iter(private.loader))


def summed(output: Tensor, batch: Any) -> Tensor:
    return F.cross_entropy(output, batch[1], reduction="sum")


def test_the_loss_is_checked_for_what_make_private_takes_it_for() -> None:
    next(iter(checked(classifier(), summed, loss_reduction="sum").loader))
    for loss, reduction in ((summed, "mean"), (logits_and_labels, "sum")):
        with pytest.raises(NotPrivate, match="the loss"):
            next(iter(checked(classifier(), loss, loss_reduction=reduction).loader))


def test_the_loss_of_sequences_with_time_first_is_checked_along_the_examples() -> None:
    """As many steps as examples: only `batch_first` says which are which."""

    def collate(examples: list[Any]) -> Any:
        return torch.stack([x for x, _ in examples], 1), torch.stack([y for _, y in examples])

    data = DataLoader([(torch.randn(6, 4), torch.tensor(k % 2)) for k in range(6)], batch_size=6, collate_fn=collate)

    def over_time(output: Tensor, batch: Any) -> Tensor:
        return F.cross_entropy((output - output.mean(0)).square().sum(0), batch[1])

    def over_examples(output: Tensor, batch: Any) -> Tensor:
        return F.cross_entropy((output - output.mean(1, keepdim=True)).square().sum(0), batch[1])

    for loss, mixes in ((over_time, False), (over_examples, True)):
        model = nn.Linear(4, 2)
        private = hoarfrost.make_private(
            model, torch.optim.SGD(model.parameters(), lr=0.1), data, loss=loss, noise_multiplier=1.0, delta=1e-3,
            batch_first=False,
        )  # fmt: skip
        if mixes:
            with pytest.raises(NotPrivate, match="the loss"):
                next(iter(private.loader))
        else:
            next(iter(private.loader))


def test_one_batch_is_enough_and_one_that_is_not_finite_is_none() -> None:
    seen: list[int] = []

    def loss(output: Tensor, batch: Any) -> Tensor:
        seen.append(len(output))
        return logits_and_labels(output, batch)

    private = checked(classifier(), loss)
    next(iter(private.loader))
    looked = len(seen)
    next(iter(private.loader))
    assert len(seen) == looked > 0

    x, y = classified().tensors
    broken = TensorDataset(torch.cat([torch.full((1, 4), torch.nan), x[1:]]), y)

    def mixing(output: Tensor, batch: Any) -> Tensor:
        return logits_and_labels(output - output.mean(0), batch)

    private = checked(classifier(), mixing, broken, sample_rate=0.5, steps=40)

    def loop() -> None:
        while True:
            for _ in private.loader:
                pass

    with pytest.raises(NotPrivate, match="the loss"):
        loop()
    assert private.charged > 1, "the first batch has it, and shows nothing"
