"""check_independence(): changes one example and sees that no other example's output or loss moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hoarfrost.errors import InvalidValue, NotPrivate
from hoarfrost.gradients.probe import cuda_devices, examples_in, random_states_held, seed_all, tensors_in
from hoarfrost.nested import map_tensors

TOLERANCE = 1e-4  # batches of another size may be added up in another order


def check_independence(
    model: nn.Module,
    batch: Any,
    loss: Callable[[Any, Any], Tensor] | None = None,
    *,
    loss_reduction: Literal["mean", "sum"] = "mean",
    batch_first: bool = True,
) -> None:
    """Raises `NotPrivate` if an example of ``batch`` influences another's output or loss gradient.

    The batch is run as it is, with its first example replaced, and with its first example left out. ``batch`` is a
    tensor, a mapping (the model is called with it as keyword arguments) or a tuple whose first entry the model is
    called with. ``loss(output, batch)`` is what the training loop differentiates; a Hugging Face output brings its own.
    Use a real batch of at least three examples: a loss that divides by the number of tokens, say, shows only where
    examples differ in length.

    >>> check_independence(nn.Linear(3, 2), torch.randn(4, 3))
    >>> check_independence(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), torch.randn(4, 3))
    Traceback (most recent call last):
        ...
    hoarfrost.errors.NotPrivate: 1 (BatchNorm1d): changing one example moves the output of others. ...

    Guarantees:
        A failed check is a proof that examples mix. A passed one is evidence for this batch, not a proof.
    """
    examples = examples_in(tensors_in(batch), None, batch_first)
    if examples.rows < 3:
        raise InvalidValue(f"check_independence needs a batch of at least 3 examples, got {examples.rows}")
    others = list(range(1, examples.rows))

    def run(b: Any, rows: int) -> tuple[dict[str, Any], Tensor | None]:
        return _run(model, b, loss, rows, rows if loss_reduction == "mean" else 1, batch_first)

    with _as_it_was(model):
        seen, gradient = run(batch, examples.rows)
        replaced = map_tensors(lambda t: _replaced(t, examples.dim(t)), batch)
        _compare(model, seen, run(replaced, examples.rows), gradient, "changing", 1, batch_first)
    with _as_it_was(model), _without_dropout(model):
        seen, gradient = run(batch, examples.rows)
        smaller = examples.pick(batch, others)
        _compare(model, seen, run(smaller, examples.rows - 1), gradient, "leaving out", 0, batch_first)


def _compare(
    model: nn.Module, before: dict[str, Tensor], now: Any, gradient: Tensor | None, what: str, start: int, first: bool
) -> None:
    """Rows of all examples but the first must be as they were; in ``now`` they begin at ``start``."""
    after, gradient_after = now

    def moved(a: Tensor, b: Tensor) -> bool:
        a, b = a[1:], b[start:]
        return a.shape != b.shape or not torch.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * _size(a), equal_nan=True)

    for name in before:
        if name in after and moved(before[name], after[name]):
            kind = type(model.get_submodule(name)).__name__
            raise NotPrivate(
                f"{name or 'the model'} ({kind}): {what} one example moves the output of others. Use a layer that "
                "treats examples one by one; hoarfrost.make_compatible(model) swaps BatchNorm for GroupNorm."
            )
    if gradient is not None and gradient_after is not None and moved(gradient, gradient_after):
        raise NotPrivate(
            f"the loss: {what} one example moves the loss gradient of others. Let every example's loss depend on that "
            "example alone: no statistics over the batch, and no division by a count that examples contribute to (as "
            'ignore_index does in a mean over tokens; add up with reduction="none" and divide by a constant).'
        )


def _run(
    model: nn.Module, batch: Any, loss: Any, rows: int, scale: int, first: bool
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Outputs of all modules by name, and the loss's gradient in the model's output, examples in front."""
    seen: dict[str, Tensor] = {}
    dim = 0 if first else 1

    def keep(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if not isinstance(output, Tensor) or not output.is_floating_point():
                return
            if output.dim() > dim and output.shape[dim] == rows:
                seen.setdefault(name, output.detach().clone().movedim(dim, 0))

        return hook

    hooks = [module.register_forward_hook(keep(name)) for name, module in model.named_modules()]
    try:
        devices = cuda_devices(model)
        with random_states_held(devices), torch.enable_grad():
            seed_all(0, devices)
            output = _call(model, batch)
            value = loss(output, batch) if loss is not None else getattr(output, "loss", None)
            gradient = None if value is None else _gradient_of(value, output, rows, scale)
    finally:
        for hook in hooks:
            hook.remove()
    return seen, gradient


def _call(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(batch[0] if isinstance(batch, tuple | list) else batch)


def _gradient_of(value: Tensor, output: Any, rows: int, scale: int) -> Tensor | None:
    tensors: list[Tensor] = []
    map_tensors(lambda t: tensors.append(t) if t.requires_grad and t is not value else None, output)
    if value.dim():
        return value.detach() if value.shape[0] == rows else None
    gradients = torch.autograd.grad(value, tensors, allow_unused=True)
    usable = [g for g in gradients if g is not None and g.dim() and g.shape[0] == rows]
    return torch.cat([g.flatten(1) if g.dim() > 1 else g[:, None] for g in usable], 1) * scale if usable else None


def _replaced(t: Tensor, dim: int | None) -> Tensor:
    """The first example gets the second's place, and numbers that no example has."""
    if dim is None:
        return t
    rows = t.movedim(dim, 0).clone()
    rows[0] = rows[1] * 3 + 1 if rows.is_floating_point() else rows[1]
    return rows.movedim(0, dim)


def _size(t: Tensor) -> float:
    finite = t[t.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


@contextmanager
def _as_it_was(model: nn.Module) -> Iterator[None]:
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, b in model.named_buffers():
                b.copy_(buffers[name])


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    # A smaller batch draws other random numbers; dropout would hide what is looked for.
    random = [m for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.training]
    for m in random:
        m.eval()
    try:
        yield
    finally:
        for m in random:
            m.train()
