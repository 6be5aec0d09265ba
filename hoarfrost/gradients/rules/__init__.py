"""One rule for each kind of layer, which module gets which, and what a rule of one's own is made from."""

from hoarfrost.gradients.contributions import Contribution, Dense, Outer, Rows, at_least_float32
from hoarfrost.gradients.rules.base import (
    LayerRule,
    LiveMasks,
    NamedContributions,
    Recorder,
    Rule,
    detached,
    flatten_positions,
    sum_positions,
)
from hoarfrost.gradients.rules.registry import register_rule, rule_for

__all__ = [
    "Contribution",
    "Dense",
    "LayerRule",
    "LiveMasks",
    "NamedContributions",
    "Outer",
    "Recorder",
    "Rows",
    "Rule",
    "at_least_float32",
    "detached",
    "flatten_positions",
    "register_rule",
    "rule_for",
    "sum_positions",
]
