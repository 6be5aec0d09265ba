"""Multi-head attention: linear maps around a softmax that has no parameters.

The layer reads the parameters of its `out_proj` without ever calling it, so this rule speaks for them too. The output
is computed here, with detached parameters and a tap after each linear map.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hoarfrost.gradients.contributions import Dense, at_least_float32
from hoarfrost.gradients.rules.base import Forward, Recorder, Rule, check_example_dim
from hoarfrost.gradients.rules.linear import LinearRule, linear


class AttentionRule(Rule):
    """nn.MultiheadAttention, with all of its options."""

    parameters = frozenset(
        {"in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias", "bias_k", "bias_v"}
    )

    def recorded(self, module: nn.Module) -> Iterable[nn.Parameter]:
        return module.parameters()

    def applies_to(self, module: Any) -> bool:
        out = module.out_proj
        return (
            set(module._parameters) <= self.parameters
            and not hasattr(module, "parametrizations")
            and isinstance(out, nn.Linear)
            and type(out).forward is nn.Linear.forward
            and LinearRule().applies_to(out)
        )

    def forward(self, recorder: Recorder, module: Any, original: Forward, args: Any, kwargs: Any) -> Any:
        given = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
        check_example_dim(recorder, module, (args, kwargs), given["query"], given["key"], given["value"])
        return _attend(recorder, module, *args, **kwargs)


def _attend(
    recorder: Recorder,
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """What `nn.MultiheadAttention.forward` returns for the same arguments."""
    if is_causal and attn_mask is None:
        raise RuntimeError("is_causal is a hint about attn_mask, which is missing.")
    dim, heads = 0 if module.batch_first else 1, module.num_heads
    q, k, v = (t.movedim(dim, 0) for t in _projected(recorder, module, query, key, value, dim))
    if module.bias_k is not None:
        k = torch.cat([k, _for_each_row(recorder, module.bias_k, len(k))], 1)
        v = torch.cat([v, _for_each_row(recorder, module.bias_v, len(v))], 1)
    if module.add_zero_attn:
        k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
    q, k, v = (t.unflatten(2, (heads, -1)).transpose(1, 2) for t in (q, k, v))  # [rows, heads, length, channels]

    # Where the hint can be used, torch itself does not look at the mask that comes with it.
    hinted = is_causal and key_padding_mask is None and not need_weights
    mask = None if hinted else _merged(attn_mask, key_padding_mask, heads, k.shape[2], query.dtype)
    dropout = module.dropout if module.training else 0.0
    weights = None
    if need_weights:
        scores = (q * q.shape[-1] ** -0.5) @ k.mT
        weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
        attended = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        attended = F.scaled_dot_product_attention(q, k, v, mask, dropout, hinted)
    attended = attended.transpose(1, 2).flatten(2).movedim(0, dim)
    return linear(recorder, attended, dim, module.out_proj.weight, module.out_proj.bias), weights


def _projected(recorder: Recorder, module: Any, q: Tensor, k: Tensor, v: Tensor, dim: int) -> tuple[Tensor, ...]:
    """Queries, keys and values; inputs that are the same tensor are projected together."""
    e, packed, bias = module.embed_dim, module.in_proj_weight, module.in_proj_bias
    separate = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)

    def project(x: Tensor, first: int, count: int = 1) -> tuple[Tensor, ...]:
        rows = slice(first * e, (first + count) * e)
        weight, weight_rows = (separate[first], slice(0, e)) if packed is None else (packed, rows)
        return linear(recorder, x, dim, weight, bias, weight_rows, rows).chunk(count, -1)

    if packed is not None and q is k and k is v:
        return project(q, 0, 3)
    if packed is not None and k is v:
        return *project(q, 0), *project(k, 1, 2)
    return *project(q, 0), *project(k, 1), *project(v, 2)


def _for_each_row(recorder: Recorder, parameter: nn.Parameter, rows: int) -> Tensor:
    """A key or value [1, 1, E] that the sequences share, once for each of them: [rows, 1, E]."""
    copies = parameter.detach().repeat(rows, 1, 1)
    if not recorder.trains(parameter):
        return copies
    groups = recorder.groups

    def sink(gradient: Tensor, inputs: tuple[Tensor, ...]) -> None:
        recorder.add(parameter, Dense(groups.split(at_least_float32(gradient)).sum(1, keepdim=True)))

    return recorder.tap(copies, sink)


def _merged(mask: Tensor | None, padding: Tensor | None, heads: int, keys: int, dtype: torch.dtype) -> Tensor | None:
    """Both masks as one number to add to each score, [L, S] or [rows, heads, L, S]; keys that were added get 0."""
    if mask is not None and mask.dim() == 3:
        mask = mask.unflatten(0, (-1, heads))
    if padding is not None:
        padding = padding[:, None, None]
    numbers = [_numbers(m, dtype) for m in (mask, padding) if m is not None]
    if not numbers:
        return None
    total = numbers[0] if len(numbers) == 1 else numbers[0] + numbers[1]
    return F.pad(total, (0, keys - total.shape[-1]))


def _numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    return mask if mask.is_floating_point() else torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, float("-inf"))
