"""Nothing of one pass survives into the next, and nothing that is not private gets through."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

from hoarfrost.clipping import Local
from hoarfrost.errors import NotPrivate
from hoarfrost.gradients import Engine
from tests import oracle
from tests.gradients.settings import Tied
from tests.support.engines import announce, clipped_sums, engine_for, flat, sums_so_far


def small() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3))


def squares(output: Tensor) -> Tensor:
    return output.square().sum()


def expected(x: Tensor, clip_norm: float = 1.0) -> Tensor:
    return flat(oracle.clipped_sum(oracle.gradients(small(), x, lambda model, b: squares(model(b))), clip_norm))


def assert_sums(engine: Any, x: Tensor) -> None:
    torch.testing.assert_close(flat(sums_so_far(engine)), expected(x), rtol=1e-4, atol=1e-6)


def the_step_is_right(engine: Any) -> bool:
    x = torch.randn(5, 4)
    return torch.allclose(flat(clipped_sums(engine, x, squares)), expected(x), rtol=1e-4, atol=1e-6)


@pytest.fixture
def engine() -> Any:
    return engine_for(small())


def test_a_forward_without_backward_leaves_nothing(engine: Any) -> None:
    announce(engine, 9)
    engine.model(torch.randn(9, 4) * 100)
    assert the_step_is_right(engine)


def test_a_second_forward_and_an_evaluation_in_between_change_nothing(engine: Any) -> None:
    x = torch.randn(5, 4)
    announce(engine, 5)
    loss = squares(engine.model(x))
    engine.model(torch.randn(5, 4))
    engine.model.eval()
    with torch.no_grad():
        engine.model(torch.randn(17, 4))
    engine.model.train()
    loss.backward()
    assert_sums(engine, x)


def test_an_exception_in_the_forward_pass_leaves_the_model_whole(engine: Any) -> None:
    announce(engine, 5)
    with pytest.raises(RuntimeError, match="shapes"):
        engine.model(torch.randn(5, 7))
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in engine.model.parameters())
    assert the_step_is_right(engine)


def test_an_exception_in_the_backward_pass_leaves_nothing(engine: Any) -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            raise ZeroDivisionError

    class Between(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Fails.apply(x) if self.training else x

    model = small()
    model[1] = nn.Sequential(nn.ReLU(), Between())
    broken = engine_for(model)
    announce(broken, 9)
    with pytest.raises(ZeroDivisionError):
        squares(model(torch.randn(9, 4) * 50)).backward()
    model.eval()
    assert the_step_is_right(broken)


def test_parameters_are_used_in_evaluation_mode_too_when_gradients_are_on(engine: Any) -> None:
    engine.model.eval()
    assert the_step_is_right(engine)


def test_asking_for_an_input_gradient_is_not_a_training_pass(engine: Any) -> None:
    x = torch.randn(5, 4, requires_grad=True)
    announce(engine, 5)
    (wanted,) = torch.autograd.grad(squares(engine.model(x)), x)
    (plain,) = torch.autograd.grad(squares(small()(x)), x)
    torch.testing.assert_close(wanted, plain)
    assert not sums_so_far(engine)
    squares(engine.model(x.detach())).backward()
    assert_sums(engine, x.detach())


def test_the_same_examples_cannot_enter_a_step_twice(engine: Any) -> None:
    announce(engine, 5)
    loss = squares(engine.model(torch.randn(5, 4)))
    loss.backward(retain_graph=True)
    with pytest.raises(NotPrivate, match="only once"):
        loss.backward()


def test_a_batch_may_be_covered_in_pieces(engine: Any) -> None:
    x = torch.randn(6, 4)
    announce(engine, 6)
    squares(engine.model(x[:4])).backward()
    squares(engine.model(x[4:])).backward()
    assert_sums(engine, x)


def test_two_calls_of_the_model_in_one_backward_pass_are_refused(engine: Any) -> None:
    """Halves of a batch would be clipped as if they were the same examples."""
    x = torch.randn(8, 4)
    announce(engine, 8)
    with pytest.raises(NotPrivate, match="two calls"):
        (squares(engine.model(x[:4])) + squares(engine.model(x[4:]))).backward()
    assert not sums_so_far(engine)
    assert the_step_is_right(engine)


def test_a_graph_of_an_earlier_batch_cannot_enter_a_later_step(engine: Any) -> None:
    announce(engine, 5)
    old = squares(engine.model(torch.randn(5, 4)))
    assert the_step_is_right(engine)  # of a later batch
    with pytest.raises(NotPrivate, match="did not draw"):
        old.backward()


def test_a_graph_of_an_earlier_batch_cannot_join_a_later_one(engine: Any) -> None:
    announce(engine, 5)
    old = squares(engine.model(torch.randn(5, 4)))
    announce(engine, 5)
    squares(engine.model(torch.randn(5, 4))).backward()
    with pytest.raises(NotPrivate, match="two Poisson batches"):
        old.backward()


def test_the_next_batch_may_be_fetched_between_forward_backward_and_step(engine: Any) -> None:
    """Each batch's examples enter that batch's own sum."""
    for fetch_after_backward in (False, True):
        x = torch.randn(5, 4)
        announce(engine, 5)
        loss = squares(engine.model(x))
        if fetch_after_backward:
            loss.backward()
            announce(engine, 7)
        else:
            announce(engine, 7)
            loss.backward()
        torch.testing.assert_close(flat(engine.release().sums), expected(x), rtol=1e-4, atol=1e-6)
        y = torch.randn(7, 4)
        squares(engine.model(y)).backward()
        torch.testing.assert_close(flat(engine.release().sums), expected(y), rtol=1e-4, atol=1e-6)


def test_reentrant_checkpointing_is_refused_rather_than_half_trained() -> None:
    class Reentrant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(checkpoint(self.a, x, use_reentrant=True))

    engine = engine_for(Reentrant())
    announce(engine, 5)
    with pytest.raises(NotPrivate):
        squares(engine.model(torch.randn(5, 4, requires_grad=True))).backward()


def test_mixing_is_seen_although_the_first_batch_has_one_example() -> None:
    engine = engine_for(Centres())
    clipped_sums(engine, torch.randn(1, 4), squares)
    announce(engine, 5)
    with pytest.raises(NotPrivate, match="changing one example"):
        engine.model(torch.randn(5, 4))


def test_a_model_is_made_private_once(engine: Any) -> None:
    with pytest.raises(NotPrivate, match="already"):
        engine_for(engine.model)
    assert engine_for(copy.deepcopy(engine.model))


def test_examples_that_the_loader_did_not_draw_are_refused(engine: Any) -> None:
    with pytest.raises(NotPrivate, match="did not draw"):
        squares(engine.model(torch.randn(5, 4))).backward()


def test_two_poisson_batches_cannot_share_a_step(engine: Any) -> None:
    for _ in range(2):
        announce(engine, 5)
        loss = squares(engine.model(torch.randn(5, 4)))
        if _ == 0:
            loss.backward()
    with pytest.raises(NotPrivate, match="two Poisson batches"):
        loss.backward()


def test_a_batch_broken_off_half_way_is_forgotten(engine: Any) -> None:
    announce(engine, 5, last=False)
    squares(engine.model(torch.randn(5, 4) * 100)).backward()
    assert the_step_is_right(engine)


def test_state_dict_and_plain_evaluation_are_unchanged(engine: Any) -> None:
    plain = small()
    assert list(engine.model.state_dict()) == list(plain.state_dict())
    assert type(engine.model[0]) is nn.Linear
    x = torch.randn(5, 4)
    with torch.no_grad():
        assert torch.equal(engine.model(x), plain(x))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_a_copy_of_a_private_model_is_a_plain_model_of_its_own(engine: Any, copied: Any) -> None:
    twin = copied(engine.model)
    with torch.no_grad():
        for p in engine.model.parameters():
            p.zero_()
    x = torch.randn(5, 4)
    assert torch.equal(twin(x), small()(x))
    twin(x).sum().backward()
    assert all(p.grad is not None for p in twin.parameters())


def test_a_submodule_called_by_itself_is_private_too(engine: Any) -> None:
    x = torch.randn(5, 4)
    announce(engine, 5)
    engine.rows = 0
    engine.model(x)  # the first batch locates the examples
    h = engine.model[0](x)
    squares(engine.model[2](torch.relu(h))).backward()
    assert_sums(engine, x)


def test_activation_checkpointing_gives_the_same_sums() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small()

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)

    x = torch.randn(5, 4)
    torch.testing.assert_close(
        flat(clipped_sums(engine_for(Checkpointed()), x, squares)), expected(x), rtol=1e-4, atol=1e-6
    )


def test_an_input_changed_in_place_after_its_layer_is_noticed() -> None:
    class Changes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.exp(self.a(x)).mul(1.0)
            y = self.b(h)
            h.add_(1)
            return y + h

    engine = engine_for(Changes())
    announce(engine, 5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squares(engine.model(torch.randn(5, 4))).backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_parameters_have_float32_norms_and_sums(dtype: torch.dtype) -> None:
    """4096 gradients of 10 have a norm whose square float16 cannot hold."""
    model = nn.Linear(64, 64, bias=False).to(dtype)
    engine = engine_for(model, 2.0)
    x = torch.full((3, 64), 10.0, dtype=dtype)
    sums = clipped_sums(engine, x, lambda output: output.sum())
    assert sums["weight"].dtype == torch.float32
    torch.testing.assert_close(float(sums["weight"].norm()), 6.0, rtol=1e-4, atol=0)


def test_autocast_changes_the_arithmetic_and_not_the_clipping() -> None:
    x = torch.randn(5, 4)
    engine = engine_for(small())
    announce(engine, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = engine.model(x)
    squares(output.float()).backward()
    torch.testing.assert_close(flat(sums_so_far(engine)), expected(x), rtol=0.05, atol=0.02)


def test_a_backward_pass_inside_of_autocast_does_not_round_the_clipping() -> None:
    torch.manual_seed(0)
    for layer, shape in ((nn.Linear(40, 50), (6, 3, 40)), (nn.Conv2d(40, 48, 3, padding=1), (6, 40, 4, 4))):
        engine = engine_for(layer, 0.5)
        announce(engine, 1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            squares(layer(torch.randn(shape)[:1]) * 100).backward()
        sums = sums_so_far(engine)
        assert all(total.dtype == torch.float32 for total in sums.values())
        assert 0.499 < float(flat(sums).norm()) <= 0.5 * (1 + 1e-5)


def test_random_numbers_in_the_model_are_not_taken_for_mixing() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(F.dropout(x, 0.5) + torch.randn_like(x))

    assert clipped_sums(engine_for(Noisy()), torch.randn(5, 4), squares)


def test_an_empty_batch_runs_through_a_model_that_cannot_run_on_nothing() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(x.view(len(x), -1))

    engine = engine_for(Views(), loss_reduction="mean")
    announce(engine, 0)
    output = engine.model(torch.zeros(0, 2, 4))
    assert output.shape == (0, 3)
    F.cross_entropy(output, torch.zeros(0, dtype=torch.long)).backward()
    released = engine.release()
    assert released is not None
    assert released.sums == {}
    announce(engine, 2)
    engine.model(torch.randn(2, 2, 4)).mean().backward()
    assert sums_so_far(engine)


class Flattens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.flatten(0, 1)).view(len(x), -1)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x.mean(0)
        return self.inner(x)


class OfItsOwn(nn.Module):
    """A parameter beside a layer, used in a way in which examples meet."""

    def __init__(self, use: Callable[[Tensor, Tensor], Tensor], *shape: int) -> None:
        super().__init__()
        self.inner, self.own, self.use = nn.Linear(4, 4), nn.Parameter(torch.ones(shape)), use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self.inner(x), self.own)


class SortsItsBatch(nn.Module):
    """By length, as older recurrent code does: the layer sees the examples in another order than the others do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        h = self.second(self.first(x)[order])
        return h[order.argsort()]


