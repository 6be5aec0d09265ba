"""Multi-head attention: linear maps around a softmax that has no parameters.

The layer reads the parameters of its `out_proj` without ever calling it, so this rule speaks for them too. The output
is computed here, with detached parameters and a tap after each linear map.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from hoarfrost.errors import NotPrivate
from hoarfrost.gradients.contributions import Contribution, Dense, Outer, working
from hoarfrost.gradients.rules.base import Forward, Recorder, Rule, positions, split_views
from hoarfrost.gradients.rules.linear import LinearRule


class AttentionRule(Rule):
    """nn.MultiheadAttention, with all of its options."""

    recurse = True
    parameters = frozenset(
        {"in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias", "bias_k", "bias_v"}
    )

    def knows(self, module: Any) -> bool:
        out = module.out_proj
        return (
            set(module._parameters) <= self.parameters
            and not hasattr(module, "parametrizations")
            and isinstance(out, nn.Linear)
            and type(out).forward is nn.Linear.forward
            and LinearRule().knows(out)
        )

    def forward(self, recorder: Recorder, module: Any, original: Forward, args: Any, kwargs: Any) -> Any:
        given = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
        expect_examples(recorder, module, (args, kwargs), given["query"], given["key"], given["value"])
        return _attend(recorder, module, *args, **kwargs)


def expect_examples(recorder: Recorder, module: Any, arguments: Any, *sequences: Tensor) -> None:
    """Refuses any of the ``sequences`` in a call's ``arguments`` whose examples are not where the module expects them.

    Anywhere else they would be steps of one sequence, and see each other.
    """
    expected = 0 if module.batch_first else 1
    tensors = [t for t in tree_flatten(arguments)[0] if isinstance(t, Tensor)]
    order = {id(t): i for i, t in enumerate(tensors)}
    dim_of = recorder.example_dims(module, default=expected)
    for t in sequences:
        if t.is_nested or t.dim() != 3 or dim_of(order[id(t)], t) != expected:
            given = "a nested input" if t.is_nested else f"an input of shape {tuple(t.shape)}"
            raise NotPrivate(
                f"{recorder.name_of(module)} ({type(module).__name__}, batch_first={module.batch_first}) gets {given}, "
                f"where the {recorder.rows} examples must be dimension {expected} of 3: anywhere else they would be "
                "steps of one sequence, and mix. Set batch_first to what the model uses, and give every example a "
                "sequence of its own."
            )


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
    if not live(weight, bias):
        return output

    def sink(gradient: Tensor, inputs: tuple[Tensor, ...]) -> None:
        record_linear(recorder, inputs[0], gradient, dim, weight, bias, weight_rows, bias_rows)

    return recorder.tap(output, sink, x)


def live(*parameters: nn.Parameter | None) -> bool:
    """Whether any of them is to be trained."""
    return any(p is not None and p.requires_grad for p in parameters)


def record_linear(
    recorder: Recorder,
    x: Tensor,
    g: Tensor,
    dim: int,
    weight: nn.Parameter,
    bias: nn.Parameter | None,
    weight_rows: slice = ALL,
    bias_rows: slice = ALL,
) -> None:
    """Adds what such a map contributes, from its input ``x`` and output gradient ``g``."""
    x, g = (positions(split_views(t.movedim(dim, 0), recorder.views)) for t in (x, g))
    if weight.requires_grad:
        start, stop, _ = weight_rows.indices(len(weight))
        whole = stop - start == len(weight)
        recorder.add(weight, Outer(x, g) if whole else Block(x, g, start, len(weight)))
    if bias is not None and bias.requires_grad:
        start, stop, _ = bias_rows.indices(len(bias))
        recorder.add(bias, Dense(F.pad(working(g).sum(1), (start, len(bias) - stop))))


class Block(Contribution):
    """An `Outer` about the rows from ``start`` on, of a matrix that has ``height`` rows."""

    def __init__(self, a: Tensor, g: Tensor, start: int, height: int):
        self.a, self.g, self.outer = a, g, Outer(a, g)
        self.examples, self.start, self.stop, self.height = len(a), start, start + g.shape[2], height

    def squared_norms(self) -> Tensor:
        return self.outer.squared_norms()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self._placed(self.outer.weighted_sum(weights))

    def instantiate(self) -> Tensor:
        return self._placed(self.outer.instantiate())

    def take(self, index: Tensor) -> Contribution:
        return Block(self.a[index], self.g[index], self.start, self.height)

    def inner_products(self, other: Contribution) -> tuple[Tensor, Tensor] | None:
        if not isinstance(other, Block) or (self.start < other.stop and other.start < self.stop):
            return None
        # The three projections of one call have no row in common.
        zeros = self.outer.g.new_zeros(self.examples)
        return zeros, zeros

    def _placed(self, rows: Tensor) -> Tensor:
        return F.pad(rows, (0, 0, self.start, self.height - self.stop))


def _for_each_row(recorder: Recorder, parameter: nn.Parameter, rows: int) -> Tensor:
    """A key or value [1, 1, E] that the sequences share, once for each of them: [rows, 1, E]."""
    copies = parameter.detach().repeat(rows, 1, 1)
    if not parameter.requires_grad:
        return copies
    views = recorder.views

    def sink(gradient: Tensor, inputs: tuple[Tensor, ...]) -> None:
        recorder.add(parameter, Dense(split_views(working(gradient), views).sum(1, keepdim=True)))

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
