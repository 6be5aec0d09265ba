"""Linear maps: torch's layer, the transposed one of transformers (Conv1D), and those inside of larger layers."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from hoarfrost.gradients.contributions import BesideOuter, Block, Dense, Outer
from hoarfrost.gradients.rules.base import (
    LayerRule,
    LiveMasks,
    NamedContributions,
    Recorder,
    flatten_positions,
    sum_positions,
)
from hoarfrost.groups import Groups


class LinearRule(LayerRule):
    """y = x Wᵀ + b on any number of leading dimensions: gradients Σ_t g_t ⊗ x_t and Σ_t g_t."""

    transposed = False

    def contributions(self, module: Any, x: Tensor, g: Tensor, live: LiveMasks, *saved: Tensor) -> NamedContributions:
        x, g = flatten_positions(x), flatten_positions(g)
        outer = Outer(g, x) if self.transposed else Outer(x, g)
        if "weight" in live:
            yield "weight", outer
        if "bias" in live:
            beside = "weight" in live and not self.transposed and g.shape[1] == 1
            yield "bias", BesideOuter(outer) if beside else Dense(sum_positions(g))


class TransposedLinearRule(LinearRule):
    """The same with the weight stored as [inputs, outputs]."""

    transposed = True


ALL = slice(None)


def linear(
    recorder: Recorder,
    x: Tensor,
    dim: int,
    weight: nn.Parameter,
    bias: nn.Parameter | None,
    weight_rows: slice = ALL,
    bias_rows: slice = ALL,
) -> Tensor:
    """x Wᵀ + b, where W and b are some rows of these parameters and ``dim`` of ``x`` counts examples."""
    output = F.linear(x, weight.detach()[weight_rows], None if bias is None else bias.detach()[bias_rows])
    if not any_live(recorder, weight, bias):
        return output

    groups = recorder.groups

    def sink(gradient: Tensor, inputs: tuple[Tensor, ...]) -> None:
        record_linear(recorder, groups, inputs[0], gradient, dim, weight, bias, weight_rows, bias_rows)

    return recorder.tap(output, sink, x)


def any_live(recorder: Recorder, *parameters: nn.Parameter | None) -> bool:
    """Whether any of them is live."""
    return any(p is not None and recorder.trains(p) for p in parameters)


def record_linear(
    recorder: Recorder,
    groups: Groups,
    x: Tensor,
    g: Tensor,
    dim: int,
    weight: nn.Parameter,
    bias: nn.Parameter | None,
    weight_rows: slice = ALL,
    bias_rows: slice = ALL,
) -> None:
    """Adds what such a map contributes, from its input ``x`` and output gradient ``g``, whose rows are ``groups``'."""
    x, g = (flatten_positions(groups.split(t.movedim(dim, 0))) for t in (x, g))
    if recorder.trains(weight):
        start, stop, _ = weight_rows.indices(len(weight))
        whole = stop - start == len(weight)
        recorder.add(weight, Outer(x, g) if whole else Block(x, g, start, len(weight)))
    if bias is not None and recorder.trains(bias):
        start, stop, _ = bias_rows.indices(len(bias))
        recorder.add(bias, Dense(F.pad(sum_positions(g), (start, len(bias) - stop))))
