"""check_independence(): leaves out and replaces examples one by one, and sees that what the others contribute stays.

Let S(B) be what a batch B contributes: the gradient of a sum loss, or of a mean loss times the number of examples. Each
example contributes on its own exactly if S(B) is the sum of the S({i}), whatever the model and the loss are made of. So
S(B) - S(B without i) must be S({i}), and replacing i by r must add S({r}) - S({i}). Gradients are plain autograd's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hoarfrost.calls import call, own_loss
from hoarfrost.errors import InvalidValue, NotPrivate
from hoarfrost.gradients.forward import Wrapped
from hoarfrost.gradients.held_still import held_still
from hoarfrost.gradients.members import Collated, Members, Picked, example_dim, spread, tensors_of

LossFunction = Callable[[Any, Any], Tensor]
Place = tuple[str, bool]  # a module, and whether what reaches it is meant, or what comes out of it
TESTED = 8  # examples of a batch that are left out and replaced, one after the other
# How much of a sum rounding may move. Models compute some things in float32 whatever they are cast to.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 2e-3, torch.bfloat16: 5e-2, torch.float16: 2e-2}


def check_independence(
    model: nn.Module,
    batch: Any,
    loss: LossFunction | None = None,
    *,
    dataset: Any = None,
    collate: Callable[[list[Any]], Any] | None = None,
    loss_reduction: Literal["mean", "sum"] = "mean",
    batch_first: bool = True,
) -> None:
    """Raises `NotPrivate` if an example of ``batch`` has a say in what another one contributes to the gradient.

    Examples are left out and replaced one after the other (of a large batch, eight of them), and the gradient must
    change by that example's own. The model and all generators of random numbers are as before afterwards.

    Args:
        batch: a tensor, a mapping (the model is called with it as keyword arguments) or a tuple whose first entry the
            model is called with; of at least three examples. With ``dataset``: the indices of some examples, or their
            number. Take real ones: a loss that divides by the number of tokens shows where examples differ in length.
        loss: ``loss(output, batch)`` is what the training loop differentiates, or the losses [rows] that it hands to
            `optimizer.backward`. A model may return its own, alone or as ``output.loss``. Without any, only the model
            is looked at.
        dataset, collate: batches are collated anew for every run, as a loader would: padding to the longest shows.
        loss_reduction, batch_first: as for `make_private`.

    >>> check_independence(nn.Linear(3, 2), torch.randn(4, 3))
    >>> check_independence(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), torch.randn(4, 3))
    Traceback (most recent call last):
        ...
    hoarfrost.errors.NotPrivate: 1 (BatchNorm1d): changing one example moves the output of others. ...

    Guarantees:
        A failed check shows that examples mix. A passed one is evidence for this batch, not a proof.
    """
    members = Picked(batch, batch_first) if dataset is None else Collated(dataset, batch, collate)
    examine(model, members, loss, loss_reduction=loss_reduction, batch_first=batch_first)


def examine(
    model: nn.Module,
    members: Members,
    loss: LossFunction | None,
    *,
    loss_reduction: Literal["mean", "sum"],
    batch_first: bool,
    tested: int = TESTED,
) -> None:
    """`check_independence` on examples that are already there."""
    count = members.count
    if count < 3:
        raise InvalidValue(f"check_independence needs at least 3 examples, got {count}")
    chosen = spread(count, tested)
    with _paused(model):
        for twin, dtype in _twins(model):
            with held_still(twin) as begin:
                check = _Check(twin, members, loss, loss_reduction, batch_first, dtype, begin)
                try:
                    together = check.sums(check.whole)
                except Exception:  # not everything can be computed in float64, and not everything can be copied
                    if twin is model:
                        raise
                    continue
                check.run(chosen, together)
                return


def _twins(model: nn.Module) -> Iterator[tuple[nn.Module, torch.dtype | None]]:
    """What the model can be looked at: a copy in float64, a copy as it is, or the model itself."""
    try:
        yield copy.deepcopy(model).double(), torch.float64
        yield copy.deepcopy(model), None
    except (RuntimeError, TypeError, NotImplementedError):
        pass
    yield model, None


def _paused(model: nn.Module) -> AbstractContextManager[None]:
    forward = model.__dict__.get("forward")
    return forward.engine.paused() if isinstance(forward, Wrapped) else nullcontext()


class NotFinite(InvalidValue):
    """Examples of which nothing can be seen."""


class Unrepeatable(NotPrivate):
    """Something keeps what it has seen."""


@dataclass
class _Check:
    model: nn.Module
    members: Members
    loss: LossFunction | None
    reduction: str
    batch_first: bool
    dtype: torch.dtype | None  # that floating-point inputs are cast to
    begin: Callable[[int], None]  # another run, with this seed

    @property
    def whole(self) -> list[int]:
        return [*range(self.members.count)]

    def run(self, chosen: Sequence[int], together: list[Tensor]) -> None:
        """Leaves out and replaces each of the chosen; ``together`` is S of the whole batch."""
        whole = self.whole
        self._check_repeatable(together)
        for i in chosen:
            alone, without = self._alone(i), self.sums([k for k in whole if k != i])
            change = [t - w - a for t, w, a in zip(together, without, alone, strict=True)]
            self._refuse_if(change, (together, without, alone), i, "leaving out")
            for stand_in in self.members.stand_ins(i):
                try:
                    other = self._alone(stand_in)
                    replaced = self.sums([stand_in if k == i else k for k in whole])
                except (RuntimeError, ValueError, IndexError):
                    continue  # a model may insist on a sorted batch, or on numbers of some range
                if all(t.isfinite().all() for t in other):
                    change = [
                        r - t - o + a for r, t, o, a in zip(replaced, together, other, alone, strict=True)
                    ]  # fmt: skip
                    self._refuse_if(change, (replaced, together, other, alone), i, "changing")
                    break

    def sums(self, members: Sequence[Any], seed: int = 0) -> list[Tensor]:
        """S of these examples, for every parameter."""
        self.begin(seed)
        batch, rows = self._batch(members)
        output = call(self.model, batch)
        value = self.loss(output, batch) if self.loss is not None else own_loss(output)
        if value is None:
            value = self._made_up_losses(output, rows)
        if not isinstance(value, Tensor) or (value.dim() and value.shape != (rows,)):
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InvalidValue(f"the loss must be a single number, or one for each of the {rows} rows, got {got}")
        scale = rows if value.dim() == 0 and self.reduction == "mean" else 1
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        if not parameters:
            raise InvalidValue("no parameter of the model requires a gradient: there is nothing that could be trained")
        found: Sequence[Tensor | None] = [None] * len(parameters)
        if value.requires_grad:
            found = torch.autograd.grad(value.sum() * scale, parameters, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g.to_dense() for g, p in zip(found, parameters, strict=True)]

    def _batch(self, members: Sequence[Any]) -> tuple[Any, int]:
        device = next(self.model.parameters()).device
        return self.members.batch(members, device, self.dtype), len(members) * self.members.views

    def _alone(self, member: Any) -> list[Tensor]:
        try:
            return self.sums([member])
        except (RuntimeError, ValueError, IndexError):
            # BatchNorm and models that end in .squeeze() cannot run on one example. Twice the same is twice as much.
            return [t / 2 for t in self.sums([member, member])]

    def _made_up_losses(self, output: Any, rows: int) -> Tensor:
        """Of each example's outputs alone. They are not linear, or they would not see a mean that is subtracted."""
        if isinstance(self.members, Collated):
            raise InvalidValue("check_independence needs loss= with dataset=: padding in outputs shall not count")
        losses: list[Tensor] = []
        for t in tensors_of(output):
            dim = example_dim(t, rows, self.batch_first)
            if dim is not None and t.is_floating_point() and t.requires_grad:
                own = t.movedim(dim, 0).reshape(rows, -1)
                weight = 1.5 + torch.arange(own.shape[1], dtype=own.dtype, device=own.device).sin()
                losses.append(((own + own * own / 2) * weight).sum(1))
        if not losses:
            raise InvalidValue("the model returns no tensor of examples: give check_independence its loss=")
        return torch.stack(losses).sum(0)

    def _check_repeatable(self, together: list[Tensor]) -> None:
        if not all(bool(t.isfinite().all()) for t in together):
            raise NotFinite(
                "the gradient of these examples is not finite, and shows nothing: check with examples whose loss is"
            )
        again = self.sums(self.whole)
        if self._differs([a - b for a, b in zip(again, together, strict=True)], (again, together)):
            raise Unrepeatable(
                "the same batch has another gradient when it is run again: the model or the loss keeps something of "
                "what it has seen, and carries it into later batches. Keep nothing from one batch to the next."
            )
        other = self.sums(self.whole, seed=1)
        if self._differs([a - b for a, b in zip(other, together, strict=True)], (other, together)):
            raise InvalidValue(
                "the loss is random, and its random numbers cannot be held still: draw them with torch, or check the "
                "model in evaluation mode"
            )

    def _differs(self, change: list[Tensor], terms: Sequence[list[Tensor]]) -> float:
        """How large the change is against the terms, if it is more than rounding can do; else 0."""
        tolerance = max(TOLERANCE.get(t.dtype, 5e-2) for t in change)
        lengths = torch.tensor([[float(t.norm()) for t in term] for term in terms])
        moved = torch.tensor([float(t.norm()) for t in change])
        overall = lengths.norm(dim=1).max()
        if bool((moved <= tolerance * (lengths.amax(0) + overall / 10)).all()):
            return 0.0
        return float(moved.norm() / overall)

    def _refuse_if(self, change: list[Tensor], terms: Sequence[list[Tensor]], i: int, what: str) -> None:
        size = self._differs(change, terms)
        if not size:
            return
        for (name, reaches), how in self._mixing_places(i):
            kind = type(self.model.get_submodule(name)).__name__
            if reaches:
                raise NotPrivate(
                    f"what reaches {name or 'the model'} ({kind}): {how} one example moves what is computed for "
                    "others. Compute every example from that example alone: no statistics over the batch in forward()."
                )
            raise NotPrivate(
                f"{name or 'the model'} ({kind}): {how} one example moves the output of others. Use a layer that "
                "treats examples one by one; hoarfrost.make_compatible(model) swaps BatchNorm for GroupNorm."
            )
        hooked = [n for n, m in self.model.named_modules() if m._backward_hooks or m._backward_pre_hooks]
        where = f"the loss, or a backward hook of {hooked[0] or 'the model'}" if hooked else "the loss"
        much = f" by {100 * size:.2g} % of it" if isfinite(size) else ""
        raise NotPrivate(
            f"{where}: {what} one example moves what the others contribute to the gradient{much}. Let every "
            "example's loss depend on that example alone: no statistics over the batch, no [B, 1] against [B], and no "
            "division by what examples have a say in, as class weights and ignore_index have in torch's mean. Compute "
            "one loss per example and call optimizer.backward(losses); hoarfrost.losses has the usual ones."
        )

    def _mixing_places(self, i: int) -> Iterator[tuple[Place, str]]:
        """Where numbers of other examples move with example i, in the order in which the model runs."""
        whole, views = self.whole, self.members.views
        others = [k * views + view for k in whole if k != i for view in range(views)]
        before = self._seen(whole)
        for stand_in in [*self.members.stand_ins(i), None]:
            left_out = [k for k in whole if k != i]
            now = left_out if stand_in is None else [stand_in if k == i else k for k in whole]
            try:
                after = self._seen(now)
            except (RuntimeError, ValueError, IndexError):
                continue
            for place, tensors in before.items():
                for one, other in zip(tensors, after.get(place, []), strict=False):
                    one, other = one[others], other if stand_in is None else other[others]
                    size = float(one[one.isfinite()].abs().max()) if one.isfinite().any() else 0.0
                    if one.shape == other.shape and not torch.allclose(
                        one, other, rtol=1e-4, atol=1e-4 * size, equal_nan=True
                    ):  # fmt: skip
                        yield place, "leaving out" if stand_in is None else "changing"

    def _seen(self, members: Sequence[Any]) -> dict[Place, list[Tensor]]:
        """What reaches each module and what comes out of it, examples in front, in the order of the run."""
        self.begin(0)
        batch, rows = self._batch(members)
        seen: dict[Place, list[Tensor]] = {}

        def note(place: Place, item: Any) -> None:
            found = [(t, example_dim(t, rows, self.batch_first)) for t in tensors_of(item) if t.is_floating_point()]
            seen.setdefault(place, [t.detach().clone().movedim(dim, 0) for t, dim in found if dim is not None])

        hooks = []
        for name, module in self.model.named_modules():
            hooks += [
                module.register_forward_pre_hook(lambda _, args, name=name: note((name, True), args)),
                module.register_forward_hook(lambda _, args, output, name=name: note((name, False), output)),
            ]
        try:
            call(self.model, batch)
        finally:
            for hook in hooks:
                hook.remove()
        return seen
