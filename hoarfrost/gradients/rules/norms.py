"""Normalisation layers: a scale and a shift for each feature, so their per-example gradients are simply written out."""

from abc import abstractmethod
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hoarfrost.errors import NotPrivate
from hoarfrost.gradients.contributions import Dense, at_least_float32
from hoarfrost.gradients.rules.base import Forward, LayerRule, LiveMasks, NamedContributions


class LayerNormRule(LayerRule):
    """Statistics over an example's own trailing dimensions."""

    def normalised(self, module: Any, x: Tensor) -> Tensor:
        return F.layer_norm(x, module.normalized_shape, eps=module.eps)

    def contributions(self, module: Any, x: Tensor, g: Tensor, live: LiveMasks, *saved: Tensor) -> NamedContributions:
        x, g = at_least_float32(x), at_least_float32(g)
        between = tuple(range(1, g.dim() - len(module.normalized_shape)))
        if "weight" in live:
            yield "weight", Dense((g * self.normalised(module, x)).sum(between))
        if "bias" in live:
            yield "bias", Dense(g.sum(between))


class RMSNormRule(LayerNormRule):
    """The same without a mean and without a shift."""

    parameters = frozenset({"weight"})

    def normalised(self, module: Any, x: Tensor) -> Tensor:
        # The layer's own default eps belongs to the input's type, which is not always the type worked in.
        eps = module.eps if module.eps is not None else torch.finfo(module.weight.dtype).eps
        return F.rms_norm(x, module.normalized_shape, eps=eps)


class ChannelNormRule(LayerRule):
    """A scale and a shift for each channel, [B, K, C, ...], after some mean and standard deviation were taken out."""

    @abstractmethod
    def statistics(self, module: Any, x: Tensor, *saved: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and 1/standard deviation for each channel of ``x`` [B, K, C, S]: both broadcast to [B, K, C]."""

    def contributions(self, module: Any, x: Tensor, g: Tensor, live: LiveMasks, *saved: Tensor) -> NamedContributions:
        x, g = (at_least_float32(t).reshape(*t.shape[:3], -1) for t in (x, g))
        shift = g.sum(3)
        if "weight" in live:
            # Σ g·(x − mean)/std, from two sums: the normalised input is never written out.
            product = torch.einsum("bkcs,bkcs->bkc", g, x)
            mean, inverse = self.statistics(module, x, *saved)
            yield "weight", Dense(((product - shift * mean) * inverse).sum(1))
        if "bias" in live:
            yield "bias", Dense(shift.sum(1))


class GroupNormRule(ChannelNormRule):
    """Statistics over groups of an example's own channels and their space."""

    def run(self, module: Any, original: Forward, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        # What F.group_norm calls: it knows the statistics, which take as long to compute again as the whole layer.
        x = args[0].contiguous()
        n, channels, space = len(x), x.shape[1], prod(x.shape[2:])
        weight, bias = module.weight, module.bias
        output, mean, inverse = torch.native_group_norm(
            x, weight, bias, n, channels, space, module.num_groups, module.eps
        )
        return output, mean.detach(), inverse.detach()

    def statistics(self, module: Any, x: Tensor, *saved: Tensor) -> tuple[Tensor, Tensor]:
        size = x.shape[2] // module.num_groups
        mean, inverse = (at_least_float32(t).repeat_interleave(size, 2) for t in saved)
        return mean, inverse


class InstanceNormRule(ChannelNormRule):
    """Every channel is a group of its own. Running statistics would carry the data out of the step without noise."""

    def check(self, module: Any, name: str) -> None:
        if module.track_running_stats:
            raise NotPrivate(
                f"{name} ({type(module).__name__}) keeps running statistics of the data, which would leave the step "
                "without noise. Set track_running_stats=False, or call hoarfrost.make_compatible(model)."
            )

    def statistics(self, module: Any, x: Tensor, *saved: Tensor) -> tuple[Tensor, Tensor]:
        variance, mean = torch.var_mean(x, dim=3, correction=0)
        return mean, (variance + module.eps).rsqrt()


class BatchNormRule(ChannelNormRule):
    """Only with fixed statistics, in evaluation mode: there it is a scale and a shift like any other."""

    def check(self, module: Any, name: str) -> None:
        if module.training or module.running_mean is None:
            raise NotPrivate(
                f"{name} ({type(module).__name__}) normalises every example by the others in its batch, so "
                "gradients cannot be attributed to individual examples. Call hoarfrost.make_compatible(model) to put "
                "GroupNorm in its place, or keep this module in eval() with running statistics that come from public "
                "data."
            )

    def statistics(self, module: Any, x: Tensor, *saved: Tensor) -> tuple[Tensor, Tensor]:
        running = (module.running_mean, module.running_var)
        mean, variance = (at_least_float32(t).to(x).expand(*x.shape[:3]) for t in running)
        return mean, (variance + module.eps).rsqrt()
