"""Bottleneck adapters: two narrow layers behind a sublayer of a transformer, and the only ones that are trained.

"houlsby" puts one behind attention and one behind the feed-forward layers of every block, and trains the LayerNorms,
too (Houlsby et al., 2019). "pfeiffer" puts one behind the feed-forward layers alone (Pfeiffer et al., 2021). The head
is trained with both.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

from torch import Tensor, nn

from hoarfrost.errors import InvalidValue
from hoarfrost.info import head_of
from hoarfrost.validate import whole

Kind = Literal["houlsby", "pfeiffer"]
# The last layer of each sublayer, by its name within a block that has a number.
ATTENTION = (
    r"attention\.output\.dense|attention\.out_lin|attention\.attn\.o|attention\.(dense|o_proj)|attn\.c_proj"
    r"|self_attn\.(o_proj|out_proj)|SelfAttention\.o"
)
FEED_FORWARD = r"output\.dense|ffn\.lin2|ffn_output|mlp\.(fc2|c_proj|down_proj)|DenseReluDense\.wo"
SPREAD = 0.01  # of the first weights, so that the model begins very near to what it was


class Adapter(nn.Module):
    """x + up(activation(down(x))).

    >>> adapter = Adapter(8, 2)
    >>> import torch
    >>> x = torch.randn(3, 8)
    >>> torch.allclose(adapter(x), x, atol=0.01)
    True
    """

    def __init__(self, width: int, size: int, activation: Callable[[], nn.Module] = nn.GELU) -> None:
        super().__init__()
        self.down, self.activation, self.up = nn.Linear(width, size), activation(), nn.Linear(size, width)
        for layer in (self.down, self.up):
            nn.init.trunc_normal_(layer.weight, std=SPREAD, a=-2 * SPREAD, b=2 * SPREAD)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.up(self.activation(self.down(x)))
        return x + change


class Adapted(nn.Module):
    """A layer, and an adapter behind it."""

    def __init__(self, base_layer: nn.Module, adapter: Adapter) -> None:
        super().__init__()
        self.base_layer, self.adapter = base_layer, adapter

    @property
    def weight(self) -> Any:
        """That of the layer, whose type some models ask for."""
        return self.base_layer.weight

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.adapter(self.base_layer(*args, **kwargs))


def add_adapters(
    model: nn.Module,
    size: int = 16,
    kind: Kind = "pfeiffer",
    *,
    train: tuple[str, ...] = (),
    activation: Callable[[], nn.Module] = nn.GELU,
) -> nn.Module:
    """Puts bottleneck adapters into a transformer, and freezes everything but them and the head.

    Call it before the optimizer is built and `make_private` is called. The model is changed, and returned.

    Args:
        model: a model of the transformers library: BERT, RoBERTa, ELECTRA, DeBERTa, DistilBERT, MPNet, ALBERT, ViT,
            CLIP, GPT-2, Llama, T5, and others whose sublayers have the same names. Its head is what is outside of
            its trunk (`hoarfrost.info.head_of`).
        size: the width of the bottleneck.
        kind: "houlsby" (behind attention and feed-forward layers, LayerNorms trained) or "pfeiffer" (behind
            feed-forward layers alone).
        train: further parameters to train, by name; with * and ?, as in ``("*.pooler.*",)``.
        activation: makes the function between the two layers.

    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> sizes = dict(hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=20)
    >>> model = add_adapters(BertForSequenceClassification(BertConfig(vocab_size=31, **sizes)), size=2)
    >>> [name.removeprefix("bert.encoder.layer.0.") for name, p in model.named_parameters() if p.requires_grad][::2]
    ['output.dense.adapter.down.weight', 'output.dense.adapter.up.weight', 'classifier.weight']
    """
    if kind not in get_args(Kind):
        raise InvalidValue(f'kind is "houlsby" or "pfeiffer", not {kind!r}')
    whole(size=size)
    layers = _last_layers(model, FEED_FORWARD)
    if kind == "houlsby":
        layers = _last_layers(model, ATTENTION) + layers
    head = head_of(model, dict(model.named_parameters()))
    names = [name for name, _ in model.named_parameters()]
    unknown = [pattern for pattern in train if not any(fnmatchcase(name, pattern) for name in names)]
    if unknown:
        raise InvalidValue(f"train={train!r}: no parameter has a name like {unknown[0]!r}")
    for name, p in model.named_parameters():
        p.requires_grad_(name in head or any(fnmatchcase(name, pattern) for pattern in train))
    if kind == "houlsby":
        for module in model.modules():
            if type(module).__name__.endswith(("LayerNorm", "RMSNorm")):
                module.requires_grad_()
    for parent, key in layers:
        base = getattr(parent, key)
        adapter = Adapter(_width(base), size, activation)
        setattr(parent, key, Adapted(base, adapter.to(base.weight.device, base.weight.dtype)))
    return model


def _last_layers(model: nn.Module, names: str) -> list[tuple[nn.Module, str]]:
    """The layers with these names, each as the module that holds it and its name there."""
    found = []
    for path, module in model.named_modules():
        if not re.search(rf"\.\d+\.({names})$", path):
            continue
        if isinstance(module, Adapted):
            raise InvalidValue(f"{path} has an adapter already: add_adapters is called once for a model")
        parent, _, key = path.rpartition(".")
        found.append((model.get_submodule(parent), key))
    if not found:
        raise InvalidValue(
            f"{type(model).__name__} has no blocks whose sublayers end in layers of known names "
            "(0.attention.output.dense, 0.output.dense, 0.mlp.fc2, ...): add_adapters cannot tell where adapters belong"
        )
    return found


def _width(layer: Any) -> int:
    """How many numbers come out of a linear layer, be it torch's or that of transformers (Conv1D)."""
    return int(layer.out_features if isinstance(layer, nn.Linear) else layer.nf)
