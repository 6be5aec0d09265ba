"""Programs that were written to see what happens: models as tutorials have them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.programs.corpus import Rows, refused, right, wrong
from tests.programs.examples import images, pairs, records, sequences, texts, vectors
from tests.programs.loops import fit, two_layers
from tests.programs.running import MakePrivate

# Models.


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (each.view(b, t, 2, c // 2).transpose(1, 2) for each in self.c_attn(self.ln_1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """nanoGPT, in small."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(11, 8),
                "wpe": nn.Embedding(9, 8),
                "drop": nn.Dropout(0.0),
                "h": nn.ModuleList([Block(8), Block(8)]),
                "ln_f": nn.LayerNorm(8),
            }
        )
        self.lm_head = nn.Linear(8, 11, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx: Tensor) -> Tensor:
        pos = torch.arange(0, idx.shape[1], dtype=torch.long).unsqueeze(0)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


@right(texts)
def nano_gpt(rows: Rows, make_private: MakePrivate) -> None:
    model = GPT()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for words, _ in loader:
        logits = model(words[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, logits.size(-1)), words[:, 1:].reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


class AttentionDecoder(nn.Module):
    """Seq2seq with additive attention, one word after another, as in PyTorch's tutorial."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.encoder = nn.Embedding(11, 6), nn.GRU(6, 6, batch_first=True)
        self.Wa, self.Ua, self.Va = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 1)
        self.out_embedding, self.gru, self.out = nn.Embedding(11, 6), nn.GRU(12, 6, batch_first=True), nn.Linear(6, 11)

    def forward(self, words: Tensor, target: Tensor) -> Tensor:
        encoded, hidden = self.encoder(self.embedding(words))
        word = torch.zeros(words.size(0), 1, dtype=torch.long)
        outputs = []
        for i in range(target.size(1)):
            query = hidden.permute(1, 0, 2)
            scores = self.Va(torch.tanh(self.Wa(query) + self.Ua(encoded))).squeeze(2).unsqueeze(1)
            context = torch.bmm(F.softmax(scores, dim=-1), encoded)
            output, hidden = self.gru(torch.cat((self.out_embedding(word), context), dim=2), hidden)
            outputs.append(self.out(output))
            word = target[:, i].unsqueeze(1)
        return F.log_softmax(torch.cat(outputs, dim=1), dim=-1)


@right(texts)
def translation_with_attention(rows: Rows, make_private: MakePrivate) -> None:
    model = AttentionDecoder()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for words, _ in loader:
        optimizer.zero_grad()
        F.nll_loss(model(words, words.flip(1)).transpose(1, 2), words.flip(1)).backward()
        optimizer.step()


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 4, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(4, 2, 2, stride=2), nn.Conv2d(4, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.one(x))
        b = F.relu(self.two(F.max_pool2d(a, 2)))
        return self.last(torch.cat([a, self.up(b)], 1))


@right(images)
def a_u_net(rows: Rows, make_private: MakePrivate) -> None:
    fit(UNet(), rows, make_private, lambda out, y: F.binary_cross_entropy_with_logits(out, (out > 0).float() * 0.9))


class TabTransformer(nn.Module):
    """An embedding and a bias for each column, and a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = nn.ModuleList([nn.Embedding(11, 4) for _ in range(4)])
        self.column, self.token = nn.Embedding(4, 4), nn.Parameter(torch.randn(1, 1, 4))
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.encoder, self.numbers, self.head = nn.TransformerEncoder(layer, 1), nn.LayerNorm(6), nn.Linear(10, 3)

    def forward(self, numbers: Tensor, words: Tensor) -> Tensor:
        tokens = torch.stack([table(words[:, i]) for i, table in enumerate(self.columns)], 1)
        tokens = tokens + self.column(torch.arange(4))
        tokens = torch.cat([self.token.expand(len(words), -1, -1), tokens], 1)
        return self.head(torch.cat([self.encoder(tokens)[:, 0], self.numbers(numbers)], 1))


@right(records)
def a_transformer_for_tables(rows: Rows, make_private: MakePrivate) -> None:
    model = TabTransformer()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for batch in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(batch["numbers"], batch["words"]), batch["label"]).backward()
        optimizer.step()


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.norm = nn.Conv2d(1, 4, 4, stride=4), nn.LayerNorm(4)
        self.tokens, self.channels, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return self.head((x + self.channels(self.norm(x))).mean(1))


@right(images)
def an_mlp_mixer(rows: Rows, make_private: MakePrivate) -> None:
    fit(Mixer(), rows, make_private)


class Perceiver(nn.Module):
    """Latents that attend to themselves before they see an example."""

    def __init__(self) -> None:
        super().__init__()
        self.latents, self.inputs = nn.Parameter(torch.randn(2, 4)), nn.Linear(3, 4)
        self.norm, self.query = nn.LayerNorm(4), nn.Linear(4, 4)
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inputs(x)
        latents = self.query(self.norm(self.latents)).unsqueeze(0).expand(len(x), -1, -1)
        return self.head(self.attention(latents, x, x)[0].mean(1))


