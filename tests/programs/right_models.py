"""Right programs: models of all kinds, each trained by the plainest of loops."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import DataLoader

from tests.programs.corpus import Rows, right
from tests.programs.examples import (
    colour_images,
    images,
    sequences,
    sounds,
    texts,
    texts_of_any_length,
    vectors,
    volumes,
)
from tests.programs.loops import fit, padded
from tests.programs.running import MakePrivate


@right(vectors)
def a_perceptron(rows: Rows, make_private: MakePrivate) -> None:
    fit(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), rows, make_private)


@right(images)
def convolutions_in_two_dimensions(rows: Rows, make_private: MakePrivate) -> None:
    convolutions = (nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3))
    fit(nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(4, 3)), rows, make_private)


@right(sounds)
def convolutions_in_one_dimension(rows: Rows, make_private: MakePrivate) -> None:
    fit(nn.Sequential(nn.Conv1d(2, 4, 5, padding=2), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)), rows, make_private)


@right(volumes)
def convolutions_in_three_dimensions(rows: Rows, make_private: MakePrivate) -> None:
    fit(nn.Sequential(nn.Conv3d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(81, 3)), rows, make_private)


@right(colour_images)
def depthwise_separable_convolutions(rows: Rows, make_private: MakePrivate) -> None:
    separable = (nn.Conv2d(3, 6, 3, groups=3), nn.Conv2d(6, 4, 1), nn.ReLU())
    fit(nn.Sequential(*separable, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)), rows, make_private)


@right(images)
def an_autoencoder_with_transposed_convolutions(rows: Rows, make_private: MakePrivate) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 2, stride=2), nn.ReLU(), nn.ConvTranspose2d(4, 1, 2, stride=2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4)
    for x, _ in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), x).backward()
        optimizer.step()


@right(colour_images)
def group_norm_and_instance_norm(rows: Rows, make_private: MakePrivate) -> None:
    body = (nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.InstanceNorm2d(4, affine=True))
    fit(nn.Sequential(*body, nn.Flatten(), nn.Linear(64, 3)), rows, make_private)


@right(vectors)
def layer_norm_and_rms_norm(rows: Rows, make_private: MakePrivate) -> None:
    fit(nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.RMSNorm(8), nn.Linear(8, 3)), rows, make_private)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(channels, channels, 3, padding=1), nn.Conv2d(channels, channels, 3, padding=1)
        self.norm, self.relu = nn.GroupNorm(2, channels), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(x + self.b(self.relu(self.norm(self.a(x)))))


@right(colour_images)
def a_residual_network(rows: Rows, make_private: MakePrivate) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), Residual(4), Residual(4), nn.Flatten(), nn.Linear(36, 3))
    fit(model, rows, make_private)


@right(colour_images)
def batch_norm_made_compatible(rows: Rows, make_private: MakePrivate) -> None:
    import hoarfrost

    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    hoarfrost.make_compatible(model)
    fit(model, rows, make_private)


@right(colour_images)
def channels_last(rows: Rows, make_private: MakePrivate) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 3))
    optimizer = torch.optim.SGD(model.to(memory_format=torch.channels_last).parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x.contiguous(memory_format=torch.channels_last)), y).backward()
        optimizer.step()


class Recurrent(nn.Module):
    """The last state of a recurrent layer, and a head."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


@right(sequences)
def an_lstm_in_two_layers(rows: Rows, make_private: MakePrivate) -> None:
    fit(Recurrent(nn.LSTM(3, 4, num_layers=2, batch_first=True), 4), rows, make_private)


@right(sequences)
def a_bidirectional_gru(rows: Rows, make_private: MakePrivate) -> None:
    fit(Recurrent(nn.GRU(3, 4, bidirectional=True, batch_first=True), 8), rows, make_private)


@right(sequences)
def an_elman_network(rows: Rows, make_private: MakePrivate) -> None:
    fit(Recurrent(nn.RNN(3, 4, nonlinearity="relu", batch_first=True), 4), rows, make_private)


class CellByCell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 4)
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return self.head(state)


