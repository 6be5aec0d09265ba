"""make_compatible(): puts layers that treat examples one by one in the place of layers that mix them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

GROUPS = 32  # as GroupNorm's authors recommend, where the channels divide


def make_compatible(model: nn.Module, *, tell: Callable[[str], object] | None = None) -> nn.Module:
    """Swaps BatchNorm for GroupNorm, and drops the running statistics of InstanceNorm; scales and shifts are kept.

    Works on the model in place, and returns it (or, if it is a BatchNorm itself, what is put in its place). The swapped
    layers have new parameters: build the optimizer afterwards. The swapped model computes something else than it did,
    so a pretrained one needs a little training to get used to it.

    Args:
        tell: called with one sentence for each change.

    >>> model = make_compatible(nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48)), tell=print)
    1: BatchNorm2d(48) → GroupNorm(24, 48)
    """
    for name, module in list(model.named_modules()):
        swap = next((make for kind, make in SWAPS.items() if isinstance(module, kind)), None)
        replacement = swap(module) if swap else None
        if replacement is None:
            continue
        replacement.train(module.training)
        after = (
            f"GroupNorm({replacement.num_groups}, {replacement.num_channels})"
            if isinstance(replacement, nn.GroupNorm)
            else f"{type(module).__name__} without running statistics"
        )
        if tell is not None:
            tell(f"{name or 'the model'}: {type(module).__name__}({module.num_features}) → {after}")
        if not name:
            return replacement
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, replacement)
    return model


def _group_norm(module: Any) -> nn.Module:
    channels = module.num_features
    # A group of one channel without space would be normalised to nothing; BatchNorm1d often has no space.
    most = 1 if isinstance(module, nn.BatchNorm1d) else min(GROUPS, max(1, channels // 2))
    groups = next(g for g in range(most, 0, -1) if channels % g == 0)
    at = module.running_mean if module.weight is None else module.weight
    place = {} if at is None else {"device": at.device, "dtype": at.dtype}
    norm = nn.GroupNorm(groups, channels, eps=module.eps, affine=module.affine, **place)
    return _with_affine_of(module, norm)


def _instance_norm(module: Any) -> nn.Module | None:
    if not module.track_running_stats:
        return None
    place = {"device": module.running_mean.device, "dtype": module.running_mean.dtype}
    norm = type(module)(module.num_features, eps=module.eps, affine=module.affine, **place)
    return _with_affine_of(module, norm)


def _with_affine_of(module: Any, norm: Any) -> nn.Module:
    if module.affine:
        with torch.no_grad():
            norm.weight.copy_(module.weight)
            norm.bias.copy_(module.bias)
        norm.weight.requires_grad_(module.weight.requires_grad)
        norm.bias.requires_grad_(module.bias.requires_grad)
    result: nn.Module = norm
    return result


SWAPS: dict[type[nn.Module], Callable[[Any], nn.Module | None]] = {
    nn.modules.instancenorm._InstanceNorm: _instance_norm,
    nn.modules.batchnorm._BatchNorm: _group_norm,
}
