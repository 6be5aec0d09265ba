"""Models that are handed tensors with the examples in other dimensions than the first, or with none."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from hoarfrost.errors import NotPrivate
from hoarfrost.gradients.arguments import Examples, examples_in, pick
from tests import oracle
from tests.support.engines import announce, engine_for


class Recurrent(nn.Module):
    """Words [examples, time] beside states [layers, examples, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(11, 3), nn.LSTM(3, 4, num_layers=2, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, words: Tensor, state: tuple[Tensor, Tensor]) -> Tensor:
        return self.head(self.lstm(self.words(words), state)[0][:, -1])


def batch(rows: int, time: int = 5) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    return torch.randint(11, (rows, time)), (torch.randn(2, rows, 4), torch.randn(2, rows, 4))


def total(model: nn.Module, inputs: tuple[Tensor, tuple[Tensor, Tensor]]) -> Tensor:
    return model(*inputs).square().sum()


# As many rows as the state has layers, as it is wide, and as there are words; one; and more than are looked at.
@pytest.mark.parametrize("rows", [2, 4, 5, 1, 3, 9])
def test_states_are_taken_apart_with_their_words(rows: int) -> None:
    torch.manual_seed(1)
    model, inputs = Recurrent(), batch(rows)
    one_by_one = [pick(inputs, (0, 1, 1), [row]) for row in range(rows)]
    plain, each = copy.deepcopy(model), []
    for one in one_by_one:
        plain.zero_grad()
        total(plain, one).backward()
        each.append({name: p.grad.clone() for name, p in plain.named_parameters()})
    norm = oracle.halving_norm(each)
    expected = oracle.clipped_sum(each, norm)
    engine = engine_for(model, norm)
    announce(engine, rows)
    total(model, inputs).backward()
    for name, got in engine.release().sums.items():
        torch.testing.assert_close(got, expected[name], rtol=2e-4, atol=1e-5 * norm)


def test_where_they_were_is_remembered() -> None:
    torch.manual_seed(1)
    engine = engine_for(Recurrent())
    for rows in (4, 2, 7, 0, 3):
        announce(engine, rows)
        total(engine.model, batch(rows)).backward()
        assert engine.release() is not None
    assert engine.prober._arguments == (0, 1, 1)
    engine.model.eval()
    announce(engine, 2)
    total(engine.model, batch(2)).backward()
    assert engine.prober._arguments == (0, 1, 1)


def test_an_empty_batch_may_come_first() -> None:
    engine = engine_for(Recurrent())
    announce(engine, 0)
    found = engine.model(*batch(0))
    found.square().sum().backward()
    assert found.shape == (0, 2)


class MeanOfStates(Recurrent):
    def forward(self, words: Tensor, state: tuple[Tensor, Tensor]) -> Tensor:
        mean = state[0].mean(1, keepdim=True).expand_as(state[0])
        return super().forward(words, (mean, state[1]))


def test_states_that_mix_are_seen() -> None:
    engine = engine_for(MeanOfStates())
    announce(engine, 6)
    with pytest.raises(NotPrivate, match=r"lstm \(LSTM\), its input: changing one example"):
        engine.model(*batch(6))


def test_an_error_of_the_model_s_own_is_told_as_it_is() -> None:
    engine = engine_for(Recurrent())
    announce(engine, 4)
    words, (h, c) = batch(4)
    with pytest.raises(RuntimeError, match="Expected hidden") as found:
        engine.model(words, (h[:1], c))
    assert any("taken out of every tensor" in note for note in found.value.__notes__)


class TwoTowers(nn.Module):
    """Two kinds of examples in one, and a mask that belongs to one of them, or to none."""

    def __init__(self, masked: bool, size: int | None = None) -> None:
        super().__init__()
        self.words, self.layer, self.masked, self.size = nn.Embedding(11, 3), nn.Linear(3, 3), masked, size

    def forward(self, x: Tensor, words: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        assert self.size in (None, len(x)), "other batches are not taken"
        x = self.layer(x).masked_fill(mask[..., None], 0) if self.masked else self.layer(x)
        return x.mean(1), self.words(words).mean(1)


def towers(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(rows, 4, 3), torch.randint(11, (rows, 4)), torch.tensor([False, True, False, False])


@pytest.mark.parametrize("rows", [4, 2, 5])
def test_what_examples_share_may_be_as_long_as_the_batch(rows: int) -> None:
    torch.manual_seed(1)
    engine = engine_for(TwoTowers(masked=True))
    announce(engine, rows)
    sum(t.square().sum() for t in engine.model(*towers(rows))).backward()
    assert engine.prober._arguments == (0, 0, None)
    assert engine.dims[engine.model.words] == engine.dims[engine.model.layer] == (0,)


def test_examples_are_not_taken_for_shared_because_a_model_fails() -> None:
    engine = engine_for(TwoTowers(masked=False, size=4))
    announce(engine, 4)
    with pytest.raises(AssertionError, match="other batches"):
        engine.model(*towers(4))
    assert engine.dims is None


def test_what_examples_share_stays_shared_when_few_are_picked() -> None:
    where, shared = Examples(6, batch_first=True), torch.zeros(2, 3)
    assert where.dims((torch.zeros(6, 2), shared)) == (0, None)
    (_, again) = pick((torch.zeros(6, 2), shared), (0, None), [0, 1])
    assert again is shared


def test_tensors_without_examples_are_refused() -> None:
    with pytest.raises(NotPrivate, match="without a tensor of examples"):
        examples_in([], None, True)