@right(sequences)
def latents_of_a_perceiver(rows: Rows, make_private: MakePrivate) -> None:
    fit(Perceiver(), rows, make_private)


class Wave(nn.Module):
    """Dilated causal convolutions with gates and skips, as WaveNet and TCNs have."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(3, 4, 1)
        self.gates = nn.ModuleList([nn.Conv1d(4, 8, 2, dilation=2**i) for i in range(2)])
        self.skips, self.head = nn.ModuleList([nn.Conv1d(4, 4, 1) for _ in range(2)]), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.first(x.transpose(1, 2)), 0.0
        for i, (gate, skip) in enumerate(zip(self.gates, self.skips, strict=True)):
            a, b = gate(F.pad(x, (2**i, 0))).chunk(2, 1)
            h = skip(torch.tanh(a) * torch.sigmoid(b))
            x, total = x + h, total + h
        return self.head(F.relu(total)[:, :, -1])


@right(sequences)
def a_wave_net(rows: Rows, make_private: MakePrivate) -> None:
    fit(Wave(), rows, make_private)


class Cells(nn.Module):
    """Cells of all three kinds, stepped by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru, self.rnn, self.head = (
            nn.LSTMCell(3, 4),
            nn.GRUCell(4, 4),
            nn.RNNCell(4, 4),
            nn.Linear(4, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = c = g = r = x.new_zeros(len(x), 4)
        for t in range(x.shape[1]):
            h, c = self.lstm(x[:, t], (h, c))
            g = self.gru(h, g)
            r = self.rnn(g, r)
        return self.head(r)


@right(sequences)
def recurrent_cells_of_all_kinds(rows: Rows, make_private: MakePrivate) -> None:
    fit(Cells(), rows, make_private)


class FirstStates(Cells):
    """Cells that begin with no state."""

    def forward(self, x: Tensor) -> Tensor:
        state, g = None, None
        for t in range(x.shape[1]):
            state = self.lstm(x[:, t], state)
            g = self.gru(state[0], g)
        return self.head(self.rnn(g))


@right(sequences)
def recurrent_cells_that_begin_with_no_state(rows: Rows, make_private: MakePrivate) -> None:
    fit(FirstStates(), rows, make_private)


class Several(nn.Module):
    """A list of tensors, as a model of several inputs takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList([nn.Linear(6, 4), nn.Linear(6, 4)]), nn.Linear(8, 1)

    def forward(self, inputs: list[Tensor]) -> Tensor:
        return self.head(torch.cat([layer(x).tanh() for layer, x in zip(self.layers, inputs, strict=True)], 1))


@right(pairs)
def a_model_that_takes_a_list_of_tensors(rows: Rows, make_private: MakePrivate) -> None:
    model = Several()
    model, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4)
    for *inputs, y in loader:
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(model(inputs)[:, 0], y).backward()
        optimizer.step()


class Fourier(nn.Module):
    """A filter in the frequencies, with complex numbers for weights, as Fourier neural operators have."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.randn(4, dtype=torch.cfloat)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=6).tanh())


@wrong(vectors, refused("complex", "weight", "torch.view_as_complex"))
def complex_weights(rows: Rows, make_private: MakePrivate) -> None:
    fit(Fourier(), rows, make_private)


class FourierInReal(Fourier):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.fft.irfft(torch.fft.rfft(x) * torch.view_as_complex(self.weight), n=6).tanh())


@right(vectors)
def complex_weights_in_two_real_numbers(rows: Rows, make_private: MakePrivate) -> None:
    fit(FourierInReal(), rows, make_private)


class Routed(nn.Module):
    """Each example goes to one expert: its rows are picked by a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(6, 2), nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 3)])

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(1)
        best, out = weights.argmax(1), x.new_zeros(len(x), 3)
        for number, expert in enumerate(self.experts):
            mask = best == number
            out[mask] = expert(x[mask]) * weights[mask, number, None]
        return out


@wrong(vectors, refused("experts.", "all examples", "weigh"))
def examples_routed_to_experts(rows: Rows, make_private: MakePrivate) -> None:
    fit(Routed(), rows, make_private)


class RoutedByWeight(Routed):
    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(1)
        weights = weights * F.one_hot(weights.argmax(1), 2)
        return (torch.stack([expert(x) for expert in self.experts], 1) * weights[..., None]).sum(1)


@right(vectors)
def all_experts_run_and_all_but_one_weighed_with_zero(rows: Rows, make_private: MakePrivate) -> None:
    fit(RoutedByWeight(), rows, make_private)


@wrong(vectors, refused("spectral_norm", ".eval()"))
def a_spectral_norm_that_goes_on_in_training_mode(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    model[0] = parametrizations.spectral_norm(model[0])
    fit(model.train(), rows, make_private)


@right(vectors)
def a_spectral_norm_whose_vectors_stay(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    model[0] = parametrizations.spectral_norm(model[0])
    model.train()
    model[0].parametrizations.eval()
    fit(model, rows, make_private)