class SortsAndPacks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.lstm = nn.Linear(4, 4), nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        lengths, order = (x[:, 0, 0].abs() * 2).int().clamp(1, 3).sort(descending=True)
        packed = pack_padded_sequence(self.first(x)[order], lengths, batch_first=True)
        return self.lstm(packed)[1][0][0][order.argsort()]


def of_lengths(*lengths: int) -> Tensor:
    x = torch.randn(len(lengths), 3, 4)
    x[:, 0, 0] = torch.tensor(lengths) / 2
    return x


class Centres(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x - x.mean(0))


class CentresInTraining(nn.Module):
    """Mixes examples in training mode only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = F.dropout(self.first(x), 0.2, self.training)
        return self.second(h - h.mean(0) if self.training else h)


class MixesAtTheEnd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        return torch.softmax(h @ h.T, 1) @ h


REFUSED = {
    "mixing in training mode only": (
        CentresInTraining,
        torch.randn(5, 4),
        r"second \(Linear\), its input: changing one",
    ),
    "mixing after the last layer": (
        MixesAtTheEnd,
        torch.randn(5, 4),
        r"the model \(MixesAtTheEnd\), its output: changing",
    ),
    "a batch sorted inside of the model": (SortsItsBatch, torch.randn(5, 4), r"second \(Linear\).* another order"),
    "a batch sorted and packed": (SortsAndPacks, of_lengths(1, 3, 2, 1, 3), r"lstm \(LSTM\).* another order"),
    "a mean over the batch": (Centres, torch.randn(5, 4), r"inner \(Linear\), its input: changing one example"),
    "examples merged with positions": (Flattens, torch.randn(5, 3, 4), r"inner \(Linear\) .* cannot be attributed"),
    "a buffer that keeps data": (Counts, torch.randn(5, 4), "buffer seen changes"),
    "a bare matrix on merged examples": (
        lambda: OfItsOwn(lambda x, w: (x.flatten(0, 1) @ w).view_as(x), 4, 4),
        torch.randn(5, 3, 4),
        r"own parameter own in matmul.*no flattening",
    ),
    "a bare matrix over the batch": (
        lambda: OfItsOwn(lambda x, w: x - x.T @ w, 1),
        torch.randn(5, 4),
        r"own parameter own in matmul",
    ),
    "bare weights of a batch norm": (
        lambda: OfItsOwn(lambda x, w: F.batch_norm(x.mT, None, None, w, training=True), 4),
        torch.randn(5, 3, 4),
        "own parameter own in batch_norm.*over the batch",
    ),
    "bare weights of a norm over everything": (
        lambda: OfItsOwn(lambda x, w: F.layer_norm(x, x.shape, w.expand_as(x)), 4),
        torch.randn(5, 4),
        "one example",
    ),
    "a bare number times the batch's mean": (
        lambda: OfItsOwn(lambda x, w: x + w * x.mean(), 1),
        torch.randn(5, 4),
        "own parameter own in mul",
    ),
    "a bare matrix on a batch the other way round": (
        lambda: OfItsOwn(lambda x, w: (x.flip(0) @ w).flip(0), 4, 4),
        torch.randn(5, 4),
        "own parameters: changing one",
    ),
    "a bare token that is assigned to some": (
        lambda: OfItsOwn(lambda x, w: x.clone().index_put((x[:, 0] > 0,), w), 4),
        torch.randn(5, 4),
        "own parameter own in index_put",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_split_by_example_is_refused_by_name(kind: str) -> None:
    make, x, message = REFUSED[kind]
    engine = engine_for(make())
    announce(engine, len(x))
    with pytest.raises(NotPrivate, match=message):
        squares(engine.model(x)).backward()
    assert not sums_so_far(engine)
    assert all(p.grad is None for p in engine.model.parameters())


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.BatchNorm1d(4), r"1 \(BatchNorm1d\) .*make_compatible"),
        (nn.BatchNorm1d(4, affine=False), r"1 \(BatchNorm1d\)"),
        (nn.BatchNorm1d(4, track_running_stats=False).eval(), r"1 \(BatchNorm1d\)"),
        (nn.BatchNorm1d(4).requires_grad_(False), r"1 \(BatchNorm1d\)"),
        (nn.SyncBatchNorm(4), r"1 \(SyncBatchNorm\)"),
        (nn.InstanceNorm1d(4, track_running_stats=True), r"1 \(InstanceNorm1d\) .* running statistics"),
        (nn.Embedding(4, 4, max_norm=1.0), "1: max_norm"),
        (nn.Embedding(4, 4, scale_grad_by_freq=True), "1: scale_grad_by_freq"),
        (nn.EmbeddingBag(4, 4, max_norm=1.0), "1: max_norm"),
    ],
    ids=str,
)
def test_layers_that_mix_examples_are_refused_by_name(layer: nn.Module, message: str) -> None:
    with pytest.raises(NotPrivate, match=message):
        engine_for(nn.Sequential(nn.Linear(4, 4), layer))


def test_fixed_batch_norm_that_is_switched_to_training_is_refused() -> None:
    engine = engine_for(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4).eval()))
    engine.model.train()
    announce(engine, 5)
    with pytest.raises(NotPrivate, match="BatchNorm1d"):
        engine.model(torch.randn(5, 4))


def test_a_frozen_parameter_can_be_thawed_and_is_then_guarded_and_trained() -> None:
    model = small()
    model[0].requires_grad_(False)
    engine = Engine(model, dict(model.named_parameters()), Local(1.0), loss_reduction="sum")
    model[0].requires_grad_(True)
    assert the_step_is_right(engine)


def test_tying_counts_the_summed_gradient_and_not_the_sum_of_norms() -> None:
    """Understating a tied weight's norm is a known defect: the two uses' gradients may add up."""
    torch.manual_seed(0)
    model = Tied()
    x = torch.randint(11, (8, 5))
    per_example = oracle.gradients(model, x, lambda m, b: squares(m(b)) * 10)
    engine = engine_for(copy.deepcopy(model), clip_norm=0.5)
    got = flat(clipped_sums(engine, x, lambda output: squares(output) * 10))
    torch.testing.assert_close(got, flat(oracle.clipped_sum(per_example, 0.5)), rtol=1e-4, atol=1e-6)


def test_other_objects_in_the_place_of_parameters_are_refused_by_name(engine: Any) -> None:
    """The optimizer would go on with the old ones, and nothing would be trained."""
    assert the_step_is_right(engine)
    for module in (engine.model[0], engine.model[2]):
        for name, p in list(module.named_parameters()):
            setattr(module, name, nn.Parameter(p.detach().clone()))
    with pytest.raises(NotPrivate, match=r"0\.weight is another object than at make_private"):
        the_step_is_right(engine)
