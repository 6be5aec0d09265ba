"""Multi-head attention, alone and in transformer layers, equals a loop of one-example backwards."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hoarfrost.errors import NotPrivate
from hoarfrost.gradients.rules import rule_for
from hoarfrost.gradients.rules.attention import AttentionRule
from hoarfrost.nested import map_tensors
from tests.support.oracle_checks import (
    assert_matches_oracle,
    assert_matches_oracle_under_dropout,
    private_sums,
    to_dtype,
)

E, H, L, S = 6, 3, 4, 5  # channels, heads, queries, keys
Settings = Callable[[Tensor], dict[str, Any]]


class Attend(nn.Module):
    """Attention after a linear layer, whose gradient must flow through, in a model whose examples come first."""

    def __init__(self, *frozen: str, settings: Settings = lambda q: {}, **options: Any):
        super().__init__()
        options = {"batch_first": True, **options}
        self.before = nn.Linear(E, E)
        self.attention = nn.MultiheadAttention(E, H, **options)
        for name, p in self.attention.named_parameters():
            nn.init.normal_(p, std=0.5)  # torch starts with biases of zero
            p.requires_grad_(name not in frozen)
        self.settings = settings

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        q = self.before(batch["q"])
        k = batch.get("k", q)
        v = batch.get("v", k)
        settings = self.settings(q)
        if "padding" in batch:
            settings["key_padding_mask"] = batch["padding"]
        if "mask" in batch:
            settings["attn_mask"] = batch["mask"].flatten(0, 1)
        if not self.attention.batch_first:
            same = {id(t): t.transpose(0, 1) for t in (q, k, v)}  # torch, too, looks at which tensors are the same
            q, k, v = (same[id(t)] for t in (q, k, v))
        output, weights = self.attention(q, k, v, **settings)
        if not self.attention.batch_first:
            output = output.transpose(0, 1)
        return output if weights is None else torch.cat([output.flatten(1), weights.flatten(1)], 1)


def itself(rows: int = 6, length: int = L) -> Callable[[], dict[str, Tensor]]:
    return lambda: {"q": torch.randn(rows, length, E)}


def another(rows: int = 6, kdim: int = E) -> Callable[[], dict[str, Tensor]]:
    return lambda: {"q": torch.randn(rows, L, E), "k": torch.randn(rows, S, kdim)}


def three(kdim: int = E, vdim: int = E) -> Callable[[], dict[str, Tensor]]:
    return lambda: {"q": torch.randn(6, L, E), "k": torch.randn(6, S, kdim), "v": torch.randn(6, S, vdim)}


def padded(batch: Callable[[], dict[str, Tensor]], soft: bool = False) -> Callable[[], dict[str, Tensor]]:
    def make() -> dict[str, Tensor]:
        made = batch()
        keys = made.get("k", made["q"])
        hidden = torch.arange(keys.shape[1]) > torch.randint(keys.shape[1], (len(keys), 1))
        return {**made, "padding": torch.where(hidden, -1.5, 0.2) if soft else hidden}

    return make


def masked(batch: Callable[[], dict[str, Tensor]], soft: bool = False) -> Callable[[], dict[str, Tensor]]:
    """With a mask of its own for each example and head."""

    def make() -> dict[str, Tensor]:
        made = batch()
        q, k = made["q"], made.get("k", made["q"])
        numbers = torch.randn(len(q), H, q.shape[1], k.shape[1])
        return {**made, "mask": numbers if soft else (numbers > 0.5).index_fill(3, torch.tensor(0), False)}

    return make


def causal(**settings: Any) -> Settings:
    return lambda q: {"attn_mask": torch.ones(L, L, dtype=torch.bool).triu(1), **settings}


hinted = causal(is_causal=True, need_weights=False)


def quick(q: Tensor) -> dict[str, Any]:
    return {"need_weights": False}


def per_head(q: Tensor) -> dict[str, Any]:
    return {"average_attn_weights": False}


def fixed_numbers(q: Tensor) -> dict[str, Any]:
    return {"attn_mask": torch.linspace(-1, 1, L * S, dtype=q.dtype).view(L, S)}


class Called(nn.Module):
    """One attention, called several times: to look at the other sequence or at its own."""

    def __init__(self, *targets: str):
        super().__init__()
        self.attention, self.targets = nn.MultiheadAttention(E, H, batch_first=True), targets

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        h = batch["q"]
        for target in self.targets:
            k = h if target == "self" else batch["k"]
            h = self.attention(h, k, k)[0]
        return h


MATRICES = ("in_proj_weight", "out_proj.weight")
TABLE: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "self": (Attend, itself()),
    "self, quick": (lambda: Attend(settings=quick), itself()),
    "self, weights of each head": (lambda: Attend(settings=per_head), itself()),
    "self, one position": (Attend, itself(length=1)),
    "self, one example": (Attend, itself(rows=1)),
    "self, as many examples as positions": (Attend, itself(rows=L)),
    "self, no bias": (lambda: Attend(bias=False), itself()),
    "self, time first": (lambda: Attend(batch_first=False), itself()),
    "self, time first, as many examples as positions": (lambda: Attend(batch_first=False), itself(rows=L)),
    "self, padding": (Attend, padded(itself())),
    "self, soft padding, quick": (lambda: Attend(settings=quick), padded(itself(), soft=True)),
    "self, padding, time first": (lambda: Attend(batch_first=False, settings=quick), padded(itself())),
    "self, a mask for each": (Attend, masked(itself())),
    "self, a soft mask for each, quick": (lambda: Attend(settings=quick), masked(itself(), soft=True)),
    "self, both masks": (Attend, masked(padded(itself(), soft=True), soft=True)),
    "causal": (lambda: Attend(settings=causal()), itself()),
    "causal, hinted": (lambda: Attend(settings=causal(is_causal=True)), itself()),
    "causal, hinted, quick": (lambda: Attend(settings=hinted), itself()),
    "causal, hinted, quick, padding": (lambda: Attend(settings=hinted), padded(itself())),
    "causal, hinted, quick, added key": (lambda: Attend(settings=hinted, add_bias_kv=True), itself()),
    "added key": (lambda: Attend(add_bias_kv=True), itself()),
    "added key, time first": (lambda: Attend(add_bias_kv=True, batch_first=False), another()),
    "zero key": (lambda: Attend(add_zero_attn=True, settings=quick), itself()),
    "both keys, all masks": (lambda: Attend(add_bias_kv=True, add_zero_attn=True), masked(padded(itself()))),
    "other": (Attend, another()),
    "other, fixed mask": (lambda: Attend(settings=fixed_numbers), another()),
    "other, time first, quick": (lambda: Attend(batch_first=False, settings=quick), another()),
    "other, no bias": (lambda: Attend(bias=False), another()),
    "three": (Attend, three()),
    "three, time first": (lambda: Attend(batch_first=False), three()),
    "three widths": (lambda: Attend(kdim=4, vdim=3), three(4, 3)),
    "three widths, no bias, added key": (lambda: Attend(kdim=4, vdim=3, bias=False, add_bias_kv=True), three(4, 3)),
    "three widths, time first, padding": (lambda: Attend(kdim=4, vdim=3, batch_first=False), padded(three(4, 3))),
    "one other width": (lambda: Attend(kdim=4, vdim=4), another(kdim=4)),
    "frozen matrices": (lambda: Attend(*MATRICES), itself()),
    "frozen biases": (lambda: Attend("in_proj_bias", "out_proj.bias"), another()),
    "frozen input maps": (lambda: Attend("in_proj_weight", "in_proj_bias"), three()),
    "frozen output map": (lambda: Attend("out_proj.weight", "out_proj.bias"), itself()),
    "frozen added key": (lambda: Attend("bias_k", add_bias_kv=True), itself()),
    "frozen query map": (lambda: Attend("q_proj_weight", kdim=4, vdim=3), three(4, 3)),
    "frozen": (lambda: Attend(*MATRICES, "in_proj_bias", "out_proj.bias"), itself()),
    "called twice": (lambda: Called("self", "self"), another()),
    "called twice, other": (lambda: Called("other", "other"), another()),
    "called twice, both": (lambda: Called("other", "self"), another()),
}


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_attention_equals_the_oracle(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    make, batch = TABLE[name]
    assert_matches_oracle(make().to(dtype), to_dtype(batch(), dtype))


@pytest.mark.parametrize("name", ["self", "added key", "other", "three widths", "self, padding, time first"])
def test_views_of_an_example_are_added_before_the_norm(name: str) -> None:
    torch.manual_seed(1)
    make, batch = TABLE[name]
    assert_matches_oracle(make(), batch(), views=2)


@pytest.mark.parametrize("settings", [lambda q: {}, quick], ids=["weights", "quick"])
def test_dropout_draws_what_torch_draws(settings: Settings) -> None:
    torch.manual_seed(1)
    assert_matches_oracle_under_dropout(Attend(dropout=0.4, settings=settings), another()())


def test_dropout_is_off_in_evaluation_mode() -> None:
    torch.manual_seed(1)
    assert_matches_oracle(Attend(dropout=0.4, settings=quick).eval(), itself()())


def test_an_example_without_a_finite_gradient_is_left_out() -> None:
    torch.manual_seed(1)
    plain, batch = Attend(add_bias_kv=True), another()()
    _, expected = private_sums(plain, map_tensors(lambda t: t[1:], batch), 0.1)
    batch["k"][0, 2, 1] = torch.inf
    _, found = private_sums(plain, batch, 0.1)
    torch.testing.assert_close(found, expected)


class Encoder(nn.Module):
    def __init__(self, **options: Any):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True, **options)
        self.words, self.head = nn.Embedding(11, 8, padding_idx=0), nn.Linear(8, 3)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(8))

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.encoder(self.words(words), src_key_padding_mask=words == 0)[:, 0])


class Decoder(nn.Module):
    """Reads another sequence, time first."""

    def __init__(self, **options: Any):
        super().__init__()
        layer = nn.TransformerDecoderLayer(8, 2, 12, dropout=0.0, **options)
        self.words, self.head = nn.Embedding(11, 8), nn.Linear(8, 3)
        self.decoder = nn.TransformerDecoder(layer, 2)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        x, memory = (self.words(batch[name]).transpose(0, 1) for name in ("x", "memory"))
        mask = nn.Transformer.generate_square_subsequent_mask(len(x))
        return self.head(self.decoder(x, memory, tgt_mask=mask, tgt_is_causal=True)).transpose(0, 1)


def sentences() -> Tensor:
    words = torch.randint(1, 11, (6, 5))
    return words.masked_fill(torch.arange(5) > torch.randint(1, 5, (6, 1)), 0)


# In evaluation mode torch has a fast path that reads the weights of a whole layer at once: it must not be taken here.
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}, {"bias": False}], ids=str)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_a_transformer_encoder_equals_the_oracle(training: bool, options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    assert_matches_oracle(Encoder(**options).train(training), sentences())


@pytest.mark.parametrize("frozen", ["encoder.layers.0", "encoder.layers.1"])
def test_a_transformer_encoder_with_a_frozen_layer_equals_the_oracle(frozen: str) -> None:
    torch.manual_seed(1)
    model = Encoder()
    model.get_submodule(frozen).requires_grad_(False)
    assert_matches_oracle(model, sentences())


def test_the_fast_path_after_a_frozen_layer_is_refused() -> None:
    # It turns the padded batch into a nested one, with which torch cannot train the layers that follow either.
    model = Encoder().eval()
    model.words.requires_grad_(False)
    model.encoder.layers[0].requires_grad_(False)
    with pytest.raises(NotPrivate, match="nested"):
        private_sums(model, sentences(), 1.0)


def test_a_transformer_decoder_equals_the_oracle() -> None:
    torch.manual_seed(1)
    assert_matches_oracle(Decoder(), {"x": torch.randint(11, (6, 4)), "memory": torch.randint(11, (6, 5))})


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("shape", [(6, 4, E), (6, E), (E, E)], ids=str)
def test_attention_among_examples_is_refused(batch_first: bool, shape: tuple[int, ...]) -> None:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(E, H, batch_first=batch_first)

        def forward(self, x: Tensor) -> Tensor:
            x = x.transpose(0, 1) if batch_first and x.dim() == 3 else x
            y: Tensor = self.attention(x, x, x)[0]
            return y.transpose(0, 1) if batch_first and x.dim() == 3 else y

    with pytest.raises(NotPrivate, match=r"attention \(MultiheadAttention, batch_first="):
        private_sums(Wrong(), torch.randn(shape), 1.0)


def test_the_causal_hint_needs_its_mask() -> None:
    with pytest.raises(RuntimeError, match="attn_mask"):
        private_sums(Attend(settings=lambda q: {"is_causal": True}), itself()(), 1.0)


def test_only_a_plain_attention_gets_the_rule() -> None:
    plain = nn.MultiheadAttention(E, H)
    assert isinstance(rule_for(plain), AttentionRule)
    parametrized = nn.utils.parametrizations.weight_norm(copy.deepcopy(plain), "in_proj_weight")
    assert not isinstance(rule_for(parametrized), AttentionRule)
    plain.out_proj = nn.utils.parametrizations.weight_norm(plain.out_proj)
    assert not isinstance(rule_for(plain), AttentionRule)
