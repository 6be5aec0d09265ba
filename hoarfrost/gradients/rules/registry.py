"""Which module gets which rule."""

from __future__ import annotations

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from hoarfrost.errors import InvalidValue
from hoarfrost.gradients.rules.attention import AttentionRule
from hoarfrost.gradients.rules.base import Rule
from hoarfrost.gradients.rules.conv import ConvRule
from hoarfrost.gradients.rules.direct import DirectParametersRule, only_holds, own_parameters
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
from hoarfrost.gradients.rules.recurrent import CellRule, RecurrentRule

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
    nn.RNNCell: CellRule(),
    nn.LSTMCell: CellRule(),
    nn.GRUCell: CellRule(),
}
COMPUTATION = ("forward", "_conv_forward")  # the methods by which a subclass changes what it computes
# Known by name, so that the library they come from is not needed to know them.
RULES_BY_NAME: dict[str, Rule] = {
    "transformers.pytorch_utils.Conv1D": TransposedLinearRule(),
    # It writes into a matrix of zeros, which torch.func cannot do for each example.
    "peft.tuners.oft.layer.OFTRotationModule": DirectParametersRule(),
}


def register_rule(module_class: type[nn.Module], rule: Rule, *, replace: bool = False) -> None:
    """Adds a gradient rule for a layer class of your own, for all models that are made private from now on.

    Without one, a module gets the fallback, which is correct but writes out every example's gradient. A rule can avoid
    that: write a subclass of `hoarfrost.rules.LayerRule` (one tensor in, one tensor out) or of `hoarfrost.rules.Rule`.
    `hoarfrost.gradients.rules.base` says what a rule must do.

    Args:
        module_class: the layer. Its subclasses get the rule too, as long as they keep its ``forward``.
        rule: an instance of the rule. It is shared by all modules of the class, so it must keep no state.
        replace: must be True if the class has a rule already, its own or that of a class it inherits from.

    >>> class ScaledLinear(nn.Linear):
    ...     def forward(self, input):
    ...         return 3.0 * super().forward(input)
    >>> class ScaledLinearRule(LinearRule):
    ...     def contributions(self, module, x, g, live, *saved):
    ...         return super().contributions(module, x, 3.0 * g, live, *saved)
    >>> register_rule(ScaledLinear, ScaledLinearRule())
    >>> type(rule_for(ScaledLinear(4, 2))).__name__
    'ScaledLinearRule'

    Guarantees:
        None beyond what the rule keeps of its contract. Compare a new rule with per-example gradients of plain
        autograd before you rely on it.
    """
    if not (isinstance(module_class, type) and issubclass(module_class, nn.Module)):
        given = f"type({type(module_class).__name__} instance)" if isinstance(module_class, nn.Module) else "its class"
        raise InvalidValue(f"register_rule needs a subclass of nn.Module, got {module_class!r}: pass {given}")
    if module_class.forward is nn.Module.forward:
        raise InvalidValue(
            f"{module_class.__name__} has no forward of its own, so there is nothing that a rule could differentiate. "
            "Register the rule for the class that defines forward."
        )
    if not isinstance(rule, Rule):
        is_class = isinstance(rule, type) and issubclass(rule, Rule)
        fix = f"pass an instance, {rule.__name__}()" if is_class else "derive it from hoarfrost.rules.LayerRule or Rule"
        raise InvalidValue(f"register_rule needs a rule for {module_class.__name__}, got {rule!r}: {fix}")
    present = _rule_of_class(module_class)
    if present is not None and not replace:
        raise InvalidValue(
            f"{module_class.__name__} has a rule already ({type(present).__name__}). Pass replace=True to use "
            f"{type(rule).__name__} in its place."
        )
    RULES[module_class] = rule


def rule_for(module: nn.Module) -> Rule | None:
    """The rule for this module's own parameters; None if it has none of its own and needs none.

    A subclass of a known layer may compute something else, and so may an instance with a `forward` of its own: they get
    the layer's rule only while they keep the layer's computation, and the fallback otherwise.
    """
    rule = _rule_of_class(type(module))
    own = [p for p in module._parameters.values() if p is not None]
    ordinary = len(set(own)) == len(own) and all(p.is_floating_point() for p in own) and "forward" not in vars(module)
    if rule is not None and ordinary and rule.applies_to(module):
        return rule
    if is_parametrized(module):  # its weights are computed by inner modules, whatever it holds itself
        return FallbackRule()
    held = {p for _, p in own_parameters(module)}
    if not held or only_holds(module):
        return None
    return FallbackRule() if held.issuperset(module.parameters()) else DirectParametersRule()


def _rule_of_class(kind: type[nn.Module]) -> Rule | None:
    """The rule of the class, or of the nearest class it inherits its whole computation from."""
    for known in kind.__mro__:
        if known in RULES and all(getattr(kind, name, None) is getattr(known, name, None) for name in COMPUTATION):
            return RULES[known]
    return RULES_BY_NAME.get(f"{kind.__module__}.{kind.__qualname__}")
