"""The settings table: every rule, every odd shape and use. Adding a layer is adding a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune


@dataclass(frozen=True)
class Setting:
    """A model and a batch of its inputs. The loss is a fixed random projection of the output, nonlinear in it."""

    name: str
    model: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    views: int = 1
    dim: int = 0


def floats(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape)


def words(*shape: int, vocabulary: int = 11) -> Callable[[], Tensor]:
    return lambda: torch.randint(vocabulary, shape)


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self, d: int = 5):
        super().__init__()
        self.embedding, self.body, self.head = nn.Embedding(11, d), nn.Linear(d, d), nn.Linear(d, 11)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(self.embedding(x))))


class Twice(nn.Module):
    """A layer called twice, at other lengths."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x)))


class Positions(nn.Module):
    """Token and position embeddings; positions come as [1, T] (as BERT's) or as [T]."""

    def __init__(self, flat: bool, length: int = 4):
        super().__init__()
        self.tokens, self.places, self.out = nn.Embedding(11, 6), nn.Embedding(length, 6), nn.Linear(6, 3)
        self.flat = flat

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        return self.out(torch.tanh(self.tokens(x) + self.places(places if self.flat else places[None])))


class Relative(nn.Module):
    """Attention with a bias for each distance, [T, T, heads], whose shape the model uses (as T5's and MPNet's)."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.tokens, self.distances, self.out = nn.Embedding(11, 6), nn.Embedding(7, 2), nn.Linear(6, 3)
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        causal = torch.ones(1, 1, len(places), len(places)).tril() > 0  # made of nothing that is followed
        bias = 3 * self.distances((places[:, None] - places).abs().clamp(max=6)).permute(2, 0, 1).unsqueeze(0)
        bias = torch.where(causal, bias, -9.0)
        h = self.tokens(x).unflatten(2, (2, 3)).transpose(1, 2)
        if self.fused:
            mixed = F.scaled_dot_product_attention(h, h, h, attn_mask=bias)
        else:
            mixed = torch.softmax(h @ h.mT + bias.expand(len(x), -1, -1, -1), -1) @ h
        return self.out(mixed.transpose(1, 2).flatten(2))


class Inside(nn.Module):
    """A layer whose bias the module around it holds, too (as BERT's head for words)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 3), nn.Parameter(torch.randn(3))
        self.bias = self.layer.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale


class Bare(nn.Module):
    """Class token, sliced position table, scales and a temperature, used by a module with children."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.table = nn.Parameter(torch.randn(1, 9, 6))
        self.scale = nn.Parameter(torch.randn(6))
        self.temperature = nn.Parameter(torch.tensor(0.3))
        self.patch, self.head = nn.Linear(3, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([self.token.expand(len(x), -1, -1), self.patch(x)], 1)
        h = torch.tanh(h + self.table[:, : h.shape[1]])
        return self.head(h * self.scale) * self.temperature.exp()


class Beside(nn.Module):
    """Parameters of its own beside a layer: what ``use(self, x)`` makes of them goes through it."""

    def __init__(self, use: Callable[[Any, Tensor], Tensor], **shapes: tuple[int, ...]):
        super().__init__()
        self.use = use
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape)))
        self.register_buffer("kept", torch.tensor([[1.0, 0.0, 1.0, 1.0]]))
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.use(self, x)))


def beside(name: str, use: Callable[[Any, Tensor], Tensor], inputs: Callable[[], Any], **shapes: Any) -> Setting:
    return Setting(f"beside a layer: {name}", lambda: Beside(use, **shapes), inputs)


def with_first(x: Tensor, first: Tensor) -> Tensor:
    x = x.clone()
    x[:, 0] = first
    return x


class Only(nn.Module):
    """Holds a parameter, and is never called."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.randn(shape))


class Held(nn.Module):
    """Parameters in lists, in dictionaries and in modules that are never called; some of them are used twice."""

    def __init__(self, layer: bool) -> None:
        super().__init__()
        self.scales = nn.ParameterList(torch.randn(5) for _ in range(2))
        self.low = nn.ParameterDict({"a": torch.randn(5, 2), "b": torch.randn(2, 5)})
        self.nested = nn.ParameterList([nn.ParameterDict({"c": torch.randn(5)}), torch.randn(1, 5)])
        self.more = nn.ModuleDict({"only": Only(5, 4), "lists": nn.ModuleList([nn.ParameterList([torch.randn(4)])])})
        self.layers = nn.ModuleList([nn.Linear(5, 5)] if layer else [])

    def forward(self, x: Tensor) -> Tensor:
        for scale in self.scales:
            for layer in self.layers:
                x = layer(x)
            x = x + scale * torch.tanh(x @ self.low["a"] @ self.low["b"])
        x = (x * self.nested[0]["c"] + self.nested[1]) * self.scales[0]
        return x @ self.more["only"].own + self.more["lists"][0][0]


def pruned(layer: nn.Module, *, twice: bool = False) -> nn.Module:
    prune.random_unstructured(layer, "weight", 0.5)
    if twice:
        prune.ln_structured(layer, "weight", 0.4, n=2, dim=0)
        prune.random_unstructured(layer, "bias", 0.5)
    return layer


class Scale(nn.Module):
    """A leaf module of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.mix = nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bti,ij->btj", x * self.w, self.mix)


class ScaleTimeFirst(nn.Module):
    """A module of one's own between layers that have time first and examples second."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.own, self.out = nn.Embedding(11, 5), Scale(), nn.Linear(3, 2)
        self.own.register_forward_hook(lambda module, args, output: output * 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.own(self.embedding(x)))).mean(0)


