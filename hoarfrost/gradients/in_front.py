"""What stands in front of a model: hooks on its input, networks below it, and rows that the loop has picked.

Looked at in the first runs, since none of it is in the model, where the probe would see it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hoarfrost.errors import NotPrivate
from hoarfrost.gradients import probe
from hoarfrost.gradients.few import Few
from hoarfrost.nested import map_tensors

if TYPE_CHECKING:
    from hoarfrost.gradients.engine import Engine
    from hoarfrost.tickets import Ticket

COMPARED = 1 << 22  # elements that are compared to find rows again


@torch.no_grad()
def refuse_hooks(engine: Engine, few: Few) -> None:
    """Refuses a `forward_pre_hook` of the whole model that makes one example's input depend on another.

    It has changed what reaches the model already, and is tried on that once more.
    """
    model = engine.model
    for key, hook in list(model._forward_pre_hooks.items()):
        with_kwargs = key in model._forward_pre_hooks_with_kwargs
        before = _outcome(hook, engine, few, with_kwargs)
        for way in few.ways(0) if before and few.count > 1 else ():
            after = _outcome(hook, engine, way, with_kwargs)
            if not after or len(after) != len(before):
                continue
            for a, b in zip(before, after, strict=True):
                rows = a.shape[:1] == (few.rows,) and a.shape == b.shape and a.is_floating_point()
                if rows and not torch.allclose(a[few.views :], b[few.views :], rtol=1e-4, atol=1e-6, equal_nan=True):
                    name = getattr(hook, "__qualname__", type(hook).__name__)
                    raise NotPrivate(
                        f"the forward_pre_hook {name} of the model: changing one example of the batch changes what it "
                        "makes of others, so gradients cannot be attributed to individual examples. Let it treat "
                        "every example by itself, with means and scales that are fixed beforehand."
                    )
            break


def _outcome(hook: Any, engine: Engine, few: Few, with_kwargs: bool) -> list[Tensor]:
    """The tensors that the hook makes of some examples; none if it does not take them."""
    devices = probe.cuda_devices(engine.model)
    args, kwargs = map_tensors(torch.clone, few.arguments)
    with probe.random_states_held(devices):
        probe.seed_all(0, devices)
        try:
            result = hook(engine.model, args, kwargs) if with_kwargs else hook(engine.model, args)
        except Exception:
            return []
    found: list[Tensor] = []
    map_tensors(found.append, (args, kwargs) if result is None else result)
    return found


def refuse_batch_norm(nodes: Iterable[Any]) -> None:
    """Refuses what was computed with statistics of the batch, below the model."""
    for node in nodes:
        if "BatchNorm" in node.name() and getattr(node, "_saved_training", False):
            raise NotPrivate(
                "what the model is given was computed by a batch norm in training mode, in another network in front "
                "of it: its statistics are the batch's, so that one example moves what all others contribute. Put "
                "that network into evaluation mode, backbone.eval(), and call it under torch.no_grad(); or make it "
                "part of the private model"
            )


@torch.no_grad()
def refuse_picked(ticket: Ticket, tensors: Sequence[Tensor], rows: int, drawn: int) -> None:
    """Refuses a run on some rows of a chunk in another order: they were compared with each other to pick them."""
    if not 1 < rows < drawn:
        return
    for t in tensors:
        for whole in (each() for each in ticket.tensors):
            alike = whole is not None and whole.dtype == t.dtype and whole.shape[1:] == t.shape[1:]
            if whole is None or not alike or (len(t), len(whole)) != (rows, drawn):
                continue
            few, many = t.flatten(1) if t.dim() > 1 else t[:, None], whole.flatten(1) if t.dim() > 1 else whole[:, None]
            width = max(1, COMPARED // (rows * drawn))
            same = (few[:, None, :width] == many[None, :, :width].to(few.device)).all(2)
            if bool((same.sum(1) == 1).all()) and not bool((same.int().argmax(1).diff() > 0).all()):
                raise NotPrivate(
                    "the model runs on some rows of a batch, in another order than the loader's: it seems that they "
                    "were picked by comparing them (the hardest, by topk or argsort), so that one example more moves "
                    "others in or out, and clipping does not bound it. Run the model on all rows, and weigh each "
                    "example's loss by itself, with a threshold that is fixed beforehand: optimizer.backward(losses). "
                    "Rows that are left out for what they hold themselves stay in their order: x[mask]"
                )
