"""Recurrent layers, on padded and packed sequences, equal a loop of one-example backwards."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from hoarfrost.clipping import Local
from hoarfrost.errors import NotPrivate
from hoarfrost.gradients import Engine
from hoarfrost.gradients.rules import rule_for
from hoarfrost.gradients.rules.recurrent import RecurrentRule
from hoarfrost.nested import map_tensors
from hoarfrost.sampling import Chunk
from tests.support.oracle_checks import (
    assert_matches_oracle,
    assert_matches_oracle_under_dropout,
    private_sums,
    to_dtype,
)

E, H, T = 3, 4, 5  # input channels, hidden channels, steps
KINDS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


class Recur(nn.Module):
    """A recurrent layer after a linear one, whose gradient must flow through: outputs and states, examples first."""

    def __init__(self, kind: str = "lstm", *frozen: str, sorted_before: bool = False, **options: Any):
        super().__init__()
        self.before = nn.Linear(E, E)
        self.layer = KINDS[kind](E, H, **{"batch_first": True, **options})
        for name in frozen:
            self.layer.get_parameter(name).requires_grad_(False)
        self.sorted_before = sorted_before

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        x = self.before(batch["x"])
        first = self.layer.batch_first
        x = x if first else x.transpose(0, 1)
        states = [batch[name].tanh().transpose(0, 1) for name in ("h", "c") if name in batch]
        hx = tuple(states) if len(states) > 1 else states[0] if states else None
        if "lengths" in batch:
            x = pack_padded_sequence(x, batch["lengths"], first, enforce_sorted=self.sorted_before)
        output, after = self.layer(x, hx) if hx is not None else self.layer(x)
        if "lengths" in batch:
            output, _ = pad_packed_sequence(output, first, total_length=T)
        output = output if first else output.transpose(0, 1)
        ends = after if isinstance(after, tuple) else (after,)
        return torch.cat([output.flatten(1), *(end.transpose(0, 1).flatten(1) for end in ends)], 1)


def sequences(rows: int = 6, steps: int = T, **states: tuple[int, int]) -> Callable[[], dict[str, Tensor]]:
    """Inputs and, where given, initial states [layers × directions, channels] of each row."""
    return lambda: {
        "x": torch.randn(rows, steps, E),
        **{name: torch.randn(rows, *shape) for name, shape in states.items()},
    }


def packed(batch: Callable[[], dict[str, Tensor]], *lengths: int) -> Callable[[], dict[str, Tensor]]:
    return lambda: {**batch(), "lengths": torch.tensor(lengths)}


def lstm(*frozen: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: Recur("lstm", *frozen, **options)


def gru(*frozen: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: Recur("gru", *frozen, **options)


def rnn(*frozen: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: Recur("rnn", *frozen, **options)


class CalledTwice(nn.Module):
    """An encoder and a decoder that are the same layer; the second starts where the first ended."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(E, H, proj_size=E, batch_first=True)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        output, state = self.layer(batch["x"], (batch["h"].transpose(0, 1), batch["c"].transpose(0, 1)))
        return self.layer(output.relu_(), state)[0]