class DoubledLinear(nn.Linear):
    """A subclass that computes something else than its parent."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x) + self.weight.sum()


class Standardised(nn.Conv2d):
    """Weight standardisation: the layer's `forward`, and a computation of its own."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, (weight - weight.mean()) / weight.std(), bias)


def patched() -> nn.Module:
    layer = nn.Linear(5, 3)
    layer.forward = MethodType(lambda self, x: 3 * F.linear(x, self.weight, self.bias), layer)
    return layer


def one_parameter_twice() -> nn.Module:
    layer = nn.LayerNorm(5)
    layer.bias = layer.weight
    return layer


class Bag(nn.Module):
    """An EmbeddingBag with or without offsets."""

    def __init__(self, offsets: bool = False, **options: Any):
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(11, 4, **options), nn.Linear(4, 3)
        self.offsets = offsets

    def forward(self, x: Tensor) -> Tensor:
        if not self.offsets:
            return self.out(self.bag(x))
        return self.out(self.bag(x.reshape(-1), torch.arange(0, x.numel(), x.shape[1])))


class Dictionary(nn.Module):
    """Takes nested inputs by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.numbers = nn.Embedding(11, 4), nn.Linear(3, 4)

    def forward(self, batch: dict[str, Any]) -> Tensor:
        return self.numbers(batch["more"][0]) * self.words(batch["words"]).mean(1)


class Residual(nn.Module):
    """Convolutions whose output gradients are shared between branches, with in-place activations."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.n, self.out = nn.GroupNorm(2, 4), nn.Linear(4 * 36, 3)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.n(self.a(x)))
        h = h + self.b(h)
        return self.out(self.relu(h).flatten(1))


