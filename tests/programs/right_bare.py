"""Right programs: parameters that a module uses itself, beside its layers, from lists, or through masks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune

from tests.programs.corpus import Rows, right
from tests.programs.examples import colour_images, images, sequences, texts, vectors
from tests.programs.loops import fit, two_layers
from tests.programs.running import MakePrivate


class BareLoRA(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features) / 2)
        self.lora_B = nn.Parameter(torch.randn(base.out_features, rank) / 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + (x @ self.lora_A.T @ self.lora_B.T) * 0.5


@right(vectors)
def lora_of_bare_matrices(rows: Rows, make_private: MakePrivate) -> None:
    fit(nn.Sequential(BareLoRA(nn.Linear(6, 8)), nn.Tanh(), BareLoRA(nn.Linear(8, 3))), rows, make_private)


class Adapters(nn.Module):
    """As peft keeps them: a dictionary for each kind, and one of them in use."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 5).requires_grad_(False), nn.Linear(5, 3)
        self.lora_embedding_A = nn.ParameterDict({"default": torch.randn(2, 11), "other": torch.randn(2, 11)})
        self.lora_embedding_B = nn.ParameterDict({"default": torch.randn(5, 2), "other": torch.randn(5, 2)})
        self.ia3 = nn.ParameterDict({"default": torch.ones(1, 5)})

    def forward(self, words: Tensor) -> Tensor:
        change = F.embedding(words, self.lora_embedding_A["default"].T) @ self.lora_embedding_B["default"].T
        return self.head(((self.embedding(words) + change) * self.ia3["default"]).mean(1))


@right(texts)
def adapters_in_dictionaries_of_parameters(rows: Rows, make_private: MakePrivate) -> None:
    fit(Adapters(), rows, make_private)


class Prompted(nn.Module):
    """Prompt tokens for each layer, and a class token that is repeated rather than expanded."""

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.prompts = nn.ParameterList(torch.randn(2, 4) for _ in range(depth))
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.patch, self.head = nn.Linear(3, 4), nn.Linear(4, 3)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True) for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.repeat(len(x), 1, 1), self.patch(x)], 1)
        for prompt, layer in zip(self.prompts, self.layers, strict=True):
            x = layer(torch.cat([x, prompt.unsqueeze(0).repeat(len(x), 1, 1)], 1))[:, : -len(prompt)]
        return self.head(x[:, 0])


@right(sequences)
def prompt_tokens_in_a_list(rows: Rows, make_private: MakePrivate) -> None:
    fit(Prompted(), rows, make_private)


class Pooled(nn.Module):
    """Learned queries that attend to each example's sequence, and prototypes that it is compared with."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.prototypes = nn.Parameter(torch.randn(2, 5)), nn.Parameter(torch.randn(3, 5))
        self.temperature, self.keys = nn.Parameter(torch.tensor(0.5)), nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        keys = self.keys(x)
        pooled = (torch.einsum("qd,btd->bqt", self.queries, keys).softmax(-1) @ keys).mean(1)
        return F.linear(F.normalize(pooled), F.normalize(self.prototypes)) * self.temperature.exp()


@right(sequences)
def learned_queries_and_prototypes(rows: Rows, make_private: MakePrivate) -> None:
    fit(Pooled(), rows, make_private)


class ByHand(nn.Module):
    """Layers written out with torch.nn.functional, around one of torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.filters, self.shift = nn.Parameter(torch.randn(4, 3, 3, 3) / 5), nn.Parameter(torch.zeros(4))
        self.gain, self.offset = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4))
        self.mix = nn.Parameter(torch.randn(4, 8) / 2)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(x, self.filters, self.shift, padding=1)
        x = F.layer_norm(x.relu().mean((2, 3)), (4,), self.gain, self.offset)
        return self.head(torch.tanh(x @ self.mix))


@right(colour_images)
def layers_written_out_beside_one_of_torch_s_own(rows: Rows, make_private: MakePrivate) -> None:
    fit(ByHand(), rows, make_private)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Parameter(torch.randn(11, 6)), nn.Parameter(torch.randn(9, 6))
        self.head = nn.Linear(6, 3)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table[words] + self.places[torch.arange(words.shape[1])]).mean(1))


@right(texts)
def bare_tables_of_words_and_places(rows: Rows, make_private: MakePrivate) -> None:
    fit(Words(), rows, make_private)


class Constants(nn.Module):
    """Never called: only a name for what it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))


class WithConstants(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.constants, self.lower, self.upper = Constants(), nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.upper(torch.tanh(self.lower(x) * self.constants.scale + self.constants.shift))


@right(vectors)
def parameters_in_a_module_that_only_holds_them(rows: Rows, make_private: MakePrivate) -> None:
    fit(WithConstants(), rows, make_private)


@right(images)
def a_convolution_that_is_pruned_twice(rows: Rows, make_private: MakePrivate) -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(108, 3))
    prune.random_unstructured(model[0], "weight", amount=0.3)
    prune.ln_structured(model[0], "weight", amount=0.4, n=2, dim=0)
    prune.global_unstructured([(model[3], "weight"), (model[3], "bias")], prune.L1Unstructured, amount=0.5)
    fit(model, rows, make_private)


@right(vectors)
def weight_norm_of_old(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    nn.utils.weight_norm(model[0])
    fit(model, rows, make_private)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales, self.layer = nn.ParameterList([torch.ones(8)]), nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Outer(nn.Module):
    """Reads a list that belongs to a module which runs, and does not use it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = Inner(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x) * self.inner.scales[0])


@right(vectors)
def a_list_of_parameters_read_from_outside(rows: Rows, make_private: MakePrivate) -> None:
    fit(Outer(), rows, make_private)


class LearnedStart(nn.Module):
    """A recurrent network whose first state is learned: [layers, 1, channels], expanded along the second dimension."""

    def __init__(self, width: int, layers: int, repeat: bool) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.randn(layers, 1, 4))
        self.rnn = nn.GRU(width, 4, layers, batch_first=True)
        self.head, self.repeat = nn.Linear(4, 3), repeat

    def forward(self, x: Tensor) -> Tensor:
        start = self.start.repeat(1, len(x), 1) if self.repeat else self.start.expand(-1, len(x), -1).contiguous()
        output: Tensor = self.head(self.rnn(x, start)[0][:, -1])
        return output


@right(sequences)
def a_recurrent_network_with_a_learned_first_state(rows: Rows, make_private: MakePrivate) -> None:
    fit(LearnedStart(rows[0][0].shape[-1], 1, repeat=False), rows, make_private)


@right(sequences)
def two_layers_with_learned_first_states_that_are_repeated(rows: Rows, make_private: MakePrivate) -> None:
    fit(LearnedStart(rows[0][0].shape[-1], 2, repeat=True), rows, make_private)


@right(vectors)
def a_learned_first_state_for_a_sequence_of_one(rows: Rows, make_private: MakePrivate) -> None:
    """The layer's input [1, rows, channels] looks like something that all examples share."""
    fit(LearnedStart(1, 1, repeat=False), [(x[None, :1], y) for x, y in rows], make_private)