DEEP: dict[str, Any] = {"num_layers": 2, "bidirectional": True}
UNSORTED, SORTED = (2, 5, 1, 5, 3, 4), (5, 5, 4, 3, 2, 1)
WEIGHTS, BIASES = ("weight_ih_l0", "weight_hh_l0"), ("bias_ih_l0", "bias_hh_l0")
TABLE: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "rnn": (rnn(), sequences()),
    "rnn, relu, deep": (rnn(nonlinearity="relu", **DEEP), sequences()),
    "rnn, no bias, time first": (rnn(bias=False, batch_first=False), sequences()),
    "rnn, given state": (rnn(**DEEP), sequences(h=(4, H))),
    "rnn, packed": (rnn(**DEEP), packed(sequences(), *UNSORTED)),
    "rnn, frozen weights": (rnn(*WEIGHTS), sequences()),
    "lstm": (lstm(), sequences()),
    "lstm, one step": (lstm(), sequences(steps=1)),
    "lstm, one example": (lstm(), sequences(rows=1)),
    "lstm, as many examples as steps": (lstm(), sequences(rows=T)),
    "lstm, long": (lstm(), sequences(rows=3, steps=40)),
    "lstm, no bias": (lstm(bias=False), sequences()),
    "lstm, time first": (lstm(batch_first=False), sequences()),
    "lstm, time first, as many examples as steps": (lstm(batch_first=False), sequences(rows=T)),
    "lstm, three layers": (lstm(num_layers=3), sequences()),
    "lstm, both directions": (lstm(bidirectional=True), sequences()),
    "lstm, deep, time first": (lstm(batch_first=False, **DEEP), sequences()),
    "lstm, given states": (lstm(**DEEP), sequences(h=(4, H), c=(4, H))),
    "lstm, projected": (lstm(proj_size=2), sequences()),
    "lstm, projected, deep, given states, no bias": (
        lstm(proj_size=2, bias=False, **DEEP),
        sequences(h=(4, 2), c=(4, H)),
    ),
    "lstm, packed": (lstm(), packed(sequences(), *UNSORTED)),
    "lstm, packed in order": (lstm(sorted_before=True), packed(sequences(), *SORTED)),
    "lstm, packed, all short": (lstm(**DEEP), packed(sequences(), 3, 3, 3, 3, 3, 3)),
    "lstm, packed, deep, time first": (lstm(batch_first=False, **DEEP), packed(sequences(), *UNSORTED)),
    "lstm, packed, given states": (lstm(**DEEP), packed(sequences(h=(4, H), c=(4, H)), *UNSORTED)),
    "lstm, packed, projected": (lstm(proj_size=3, **DEEP), packed(sequences(h=(4, 3), c=(4, H)), *UNSORTED)),
    "lstm, frozen weights": (lstm(*WEIGHTS), sequences()),
    "lstm, frozen biases": (lstm(*BIASES), sequences()),
    "lstm, frozen input map": (lstm("weight_ih_l0", "bias_ih_l0"), sequences()),
    "lstm, frozen hidden map": (lstm("weight_hh_l0", "bias_hh_l0"), sequences()),
    "lstm, frozen hidden map, no bias": (lstm("weight_hh_l0", bias=False), sequences()),
    "lstm, frozen projection": (lstm("weight_hr_l0", proj_size=2), sequences()),
    "lstm, frozen": (lstm(*WEIGHTS, *BIASES), sequences()),
    "lstm, called twice": (CalledTwice, sequences(h=(1, E), c=(1, H))),
    "gru": (gru(), sequences()),
    "gru, deep, no bias": (gru(bias=False, **DEEP), sequences()),
    "gru, time first, given state": (gru(batch_first=False), sequences(h=(1, H))),
    "gru, packed, given state": (gru(**DEEP), packed(sequences(h=(4, H)), *UNSORTED)),
    "gru, frozen hidden map": (gru("weight_hh_l0", "bias_hh_l0"), sequences()),
    "gru, frozen biases": (gru(*BIASES), sequences()),
}


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_a_recurrent_layer_equals_the_oracle(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    make, batch = TABLE[name]
    assert_matches_oracle(make().to(dtype), to_dtype(batch(), dtype))


@pytest.mark.parametrize("name", ["rnn", "lstm, projected", "lstm, packed", "gru, packed, given state"])
def test_views_of_an_example_are_added_before_the_norm(name: str) -> None:
    torch.manual_seed(1)
    make, batch = TABLE[name]
    assert_matches_oracle(make(), batch(), views=2)


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_draws_what_torch_draws(kind: str) -> None:
    torch.manual_seed(1)
    assert_matches_oracle_under_dropout(Recur(kind, dropout=0.4, **DEEP), sequences()())


class Classifier(nn.Module):
    """Words of sentences of any length, packed; reads the last hidden states of both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, E, padding_idx=0)
        self.layer = nn.LSTM(E, H, batch_first=True, **DEEP)
        self.head = nn.Linear(2 * H, 3)

    def forward(self, words: Tensor) -> Tensor:
        lengths = (words != 0).sum(1)
        sequences = pack_padded_sequence(self.words(words), lengths, batch_first=True, enforce_sorted=False)
        hidden = self.layer(sequences)[1][0]
        return self.head(hidden[-2:].transpose(0, 1).flatten(1))


def sentences() -> Tensor:
    return torch.randint(1, 11, (6, T)).masked_fill(torch.arange(T) >= torch.tensor(UNSORTED)[:, None], 0)


def test_a_classifier_of_packed_sentences_equals_the_oracle() -> None:
    torch.manual_seed(1)
    assert_matches_oracle(Classifier(), sentences())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sorted_before", [True, False], ids=["sorted", "unsorted"])
def test_a_packed_output_is_the_one_that_torch_returns(kind: str, sorted_before: bool) -> None:
    torch.manual_seed(1)
    plain = KINDS[kind](E, H, **DEEP)
    lengths = torch.tensor(SORTED if sorted_before else UNSORTED)
    seen: list[Any] = []

    class Packs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = plain

        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            x = batch["x"].transpose(0, 1)
            seen.append(self.layer(pack_padded_sequence(x, batch["lengths"], enforce_sorted=sorted_before)))
            hidden: Tensor = pad_packed_sequence(seen[-1][0])[0]
            return hidden.sum((0, 2))[:, None]

    batch = {"x": torch.randn(6, T, E), "lengths": lengths}
    Packs()(batch)
    private_sums(Packs(), batch, 1.0)
    torch.testing.assert_close(seen[-1], seen[0])
    assert type(seen[-1][0]) is type(seen[0][0])


def test_steps_after_the_end_of_a_sequence_contribute_exactly_nothing() -> None:
    torch.manual_seed(1)
    plain, batch = Recur(**DEEP), packed(sequences(), *UNSORTED)()
    _, found = private_sums(plain, batch, 0.1)
    beyond = torch.arange(T) >= torch.tensor(UNSORTED)[:, None]
    _, again = private_sums(plain, {**batch, "x": batch["x"].masked_fill(beyond[..., None], 1e6)}, 0.1)
    torch.testing.assert_close(again, found, rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_given_states_may_be_overwritten_after_the_forward_pass(kind: str) -> None:
    class Carries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.overwrites = KINDS[kind](E, H, batch_first=True), False

        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            states = [batch[name].transpose(0, 1).clone() for name in ("h", "c")]
            output: Tensor = self.layer(batch["x"], tuple(states) if kind == "lstm" else states[0])[0]
            return output + sum(s.zero_().sum() for s in states) if self.overwrites else output

    torch.manual_seed(1)
    plain, batch = Carries(), sequences(h=(1, H), c=(1, H))()
    _, expected = private_sums(plain, batch, 0.1)
    plain.overwrites = True
    _, found = private_sums(plain, batch, 0.1)
    torch.testing.assert_close(found, expected)


def test_an_example_without_a_finite_gradient_is_left_out() -> None:
    torch.manual_seed(1)
    plain, batch = Recur("gru", **DEEP), sequences()()
    _, expected = private_sums(plain, map_tensors(lambda t: t[1:], batch), 0.1)
    batch["x"][0, 2, 1] = torch.nan
    _, found = private_sums(plain, batch, 0.1)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("shape", [(6, T, E), (6, E), (E, E)], ids=str)
def test_a_sequence_of_examples_is_refused(kind: str, batch_first: bool, shape: tuple[int, ...]) -> None:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = KINDS[kind](E, H, batch_first=batch_first)

        def forward(self, x: Tensor) -> Tensor:
            across = batch_first and x.dim() == 3
            output: Tensor = self.layer(x.transpose(0, 1) if across else x)[0]
            return output.transpose(0, 1) if across else output

    with pytest.raises(NotPrivate, match=r"layer \((RNN|LSTM|GRU), batch_first="):
        private_sums(Wrong(), torch.randn(shape), 1.0)


def test_packed_sequences_that_are_not_the_examples_are_refused() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(E, H)

        def forward(self, x: Tensor) -> Tensor:
            halves = pack_padded_sequence(x.reshape(2 * len(x), 2, E).transpose(0, 1), torch.full((2 * len(x),), 2))
            hidden: Tensor = self.layer(halves)[1][0]
            return hidden[0].view(len(x), -1)

    with pytest.raises(NotPrivate, match="layer"):
        private_sums(Halves(), torch.randn(6, 4, E), 1.0)


def test_a_forward_pass_without_a_backward_leaves_nothing_behind() -> None:
    model = Recur()
    engine = Engine(model, dict(model.named_parameters()), Local(1.0))
    engine.sums.tickets.hand_over(Chunk(examples=6, first=True, last=True))
    batch = sequences()()
    kept_for_backward = weakref.ref(batch["x"])
    output = model(batch)
    del batch
    assert kept_for_backward() is not None
    del output
    gc.collect()
    assert kept_for_backward() is None


def test_only_a_plain_layer_gets_the_rule() -> None:
    plain = nn.LSTM(E, H)
    assert isinstance(rule_for(plain), RecurrentRule)
    dropped = copy.deepcopy(plain)
    dropped.register_parameter("weight_hh_l0_raw", nn.Parameter(torch.zeros(1)))
    assert not isinstance(rule_for(dropped), RecurrentRule)
