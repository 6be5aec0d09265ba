"""The table of losses that mix examples, and of right ones that must not be taken for such. A new one is a new row.

A row makes, from the random numbers that are seeded before, what `check_independence` is called with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.checkpoint import checkpoint


@dataclass
class Program:
    """A model, a batch, and what a loop would differentiate."""

    model: nn.Module
    batch: Any
    loss: Callable[[Any, Any], Tensor] | None = None
    options: dict[str, Any] = field(default_factory=dict)


def number_of_examples() -> int:
    return int(torch.randint(4, 13, ()))


def mlp(outputs: int = 3, *layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), *layers, nn.Linear(6, outputs))


def labelled(classes: int = 3) -> tuple[Tensor, Tensor]:
    """Classes differ."""
    rows = number_of_examples()
    labels = torch.randint(classes, (rows,))
    labels[:classes] = torch.randperm(classes)[:rows]
    return torch.randn(rows, 4), labels


def with_loss(loss: Callable[[Tensor, Tensor], Tensor], classes: int = 3, **options: Any) -> Callable[[], Program]:
    """A small classifier with this loss of logits and labels."""
    return lambda: Program(mlp(classes), labelled(classes), lambda output, batch: loss(output, batch[1]), options)


def with_losses(reduce: Callable[[Tensor], Tensor], **options: Any) -> Callable[[], Program]:
    """The same, from one loss per example."""
    return with_loss(lambda output, y: reduce(F.cross_entropy(output, y, reduction="none")), **options)


class Words(nn.Module):
    """A language model of single words, whose head may be its embedding."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embedding(words)))


def lengths() -> list[int]:
    """At least two that differ."""
    return [1, 5, *torch.randint(1, 7, (number_of_examples(),)).tolist()]


def texts() -> list[Tensor]:
    return [torch.randint(1, 9, (length,)) for length in lengths()]


def padded(padding: int = -100) -> tuple[Tensor, Tensor]:
    found = texts()
    return pad_sequence(found, batch_first=True), pad_sequence(found, batch_first=True, padding_value=padding)


def token_losses(output: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(output.mT, targets, reduction="none")


def collated(examples: list[Tensor]) -> tuple[Tensor, Tensor]:
    return pad_sequence(examples, batch_first=True), pad_sequence(examples, batch_first=True, padding_value=-100)


def focal(losses: Tensor) -> Tensor:
    return ((losses / losses.detach().max()) ** 2 * losses).mean()


def cvar(losses: Tensor) -> Tensor:
    return losses[losses >= losses.detach().quantile(0.7)].mean()


def top_quarter(losses: Tensor) -> Tensor:
    return losses.topk(max(1, len(losses) // 4)).values.mean()


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2, n_positions=8))


def gpt2_batch(ignored: bool) -> dict[str, Tensor]:
    words = pad_sequence(texts(), batch_first=True)
    if words.shape[1] < 3:
        words = F.pad(words, (0, 3))
    return {"input_ids": words, "labels": words.masked_fill(words == 0, -100) if ignored else words}


def bert() -> Program:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    rows = number_of_examples()
    batch = {"input_ids": torch.randint(9, (rows, 4)), "labels": torch.randint(2, (rows,))}
    return Program(BertForSequenceClassification(BertConfig(vocab_size=9, **sizes)), batch)


class Applied(nn.Module):
    """A small classifier, and something that is done to its hidden numbers."""

    def __init__(self, function: Callable[[Tensor], Tensor], outputs: int = 3) -> None:
        super().__init__()
        self.function = function
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.function(torch.tanh(self.body(x))))


def applied(function: Callable[[Tensor], Tensor]) -> Callable[[], Program]:
    return lambda: Program(Applied(function), labelled(), lambda output, batch: F.cross_entropy(output, batch[1]))


def fake_quantised(x: Tensor) -> Tensor:
    scale = x.detach().abs().max() / 7
    return x + ((x / scale).round() * scale - x).detach()


def hooked(x: Tensor) -> Tensor:
    x.register_hook(lambda g: g / g.norm())
    return x


