"""A transformer encoder of MiniLM's shape, for classifying short texts."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hoarfrost.registry import component


class _Attention(nn.Module):
    """Self-attention with separate projections: [B, T, width] -> [B, T, width]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [B, heads, T, width/heads]
            for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value)
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(-2))
        return output


class _Layer(nn.Module):
    """Attention, then a feed-forward net; each is added to its input and normalised, as in BERT."""

    def __init__(self, width: int, heads: int, feedforward: int) -> None:
        super().__init__()
        self.attention = _Attention(width, heads)
        self.attention_norm = nn.LayerNorm(width)
        self.feedforward = nn.Sequential(nn.Linear(width, feedforward), nn.GELU(), nn.Linear(feedforward, width))
        self.feedforward_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x))
        output: Tensor = self.feedforward_norm(x + self.feedforward(x))
        return output


class Encoder(nn.Module):
    """Token ids [B, T] -> logits [B, classes], read from the first token.

    ``positions`` are the ids of the positions: by default 0 to T-1, one row [1, T] for the whole batch as in
    BERT; [B, T] gives every example a row of its own.
    """

    def __init__(
        self,
        *,
        classes: int,
        vocabulary: int,
        length: int,
        width: int,
        layers: int,
        heads: int,
        feedforward: int,
    ) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.position_embedding = nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(*(_Layer(width, heads, feedforward) for _ in range(layers)))
        self.pooler = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)
        for embedding in (self.token_embedding, self.position_embedding):
            nn.init.normal_(embedding.weight, std=0.02)  # BERT's

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        x: Tensor = self.layers(self.norm(self.token_embedding(tokens) + self.position_embedding(positions)))
        logits: Tensor = self.head(torch.tanh(self.pooler(x[:, 0])))
        return logits


@component("model", "encoder")
def encoder(classes: int = 2) -> Encoder:
    """Six layers of width 384 with 12 heads, for texts of at most 512 tokens, with all embeddings trained.

    22,713,218 parameters with 2 classes. The shape is that of MiniLM-L6-H384 (Wang et al., 2020), without its
    token types.
    """
    return Encoder(classes=classes, vocabulary=30522, length=512, width=384, layers=6, heads=12, feedforward=1536)