@right(sequences)
def a_recurrent_cell_in_a_loop(rows: Rows, make_private: MakePrivate) -> None:
    fit(CellByCell(), rows, make_private)


class PackedLSTM(nn.Module):
    """Texts of any length: packed, so that padding is never looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 4, padding_idx=0)
        self.lstm, self.head = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, words: Tensor) -> Tensor:
        lengths = (words != 0).sum(1)
        packed = pack_padded_sequence(self.embedding(words), lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.lstm(packed)[1][0][-1])


@right(texts_of_any_length)
def a_packed_lstm(rows: Rows, make_private: MakePrivate) -> None:
    fit(PackedLSTM(), DataLoader(rows, batch_size=4, collate_fn=padded), make_private)


class PackedThere(nn.Module):
    """Packed and unpacked again, the mean of all real states taken."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.gru, self.head = nn.Embedding(11, 4), nn.GRU(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, words: Tensor) -> Tensor:
        lengths = (words != 0).sum(1)
        packed = pack_padded_sequence(self.embedding(words), lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=words.shape[1])
        return self.head(states.sum(1) / lengths[:, None])


@right(texts_of_any_length)
def a_packed_gru_that_is_unpacked_again(rows: Rows, make_private: MakePrivate) -> None:
    fit(PackedThere(), DataLoader(rows, batch_size=4, collate_fn=padded), make_private)


class Encoder(nn.Module):
    """Words and places, torch's own encoder layer, and the mean over real words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 8, padding_idx=0), nn.Embedding(6, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, words: Tensor) -> Tensor:
        padding = words == 0
        h = self.words(words) + self.places(torch.arange(words.shape[1]))
        h = self.encoder(h, src_key_padding_mask=padding).masked_fill(padding[..., None], 0)
        return self.head(h.sum(1) / (~padding).sum(1, keepdim=True))


@right(texts_of_any_length)
def a_transformer_encoder_with_padding(rows: Rows, make_private: MakePrivate) -> None:
    fit(Encoder(), DataLoader(rows, batch_size=4, collate_fn=padded), make_private)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lift, self.attention, self.head = nn.Linear(3, 4), nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)  # fmt: skip # noqa: E501

    def forward(self, x: Tensor) -> Tensor:
        h = self.lift(x)
        causal = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1)
        return self.head(self.attention(h, h, h, attn_mask=causal, need_weights=False)[0].mean(1))


@right(sequences)
def causal_multihead_attention(rows: Rows, make_private: MakePrivate) -> None:
    fit(Attention(), rows, make_private)


class OwnAttention(nn.Module):
    """Attention as people write it by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(3, 12, bias=False), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.head(F.scaled_dot_product_attention(q, k, v).mean(1))


@right(sequences)
def attention_by_hand(rows: Rows, make_private: MakePrivate) -> None:
    fit(OwnAttention(), rows, make_private)


class ViT(nn.Module):
    """A class token and a table of places, as parameters of the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 4, 4, stride=4)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, 4)), nn.Parameter(torch.randn(1, 5, 4))
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), patches], 1) + self.places
        return self.head(self.layer(tokens)[:, 0])


@right(images)
def a_vision_transformer_with_a_class_token(rows: Rows, make_private: MakePrivate) -> None:
    fit(ViT(), rows, make_private)


class LanguageModel(nn.Module):
    """Predicts the next word; its head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.body, self.head = nn.Embedding(11, 6), nn.Linear(6, 6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(self.embedding(words))))


@right(texts)
def tied_weights_in_a_language_model(rows: Rows, make_private: MakePrivate) -> None:
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4)
    for words, _ in loader:  # all texts have five words, so that the mean over words is one over examples, too
        optimizer.zero_grad()
        F.cross_entropy(model(words[:, :-1]).transpose(1, 2), words[:, 1:]).backward()
        optimizer.step()


@right(texts)
def a_bag_of_words(rows: Rows, make_private: MakePrivate) -> None:
    fit(nn.Sequential(nn.EmbeddingBag(11, 4, mode="mean"), nn.Linear(4, 3)), rows, make_private)
