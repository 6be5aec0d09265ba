"""Embedding and EmbeddingBag: a gradient that is rows of a table."""

from typing import Any

import torch
from torch import Tensor

from hoarfrost.errors import NotPrivate
from hoarfrost.gradients.contributions import Contribution, Dense, Rows, at_least_float32
from hoarfrost.gradients.rules.base import (
    Forward,
    LayerRule,
    LiveMasks,
    NamedContributions,
    Recorder,
    Rule,
    detached,
)
from hoarfrost.groups import Groups


def check_settings(module: Any, name: str) -> None:
    """Refuses the two settings of both layers under which examples mix."""
    if module.scale_grad_by_freq:
        raise NotPrivate(
            f"{name}: scale_grad_by_freq divides an example's gradient by how often the whole batch uses a word, "
            "which mixes examples. Set scale_grad_by_freq=False."
        )
    if module.max_norm is not None:
        raise NotPrivate(
            f"{name}: max_norm rewrites the rows that a batch uses, without noise: it tells which rows those were. "
            "Set max_norm=None, or project the whole table after optimizer.step()."
        )


class EmbeddingRule(LayerRule):
    """y = W[x]; the row ``padding_idx`` gets no gradient."""

    def check(self, module: Any, name: str) -> None:
        check_settings(module, name)

    def contributions(self, module: Any, x: Tensor, g: Tensor, live: LiveMasks, *saved: Tensor) -> NamedContributions:
        yield "weight", rows_of_table(x, g, module.num_embeddings, module.padding_idx)


def rows_of_table(x: Tensor, g: Tensor, height: int, padding: int | None) -> Rows:
    """What looking up ``x`` [B, ...] in a table of this height contributes; its row ``padding`` gets no gradient."""
    g = at_least_float32(g)
    if padding is not None:
        g = torch.where((x == padding).unsqueeze(-1), 0, g)
    entries = x.numel() // max(1, len(x))
    owner = torch.arange(len(x), device=x.device).repeat_interleave(entries)
    return Rows(owner, x.reshape(-1), g.reshape(-1, g.shape[-1]), len(x), height, even=True)


class EmbeddingBagRule(Rule):
    """Sums, means or maxima of table rows; a bag is an example, given as [bags, entries] or flat with offsets."""

    parameters = frozenset({"weight"})

    def check(self, module: Any, name: str) -> None:
        check_settings(module, name)

    def forward(self, recorder: Recorder, module: Any, original: Forward, args: Any, kwargs: Any) -> Any:
        names = ("input", "offsets", "per_sample_weights")
        given = dict(zip(names, args, strict=False)) | kwargs
        index, offsets, weights = (given.get(name) for name in names)
        with detached(module):
            output = original(*args, **kwargs)
        bags = output.shape[0]
        if bags != recorder.rows:
            raise NotPrivate(
                f"{recorder.name_of(module)} (EmbeddingBag) makes {bags} bags for {recorder.rows} examples, "
                "so its gradients cannot be attributed to individual examples. Give every example exactly one bag."
            )
        if offsets is None:
            owner = torch.arange(bags, device=index.device).repeat_interleave(index.shape[1])
        else:
            # With include_last_offset the last offset closes the last bag and opens none.
            starts = offsets[:bags]
            owner = torch.searchsorted(starts, torch.arange(len(index), device=index.device), right=True) - 1
        flat = index.reshape(-1)
        kept = torch.ones_like(flat, dtype=torch.bool) if module.padding_idx is None else flat != module.padding_idx
        share = output.new_ones(len(flat)) if weights is None else weights.detach().reshape(-1)
        if module.mode == "mean":
            share = share / share.new_zeros(bags).index_add_(0, owner, kept.to(share))[owner]
        owner, flat, share = owner[kept], flat[kept], share[kept]
        groups = recorder.groups

        def sink(gradient: Tensor, saved: tuple[Tensor, ...]) -> None:
            owner, flat, share = saved
            g = at_least_float32(gradient)
            contribution: Contribution
            if module.mode == "max":
                contribution = _max_rows(module, owner, flat, g, groups)
            else:
                values = g[owner] * share.to(g).unsqueeze(1)
                contribution = Rows(groups.owner(owner), flat, values, groups.count(bags), module.num_embeddings)
            recorder.add(module.weight, contribution)

        return recorder.tap(output, sink, owner, flat, share)


def _max_rows(module: Any, owner: Tensor, index: Tensor, g: Tensor, groups: Groups) -> Contribution:
    """Each output coordinate's gradient goes to the one row that was largest there."""
    table = at_least_float32(module.weight.detach())
    bags = torch.arange(len(g), device=g.device)
    starts = torch.searchsorted(owner, bags)
    largest = torch.embedding_bag(table, index, starts, mode=2)[3]
    filled = torch.zeros(len(g), device=g.device).index_add_(0, owner, torch.ones_like(owner, dtype=torch.float32)) > 0
    rows = g.new_zeros(len(g), *table.shape)
    rows.scatter_(1, largest.clamp(min=0).unsqueeze(1), torch.where(filled.unsqueeze(1), g, 0).unsqueeze(1))
    return Dense(groups.split(rows).sum(1))
