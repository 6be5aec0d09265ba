"""One rule for each kind of layer, and which module gets which."""

from __future__ import annotations

from torch import nn

from hoarfrost.gradients.rules.attention import AttentionRule
from hoarfrost.gradients.rules.base import Recorder, Rule
from hoarfrost.gradients.rules.conv import ConvRule
from hoarfrost.gradients.rules.direct import DirectParametersRule
from hoarfrost.gradients.rules.embedding import EmbeddingBagRule, EmbeddingRule
from hoarfrost.gradients.rules.fallback import FallbackRule
from hoarfrost.gradients.rules.linear import LinearRule, TransposedLinearRule
from hoarfrost.gradients.rules.norms import (
    BatchNormRule,
    GroupNormRule,
    InstanceNormRule,
    LayerNormRule,
    RMSNormRule,
)
from hoarfrost.gradients.rules.recurrent import RecurrentRule

__all__ = ["Recorder", "Rule", "rule_for"]

RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: LinearRule(),
    nn.Conv1d: ConvRule(),
    nn.Conv2d: ConvRule(),
    nn.Conv3d: ConvRule(),
    nn.ConvTranspose1d: ConvRule(),
    nn.ConvTranspose2d: ConvRule(),
    nn.ConvTranspose3d: ConvRule(),
    nn.Embedding: EmbeddingRule(),
    nn.EmbeddingBag: EmbeddingBagRule(),
    nn.LayerNorm: LayerNormRule(),
    nn.RMSNorm: RMSNormRule(),
    nn.GroupNorm: GroupNormRule(),
    nn.InstanceNorm1d: InstanceNormRule(),
    nn.InstanceNorm2d: InstanceNormRule(),
    nn.InstanceNorm3d: InstanceNormRule(),
    nn.BatchNorm1d: BatchNormRule(),
    nn.BatchNorm2d: BatchNormRule(),
    nn.BatchNorm3d: BatchNormRule(),
    nn.SyncBatchNorm: BatchNormRule(),
    nn.MultiheadAttention: AttentionRule(),
    nn.RNN: RecurrentRule(),
    nn.LSTM: RecurrentRule(),
    nn.GRU: RecurrentRule(),
}
COMPUTATION = ("forward", "_conv_forward")  # the methods by which a subclass changes what it computes
# Known by name, so that the library they come from is not needed to know them.
RULES_BY_NAME: dict[str, Rule] = {"transformers.pytorch_utils.Conv1D": TransposedLinearRule()}


def rule_for(module: nn.Module) -> Rule | None:
    """The rule for this module's own parameters; None if it has none of its own and needs none.

    A subclass of a known layer may compute something else, and so may an instance with a `forward` of its own: they get
    the layer's rule only while they keep the layer's computation, and the fallback otherwise.
    """
    kind = type(module)
    rule = RULES_BY_NAME.get(f"{kind.__module__}.{kind.__qualname__}")
    for known in kind.__mro__:
        if known in RULES and all(getattr(kind, name, None) is getattr(known, name, None) for name in COMPUTATION):
            rule = RULES[known]
            break
    own = [p for p in module._parameters.values() if p is not None]
    ordinary = len(set(own)) == len(own) and all(p.is_floating_point() for p in own) and "forward" not in vars(module)
    if rule is not None and ordinary and rule.applies_to(module):
        return rule
    if not any(True for _ in module.parameters(recurse=False)):
        return None
    inside = any(True for child in module.children() for _ in child.parameters())
    return DirectParametersRule() if inside and not hasattr(module, "parametrizations") else FallbackRule()