def with_backward_hook(divide: Callable[[Tensor], Any]) -> Callable[[], Program]:
    def make() -> Program:
        model = mlp()
        model[1].register_full_backward_hook(lambda module, before, after: (before[0] / divide(before[0]),))
        return Program(model, labelled(), lambda output, batch: F.cross_entropy(output, batch[1]))

    return make


def mixed_up(x: Tensor) -> Tensor:
    return 0.7 * x + 0.3 * x[torch.randperm(len(x))]


@dataclass
class Output:
    loss: Tensor
    logits: Tensor


class OwnLoss(nn.Module):
    """Returns its loss: alone, in a dataclass, or in a dictionary."""

    def __init__(self, kind: str, centred: bool) -> None:
        super().__init__()
        self.inner, self.kind, self.centred = mlp(), kind, centred

    def forward(self, x: Tensor, y: Tensor) -> Any:
        logits = self.inner(x)
        if self.centred:
            logits = logits - logits.mean(0)
        loss = F.cross_entropy(logits, y)
        return {"alone": loss, "dataclass": Output(loss, logits), "dict": {"loss": loss}, "tuple": (loss, logits)}[
            self.kind
        ]


def own_loss(kind: str, centred: bool) -> Callable[[], Program]:
    def make() -> Program:
        x, y = labelled()
        return Program(OwnLoss(kind, centred), {"x": x, "y": y})

    return make


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.image(x) @ self.text(x.flip(1)).T


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.mean = mlp(), 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()
        return self.inner(x - self.mean)


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 4), nn.Linear(2, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log = self.encoder(x).chunk(2, 1)
        return self.decoder(mean + torch.randn_like(mean) * (log / 2).exp()), mean, log


def vae_loss(output: Any, x: Tensor) -> Tensor:
    decoded, mean, log = output
    return F.mse_loss(decoded, x, reduction="sum") / len(x) - 0.5 * (1 + log - mean**2 - log.exp()).sum(1).mean()


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -0.3 * gradient


class Packed(nn.Module):
    def __init__(self, enforce_sorted: bool) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 5, batch_first=True, num_layers=2, dropout=0.3), nn.Linear(5, 2)
        self.enforce_sorted = enforce_sorted

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, sizes = batch
        packed = pack_padded_sequence(x, sizes, batch_first=True, enforce_sorted=self.enforce_sorted)
        hidden, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.head(hidden.sum(1))


def packed(enforce_sorted: bool) -> Program:
    sizes = torch.tensor(sorted(lengths(), reverse=True))
    x = torch.randn(len(sizes), 6, 4)
    batch = ((x, sizes), torch.randint(2, (len(sizes),)))
    return Program(Packed(enforce_sorted), batch, lambda output, batch: F.cross_entropy(output, batch[1]))