class SequenceFirst(nn.Module):
    """Time first, examples second."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm, self.out = nn.Embedding(11, 4), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.embedding(x))).mean(0)


def frozen(model: nn.Module, *names: str) -> nn.Module:
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    return model


def conv_row(name: str, layer: Callable[[], nn.Module], *shape: int) -> Setting:
    return Setting(name, layer, floats(*shape))


class ChannelsLast(nn.Sequential):
    """Layers between which everything lies in memory with the channels last."""

    def forward(self, x: Tensor) -> Tensor:
        layout = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
        self.to(memory_format=layout)
        for layer in self:
            x = layer(x.contiguous(memory_format=layout)).tanh().contiguous(memory_format=layout)
        return x


TABLE = [
    Setting("linear", lambda: nn.Linear(7, 5), floats(6, 7)),
    Setting("linear no bias", lambda: nn.Linear(7, 5, bias=False), floats(6, 7)),
    Setting("linear 3-D (Gram)", lambda: nn.Linear(40, 50), floats(6, 3, 40)),
    Setting("linear 3-D (written)", lambda: nn.Linear(3, 2), floats(6, 50, 3)),
    Setting("linear 4-D", lambda: nn.Linear(7, 5), floats(6, 2, 3, 7)),
    Setting("linear 5-D", lambda: nn.Linear(7, 5), floats(6, 2, 1, 3, 7)),
    Setting("one example", lambda: nn.Linear(7, 5), floats(1, 7)),
    Setting("batch as long as the sequence", lambda: nn.Linear(7, 5), floats(4, 4, 7)),
    Setting("frozen weight", lambda: frozen(nn.Linear(7, 5), "weight"), floats(6, 7)),
    Setting("frozen bias", lambda: frozen(nn.Linear(7, 5), "bias"), floats(6, 3, 7)),
    Setting("frozen first layer", lambda: frozen(nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3)), "0.weight", "0.bias"), floats(6, 7)),
    Setting("frozen middle layer", lambda: frozen(nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 5), nn.Linear(5, 3)), "1.weight", "1.bias"), floats(6, 7)),
    Setting("in-place relu", lambda: nn.Sequential(nn.Linear(7, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)), floats(6, 7)),
    Setting("views", lambda: nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3)), floats(12, 7), views=3),
    conv_row("conv2d", lambda: nn.Conv2d(3, 4, 3), 6, 3, 8, 7),
    conv_row("conv2d pixels", lambda: nn.Conv2d(40, 48, 3, padding=1), 6, 40, 4, 4),
    conv_row("conv2d pixels stride dilation", lambda: nn.Conv2d(40, 48, (3, 2), stride=(2, 1), dilation=(1, 2), padding=(2, 1)), 6, 40, 5, 4),
    conv_row("conv2d pixels groups", lambda: nn.Conv2d(60, 90, 3, padding=1, groups=3), 5, 60, 3, 4),
    conv_row("conv2d pixels same", lambda: nn.Conv2d(40, 48, 4, padding="same"), 6, 40, 4, 4),
    conv_row("conv2d pixels circular", lambda: nn.Conv2d(40, 48, 3, padding=1, padding_mode="circular"), 6, 40, 4, 4),
    conv_row("conv2d stride", lambda: nn.Conv2d(3, 4, 3, stride=2), 6, 3, 8, 7),
    conv_row("conv2d stride that leaves a rest", lambda: nn.Conv2d(3, 4, 3, stride=3, padding=1), 6, 3, 9, 10),
    conv_row("conv2d asymmetric", lambda: nn.Conv2d(3, 4, (3, 2), stride=(1, 2), padding=(2, 0), dilation=(2, 1)), 6, 3, 8, 7),
    conv_row("conv2d same", lambda: nn.Conv2d(3, 4, 4, padding="same", dilation=2), 6, 3, 8, 7),
    conv_row("conv2d valid", lambda: nn.Conv2d(3, 4, 4, padding="valid"), 6, 3, 8, 7),
    conv_row("conv2d reflect", lambda: nn.Conv2d(3, 4, 3, padding=2, padding_mode="reflect"), 6, 3, 8, 7),
    conv_row("conv2d replicate no bias", lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="replicate", bias=False), 6, 3, 8, 7),
    conv_row("conv2d groups", lambda: nn.Conv2d(6, 4, 3, groups=2), 6, 6, 8, 7),
    conv_row("conv2d depthwise", lambda: nn.Conv2d(6, 12, 3, groups=6, padding=1), 6, 6, 8, 7),
    conv_row("conv2d 1x1", lambda: nn.Conv2d(6, 4, 1), 6, 6, 8, 7),
    conv_row("conv1d", lambda: nn.Conv1d(3, 4, 3, stride=2, padding=1, dilation=2), 6, 3, 17),
    conv_row("conv1d same", lambda: nn.Conv1d(3, 4, 4, padding="same"), 6, 3, 17),
    conv_row("conv1d pixels", lambda: nn.Conv1d(40, 48, 3, padding=1), 6, 40, 5),
    conv_row("conv3d", lambda: nn.Conv3d(2, 3, (2, 3, 2), stride=(1, 2, 1), padding=(1, 0, 1), groups=1), 6, 2, 4, 5, 6),
    conv_row("conv3d pixels", lambda: nn.Conv3d(40, 48, 2, padding=1), 4, 40, 2, 2, 2),
    conv_row("conv transposed", lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1), 6, 3, 5, 4),
    conv_row("conv transposed groups", lambda: nn.ConvTranspose2d(6, 4, 3, stride=(1, 2), groups=2, dilation=2), 6, 6, 5, 4),
    conv_row("conv transposed pixels", lambda: nn.ConvTranspose2d(48, 40, 3, padding=1), 6, 48, 4, 4),
    conv_row("conv1d transposed", lambda: nn.ConvTranspose1d(3, 4, 3, stride=2), 6, 3, 9),
    conv_row("conv3d transposed", lambda: nn.ConvTranspose3d(3, 2, 2, stride=2), 6, 3, 2, 3, 2),
    Setting("conv2d views", lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Conv2d(4, 2, 2)), floats(8, 3, 8, 7), views=2),
    Setting("channels last", lambda: ChannelsLast(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 6, (2, 3), stride=(2, 1), dilation=(1, 2), padding=1)), floats(6, 3, 8, 7)),
    Setting("channels last groups", lambda: ChannelsLast(nn.Conv2d(3, 6, 2), nn.Conv2d(6, 4, (2, 3), groups=2, padding=1)), floats(6, 3, 5, 6)),
    Setting("channels last pixels", lambda: ChannelsLast(nn.Conv2d(40, 40, 1), nn.Conv2d(40, 48, 3, padding=1)), floats(6, 40, 4, 4)),
    Setting("channels last views", lambda: ChannelsLast(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, (1, 2))), floats(8, 3, 8, 7), views=2),
    Setting("channels last transposed", lambda: ChannelsLast(nn.ConvTranspose2d(4, 6, (3, 2), stride=2, groups=2), nn.ConvTranspose2d(6, 4, 3)), floats(6, 4, 5, 4)),
    Setting("channels last 3-D", lambda: ChannelsLast(nn.Conv3d(3, 4, 2), nn.Conv3d(4, 2, (1, 2, 3))), floats(6, 3, 4, 5, 6)),
    Setting("residual", Residual, floats(6, 4, 6, 6)),
    Setting("embedding", lambda: nn.Embedding(11, 4), words(6, 5)),
    Setting("embedding padding", lambda: nn.Embedding(11, 4, padding_idx=3), words(6, 9)),
    Setting("embedding 1-D", lambda: nn.Embedding(11, 4), words(6)),
    Setting("embedding 3-D", lambda: nn.Embedding(11, 4), words(6, 2, 3)),
    Setting("embedding views", lambda: nn.Embedding(11, 4), words(6, 5), views=2),
    Setting("bag sum", lambda: Bag(mode="sum"), words(6, 5)),
    Setting("bag mean", lambda: Bag(mode="mean"), words(6, 5)),
    Setting("bag mean padding", lambda: Bag(mode="mean", padding_idx=2), words(6, 5)),
    Setting("bag max", lambda: Bag(mode="max"), words(6, 5)),
    Setting("bag offsets", lambda: Bag(mode="mean", offsets=True), words(6, 5)),
    Setting("bag max offsets", lambda: Bag(mode="max", offsets=True), words(6, 5)),
    Setting("layer norm", lambda: nn.LayerNorm(5), floats(6, 3, 5)),
    Setting("layer norm 2-D shape", lambda: nn.LayerNorm((3, 5)), floats(6, 2, 3, 5)),
    Setting("layer norm no bias", lambda: nn.LayerNorm(5, bias=False), floats(6, 5)),
    Setting("rms norm", lambda: nn.RMSNorm(5), floats(6, 3, 5)),
    Setting("group norm", lambda: nn.GroupNorm(2, 6), floats(6, 6, 4, 3)),
    Setting("group norm flat", lambda: nn.GroupNorm(2, 6), floats(6, 6)),
    Setting("group norm views", lambda: nn.GroupNorm(2, 6), floats(6, 6, 4), views=2),
    Setting("instance norm", lambda: nn.InstanceNorm2d(3, affine=True), floats(6, 3, 4, 5)),
    Setting("instance norm 1d", lambda: nn.InstanceNorm1d(3, affine=True), floats(6, 3, 7)),
    Setting("batch norm with fixed statistics", lambda: nn.BatchNorm2d(3).eval(), floats(6, 3, 4, 5)),
    Setting("tied embedding and head", Tied, words(6, 4)),
    Setting("tied, views", Tied, words(6, 4), views=2),
    Setting("layer called twice", lambda: Twice(nn.Linear(5, 5)), floats(6, 5)),
    Setting("sequence layer called twice", lambda: Twice(nn.Linear(5, 5)), floats(6, 9, 5)),
    Setting("convolution called twice", lambda: Twice(nn.Conv2d(3, 3, 3, padding=1)), floats(6, 3, 6, 5)),
    Setting("pixel convolution called twice", lambda: Twice(nn.Conv2d(40, 40, 3, padding=1)), floats(4, 40, 4, 3)),
    Setting("norm called twice", lambda: Twice(nn.LayerNorm(5)), floats(6, 3, 5)),
    Setting("positions [1, T]", lambda: Positions(flat=False), words(6, 4)),
    Setting("positions [T]", lambda: Positions(flat=True), words(6, 4)),
    Setting("positions [T], batch of T", lambda: Positions(flat=True), words(4, 4)),
    Setting("relative positions", lambda: Relative(fused=False), words(6, 4)),
    Setting("relative positions, batch of T", lambda: Relative(fused=False), words(4, 4)),
    Setting("relative positions, views", lambda: Relative(fused=False), words(6, 4), views=2),
    Setting("relative positions in one call", lambda: Relative(fused=True), words(6, 4)),
    Setting("relative positions in one call, views", lambda: Relative(fused=True), words(6, 5), views=2),
    Setting("a bias that a layer inside holds", Inside, floats(6, 3, 4)),
    Setting("bare parameters", Bare, floats(6, 5, 3)),
    Setting("bare parameters, views", Bare, floats(6, 5, 3), views=2),
    Setting("bare, batch as long as the table", lambda: Bare(), floats(9, 8, 3)),
    beside("x @ w", lambda m, x: x @ m.w, floats(6, 5), w=(5, 4)),
    beside("x @ w, batch as long as everything", lambda m, x: x @ m.w, floats(4, 4, 4), w=(4, 4)),
    beside("x @ w on sequences", lambda m, x: torch.matmul(x, m.w), floats(6, 3, 5), w=(5, 4)),
    beside("x @ w.T", lambda m, x: x @ m.w.T, floats(6, 3, 5), w=(4, 5)),
    beside("w @ x", lambda m, x: (m.w @ x).mT, floats(6, 5, 3), w=(4, 5)),
    beside("a low-rank map", lambda m, x: torch.mm(x, m.w) + x @ m.a.T @ m.b.T * 2, floats(6, 5), w=(5, 4), a=(2, 5), b=(4, 2)),
    beside("a product of two", lambda m, x: F.linear(x, m.b @ m.a), floats(6, 5), a=(2, 5), b=(4, 2)),
    beside("under a mask", lambda m, x: x @ (m.w * m.kept), floats(6, 5), w=(5, 4)),
    beside("used twice", lambda m, x: torch.tanh(x @ m.w) @ m.w + m.w.sum(0), floats(6, 4), w=(4, 4)),
    beside("F.linear", lambda m, x: F.linear(x, m.w, bias=m.c), floats(6, 3, 5), w=(4, 5), c=(4,)),
    beside("F.linear of unit vectors", lambda m, x: F.linear(F.normalize(x), F.normalize(m.w)), floats(6, 5), w=(4, 5)),
    beside("addmm", lambda m, x: torch.addmm(m.c, x, m.w), floats(6, 5), w=(5, 4), c=(4,)),
    beside("einsum", lambda m, x: torch.einsum("bti,ij->btj", x, m.w), floats(6, 3, 5), w=(5, 4)),
    beside("tensordot", lambda m, x: torch.tensordot(x, m.w, 1), floats(6, 3, 5), w=(5, 4)),
    beside("convolution", lambda m, x: F.conv2d(x, m.w, m.c).flatten(2), floats(6, 2, 3, 3), w=(3, 2, 2, 2), c=(3,)),
    beside("a table", lambda m, x: F.embedding(x, m.w, padding_idx=-3), words(6, 5), w=(11, 4)),
    beside("an index", lambda m, x: m.w[x - 11], words(6, 5), w=(11, 4)),
    beside("an index into a line", lambda m, x: m.w[x][..., None] * m.kept, words(6, 5), w=(11,)),
    beside("a table transposed", lambda m, x: F.embedding(x, m.w.T), words(6, 5), w=(4, 11)),
    beside("positions", lambda m, x: x + m.w[torch.arange(x.shape[1])], floats(6, 3, 4), w=(7, 4)),
    beside("positions, as many as examples", lambda m, x: x + m.w[torch.arange(x.shape[1])], floats(6, 6, 4), w=(7, 4)),
    beside("layer norm", lambda m, x: F.layer_norm(x, (4,), m.w, m.c), floats(6, 3, 4), w=(4,), c=(4,)),
    beside("group norm", lambda m, x: F.group_norm(x, 2, m.w, m.c), floats(6, 4, 4), w=(4,), c=(4,)),
    beside("prelu, a power and a threshold", lambda m, x: F.prelu(x, m.w).exp().pow(m.c) * (x > m.c), floats(6, 4), w=(4,), c=(4,)),
    beside("tokens that are repeated", lambda m, x: torch.cat([m.w.repeat(len(x), 1, 1), x], 1), floats(6, 5, 4), w=(2, 4)),
    beside("a token that is assigned", lambda m, x: with_first(x, m.w), floats(6, 5, 4), w=(4,)),
    beside("queries", lambda m, x: torch.softmax(m.w @ x.mT, -1) @ x, floats(6, 5, 4), w=(3, 4)),
    beside("prototypes", lambda m, x: F.cosine_similarity(x[:, None], m.w[None], dim=-1) - torch.cdist(x, m.w), floats(6, 5), w=(4, 5)),
    beside("as another tensor is", lambda m, x: x @ m.w.type_as(x).to(x), floats(6, 5), w=(5, 4)),
    beside("detached once", lambda m, x: x @ m.w.detach() + torch.tanh(x @ m.w), floats(6, 5), w=(5, 4)),
    Setting("beside a layer: views", lambda: Beside(lambda m, x: F.linear(x @ m.w, m.c[:4]) + m.t[(x[:, 0] > 0).long()], w=(5, 3), c=(5, 3), t=(2, 4)), floats(6, 5), views=2),
    Setting("beside a layer: one frozen", lambda: frozen(Beside(lambda m, x: x @ m.w @ m.c, w=(5, 5), c=(5, 4)), "w"), floats(6, 5)),
    Setting("held by lists", lambda: Held(layer=True), floats(6, 5)),
    Setting("held by lists, views, one frozen", lambda: frozen(Held(layer=True), "scales.1"), floats(6, 5), views=2),
    Setting("held by lists alone", lambda: Held(layer=False), floats(6, 5)),
    Setting("module of one's own", Scale, floats(6, 3, 5)),
    Setting("module of one's own, views", Scale, floats(6, 3, 5), views=3),
    Setting("module of one's own, time first, with a hook", ScaleTimeFirst, words(5, 6), dim=1),
    Setting("subclass with a forward of its own", lambda: DoubledLinear(5, 3), floats(6, 5)),
    conv_row("convolution with a computation of its own", lambda: Standardised(3, 4, 3), 6, 3, 8, 7),
    Setting("one parameter under two names", one_parameter_twice, floats(6, 3, 5)),
    Setting("bilinear inside", lambda: Twice(nn.Sequential(Scale(), nn.Linear(3, 5))), floats(6, 3, 5)),
    Setting("parametrized", lambda: nn.utils.parametrizations.weight_norm(nn.Linear(5, 3)), floats(6, 5)),
    Setting("weight norm of old", lambda: nn.utils.weight_norm(nn.Linear(5, 3)), floats(6, 5)),
    Setting("pruned", lambda: nn.Sequential(pruned(nn.Linear(5, 6)), nn.Tanh(), nn.Linear(6, 3)), floats(6, 5)),
    Setting("pruned twice, called twice, views", lambda: Twice(pruned(nn.Linear(5, 5), twice=True)), floats(6, 5), views=2),
    conv_row("pruned convolution", lambda: pruned(nn.Conv2d(3, 4, 3), twice=True), 6, 3, 5, 5),
    Setting("dictionary", Dictionary, lambda: {"words": torch.randint(11, (6, 5)), "more": (torch.randn(6, 3),)}),
    Setting("sequence first", SequenceFirst, words(5, 6), dim=1),
]  # fmt: skip


def copied(model: nn.Module, setting: Setting) -> nn.Module:
    """A model of this setting with the same weights. Not by deepcopy, which refuses a weight that a hook computed."""
    twin = setting.model().to(next(model.parameters()).dtype)
    twin.load_state_dict(model.state_dict())
    return twin


def projected(output: Tensor) -> Tensor:
    """One number for each row, from weights that depend on the coordinate alone."""
    rows = torch.tanh(output.float() if output.dtype in (torch.float16, torch.bfloat16) else output).flatten(1)
    weights = torch.sin(torch.arange(rows.shape[1], dtype=rows.dtype) * 1.7 + 0.3)
    return (rows * weights).sum(1) + 0.1 * F.softplus(rows).sum(1)