class Several(nn.Module):
    """Two heads and an auxiliary loss, in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.other = mlp(6), nn.Linear(6, 3), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.body(x)
        return {
            "logits": self.head(hidden),
            "size": self.other(Reversed.apply(hidden)),
            "auxiliary": hidden.square().mean(1),
        }


def several_losses(output: dict[str, Tensor], batch: Any) -> Tensor:
    size = F.mse_loss(output["size"].squeeze(1), batch[1].float())
    return F.cross_entropy(output["logits"], batch[1]) + 0.3 * size + 0.1 * output["auxiliary"].mean()


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = mlp(6, nn.Dropout(0.5)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.body, x, use_reentrant=False))


class LayerDrop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if torch.rand(()) < 0.5:
                x = torch.tanh(layer(x))
        return self.head(x)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True)
    return nn.Sequential(
        nn.Embedding(9, 4), nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(4, 9)
    )


def tokens_of_equal_length() -> tuple[Tensor, Tensor]:
    words = torch.randint(9, (number_of_examples(), 5))
    return words, words


def pairs() -> Tensor:
    return torch.randn(number_of_examples(), 2, 4)


def siamese(output: Tensor, batch: Any) -> Tensor:
    """Looks contrastive; but the two that are compared belong to one example."""
    return -F.logsigmoid((output[:, 0] * output[:, 1]).sum(1)).mean()


def over_tokens(output: Tensor, batch: Any) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), batch[1].flatten())


def own_means(output: Tensor, batch: Any) -> Tensor:
    return (token_losses(output, batch[1]).sum(1) / (batch[1] != -100).sum(1)).mean()


def recollated(loss: Callable[[Any, Any], Tensor]) -> Callable[[], Program]:
    def make() -> Program:
        dataset = texts()
        return Program(Words(), list(range(len(dataset))), loss, {"dataset": dataset, "collate": collated})

    return make


def regression(loss: Callable[[Tensor, Tensor], Tensor], model: Callable[[], nn.Module]) -> Callable[[], Program]:
    def make() -> Program:
        rows = number_of_examples()
        return Program(model(), (torch.randn(rows, 4), torch.randn(rows)), lambda output, batch: loss(output, batch[1]))

    return make


class Squeezed(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze()


W100, W1000 = torch.tensor([1.0, 100.0]), torch.tensor([1.0, 1000.0])

MIXES: dict[str, Callable[[], Program]] = {
    "CrossEntropyLoss(weight=[1, 100])": with_loss(nn.CrossEntropyLoss(weight=W100), classes=2),
    "CrossEntropyLoss(weight=[1, 1000])": with_loss(nn.CrossEntropyLoss(weight=W1000), classes=2),
    "weights and label smoothing": with_loss(nn.CrossEntropyLoss(weight=W100, label_smoothing=0.1), classes=2),
    "[B, 1] against [B]": regression(F.mse_loss, lambda: mlp(1)),
    "mean over tokens that are not padding": lambda: Program(Words(), padded(), over_tokens),
    "division by the batch's number of tokens": lambda: Program(
        Words(), padded(), lambda o, b: token_losses(o, b[1]).sum() / (b[1] != -100).sum()
    ),
    "padding to the longest, and a mean over all": recollated(lambda o, b: token_losses(o, b[0]).mean()),
    "GPT-2's own loss with -100": lambda: Program(gpt2(), gpt2_batch(ignored=True)),
    "focal loss over the batch's maximum": with_losses(focal),
    "CVaR": with_losses(cvar),
    "top 25 %": with_losses(top_quarter),
    "losses by their mean, one per example": with_losses(lambda losses: losses / losses.detach().mean()),
    "a root of the mean": regression(lambda o, y: F.mse_loss(o[:, 0], y).sqrt(), lambda: mlp(1)),
    "a little of the others": with_loss(lambda o, y: F.cross_entropy(o + 1e-4 * o.mean(0), y)),
    "contrastive": lambda: Program(
        mlp(3), torch.randn(number_of_examples(), 4), lambda o, b: F.cross_entropy(o @ o.T, torch.arange(len(o)))
    ),
    "[B, B] logits of the model": lambda: Program(
        TwoTowers(), torch.randn(number_of_examples(), 4), lambda o, b: F.cross_entropy(o, torch.arange(len(o)))
    ),
    "BatchNorm": lambda: Program(mlp(3, nn.BatchNorm1d(6)), labelled()),
    "a mean that is subtracted": applied(lambda x: x - x.mean(0)),
    "division by the batch's maximum": applied(lambda x: x / x.abs().max()),
    "fake quantisation": applied(fake_quantised),
    "manifold mix-up": applied(mixed_up),
    "a tensor hook over the batch": applied(hooked),
    "a backward hook over the batch": with_backward_hook(lambda g: g.norm()),
    "centred logits, own loss": own_loss("alone", centred=True),
    "centred logits in a dataclass": own_loss("dataclass", centred=True),
    "centred logits in a dictionary": own_loss("dict", centred=True),
    "a running mean": lambda: Program(Remembering(), labelled()),
    "a sum under mean": with_losses(torch.sum),
    "a mean under sum": with_losses(torch.mean, loss_reduction="sum"),
}  # fmt: skip

RIGHT: dict[str, Callable[[], Program]] = {
    "cross entropy": with_loss(F.cross_entropy),
    "a sum": with_losses(torch.sum, loss_reduction="sum"),
    "one per example": with_losses(lambda losses: losses),
    "label smoothing": with_loss(nn.CrossEntropyLoss(label_smoothing=0.2)),
    "weights, not divided": with_loss(
        lambda o, y: (F.cross_entropy(o, y, reduction="none") * W100[y]).mean(), classes=2
    ),
    "focal loss": with_losses(lambda losses: ((1 - (-losses).exp()) ** 2 * losses).mean()),
    "several labels": with_loss(lambda o, y: F.binary_cross_entropy_with_logits(o, F.one_hot(y, 3).to(o.dtype))),
    "mean over an example's own tokens": lambda: Program(Words(), padded(), own_means),
    "the same, collated anew": recollated(own_means),
    "mean over all tokens of texts of one length": lambda: Program(Words(), tokens_of_equal_length(), over_tokens),
    "tied weights": lambda: Program(Words(tied=True), padded(), own_means),
    "GPT-2's own loss": lambda: Program(gpt2(), gpt2_batch(ignored=False)),
    "BERT's own loss": bert,
    "own loss": own_loss("alone", centred=False),
    "own loss in a dataclass": own_loss("dataclass", centred=False),
    "own loss in a tuple": own_loss("tuple", centred=False),
    "VAE": lambda: Program(VAE(), torch.randn(number_of_examples(), 4), vae_loss),
    "several heads, gradient reversal, an auxiliary loss": lambda: Program(Several(), labelled(), several_losses),
    "a packed LSTM": lambda: packed(enforce_sorted=False),
    "a packed LSTM that wants a sorted batch": lambda: packed(enforce_sorted=True),
    "dropout": lambda: Program(
        mlp(3, nn.Dropout(0.5), nn.AlphaDropout(0.2)), labelled(), lambda o, b: F.cross_entropy(o, b[1])
    ),
    "an encoder with dropout": lambda: Program(encoder(), tokens_of_equal_length(), over_tokens),
    "RReLU": lambda: Program(mlp(3, nn.RReLU()), labelled(), lambda o, b: F.cross_entropy(o, b[1])),
    "random numbers around the logits": with_loss(
        lambda o, y: F.cross_entropy(torch.distributions.Normal(o, 0.1).rsample() * torch.bernoulli(o.sigmoid()), y)
    ),
    "CTC": lambda: Program(
        nn.Linear(4, 5), (torch.randn(5, 9, 4), torch.randint(1, 5, (5, 4)), torch.tensor([1, 2, 3, 4, 2])),
        lambda o, b: F.ctc_loss(o.log_softmax(2).transpose(0, 1), b[1], torch.full((len(o),), 9), b[2]),
    ),
    "checkpointing": lambda: Program(Checkpointed(), labelled(), lambda o, b: F.cross_entropy(o, b[1])),
    "LayerDrop": lambda: Program(LayerDrop(), labelled(), lambda o, b: F.cross_entropy(o, b[1])),
    "Gumbel softmax": applied(lambda x: F.gumbel_softmax(x)),
    "a hook that scales": with_backward_hook(lambda g: 3.0),
    "two of one example": lambda: Program(nn.Linear(4, 3), pairs(), siamese),
    "a model that ends in squeeze": regression(F.mse_loss, lambda: Squeezed(*mlp(1))),
    "weight_norm": regression(lambda o, y: F.mse_loss(o.squeeze(1), y), lambda: nn.utils.weight_norm(nn.Linear(4, 1))),
    "bfloat16": lambda: Program(
        mlp().bfloat16(), (labelled()[0].bfloat16(), torch.randint(3, (0,))), lambda o, b: o.square().sum(1).mean()
    ),
    "examples in the second dimension": lambda: Program(
        nn.LSTM(4, 3), torch.randn(5, number_of_examples(), 4), lambda o, b: o[0].square().sum((0, 2)).mean(),
        {"batch_first": False},
    ),
}  # fmt: skip
