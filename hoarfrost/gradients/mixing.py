"""Whether examples have a say in one another's values or gradients: looked for on a few of them.

**Replaced.** The model runs on some examples, forward and backward, and again with each of them replaced in turn by one
that stands out: what reaches a layer, what comes out of the model, and the gradient that arrives at a layer must not
change for the others. The backward passes begin with made-up gradients of the model's output, of which the replaced
example's is another one. This sees statistics of the batch, hooks that use norms over it, and losses (that the model
itself returns) that do not add up. Several seeds are used, since some models mix by chance, and in one of them weights
that are all zero are not, since gates open.

**Left out, and in reverse.** The same with one example less, and with the examples in reverse order (or norms of
different examples would be paired: think of a model that sorts its batch by length).

**What stays.** Nothing that is registered may change (`hoarfrost.gradients.state`), and after one batch or another in
between, the same examples must have the same values.

All of this is done once in each mode before the first batch, with a fraction of it after 1, 10, 100, ... steps and at
checkpoints, and leaves random states, weights, buffers and plain attributes as they were.

Guarantees:
    A refusal is a proof that the model is not private as it stands (up to rounding). Passing is evidence, not a proof.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from hoarfrost.errors import NotPrivate
from hoarfrost.gradients.few import Few, Part
from hoarfrost.gradients.probe import MERGED, Place, Seen, Watched
from hoarfrost.gradients.trials import Trials
from hoarfrost.kept import Kept, matches, refusal

if TYPE_CHECKING:
    from hoarfrost.gradients.prober import Prober

SEEDS = 3
SAME = 1e-4  # how far values may be apart for batches of the same size


class Look(Trials):
    """One look at a model: what is compared between runs."""

    def __init__(self, prober: Prober, kept: Kept, few: Few) -> None:
        super().__init__(prober, kept, few)
        self.changed_by: dict[int, Tensor] = {}  # of outputs without a dimension of examples: by how many examples

    def everything(self) -> bool:
        """Whether the model runs at all in this way; if it does and examples mix, it is refused."""
        few, all_of_them = self.few, range(self.few.count)
        first = straight = self._try(lambda: self.run(few))
        if first is None or straight is None:
            return False
        state = self.kept.unsaved()
        if few.count < 2:
            return True
        followed, again, left = self._next_batch(), None, []
        random = self._draws(straight, 0)
        if random:  # without dropout, reversed rows can be compared
            self.quiet = True
            straight, again = self.run(few), self.run(few, seed=1, backward=False)
        self._compare_order(straight, again)
        self.quiet = False
        for seed in range(min(SEEDS, few.count)):
            with self._opened_gates(seed == 1):
                base = first if seed == 0 else self.run(few, seed=seed)
                for example in all_of_them[seed::SEEDS]:
                    replaced = self._run_replaced(example, seed, base)
                    if replaced is None:
                        left.append(example)
                        continue
                    if example == 0:
                        self._refuse_data_in_caches(state)
                        self._refuse_memory(followed, self._next_batch())
                    self._compare(base, replaced, example)
        self.quiet = random
        for example in left if random else ():
            replaced = self._run_replaced(example, 0, straight)
            if replaced is not None:
                self._compare(straight, replaced, example)
        for example in all_of_them:
            self._leave_out(example, straight, again)
        return True

    def briefly(self, turn: int) -> None:
        example, seed = turn % self.few.count, turn % SEEDS
        before = self._try(lambda: self.run(self.few, seed=seed))
        if before is None:
            return
        replaced = self._run_replaced(example, seed, before)
        if replaced is not None:
            self._compare(before, replaced, example)
        if not self._draws(before, seed):
            self._leave_out(example, before, None)

    def _compare(self, before: Seen, after: Seen, example: int) -> None:
        others = Part([other for other in range(self.few.count) if other != example], self.few)
        self._refuse_difference(before, after, others, others, "changing", SAME)
        self._count_changes(before, after)

    def _count_changes(self, before: Seen, after: Seen) -> None:
        """An output without a dimension of examples: no entry may change with two of them."""
        for index, (dim, a, b) in enumerate(zip(self.prober.outputs, before.outputs, after.outputs, strict=False)):
            merged = dim in (MERGED, None) and a.requires_grad and a.is_floating_point()
            if not merged or a.shape != b.shape or a.numel() == 1:
                continue
            changed = ~torch.isclose(a.detach(), b.detach(), rtol=SAME, atol=SAME * _size(a), equal_nan=True)
            counts = self.changed_by.get(index)
            counts = changed.int() if counts is None or counts.shape != changed.shape else counts + changed
            self.changed_by[index] = counts
            if int(counts.max()) > 1:
                raise self.prober.refusal(
                    (self.engine.model, "output"),
                    f"changing one example changes entries that another one changes, too. {_ALONE}",
                )

    def _compare_order(self, straight: Seen, again: Seen | None) -> None:
        order = list(range(self.few.count))[::-1]
        backwards = self._try(lambda: self.run(self.few.pick(order), backward=False))
        if backwards is None:
            return
        reordered, as_given = Part(order, self.few), Part(order[::-1], self.few)
        place = self._difference(straight, backwards, reordered, as_given, _loose(straight), again)
        if place is not None:
            raise self.prober.refusal(
                place,
                "examples are here in another order than in the batch, so gradients of different examples would be "
                "added up in one norm. Sort outside of the model (in the collate function), or let "
                "pack_padded_sequence do it with enforce_sorted=False.",
            )

    def _leave_out(self, example: int, straight: Seen, again: Seen | None) -> None:
        others = [other for other in range(self.few.count) if other != example]
        fewer = self.few.pick(others)
        located = not any(dim == MERGED and t.requires_grad for dim, t in self._outputs(straight))
        after = self._try(lambda: self.run(fewer, backward=located and self._returns_a_loss(straight)))
        if after is None:
            return
        here, there = Part(others, self.few), Part(range(fewer.count), fewer)
        self._refuse_difference(straight, after, here, there, "leaving out", _loose(straight), again)

    def _outputs(self, seen: Seen) -> list[tuple[int | None, Tensor]]:
        return list(zip(self.prober.outputs, seen.outputs, strict=False))

    def _returns_a_loss(self, seen: Seen) -> bool:
        return any(dim is None and t.numel() == 1 and t.requires_grad for dim, t in self._outputs(seen))

    def _refuse_difference(
        self, one: Seen, other: Seen, here: Part, there: Part, what: str, tolerance: float, again: Seen | None = None
    ) -> None:
        place = self._difference(one, other, here, there, tolerance, again)
        if place is not None:
            raise self.prober.refusal(
                place,
                f"{what} one example of the batch changes what is computed here for others, so gradients cannot be "
                f"attributed to individual examples. {_ALONE}",
            )
        place = self._gradient_difference(one, other, here, there, tolerance)
        if place is None:
            return
        if self._returns_a_loss(one):
            self._refuse_loss(what, here, there, tolerance)
        raise self.prober.refusal(
            (place[0], f"the gradient that arrives at its {place[1]}"),
            f"{what} one example of the batch changes it for others: a hook, or a backward() of your own, works on the "
            "whole batch. Let it work on each row by itself (a norm over all dimensions but the first).",
        )

    def _refuse_loss(self, what: str, here: Part, there: Part, tolerance: float) -> NoReturn:
        engine = self.engine
        model = f"the model ({type(engine.model).__name__}) returns a loss"
        if what == "leaving out":
            other = "sum" if engine.loss_reduction == "mean" else "mean"
            scale = (lambda count: 1.0) if other == "sum" else float
            one, fewer = self.run(here.run, scale=scale), self.run(there.run, scale=scale)
            if self._gradient_difference(one, fewer, here, there, tolerance) is None:
                raise NotPrivate(
                    f"{model} that is a {other} over the examples, and make_private was told that it is a "
                    f'{engine.loss_reduction}: say loss_reduction="{other}"'
                )
        raise NotPrivate(
            f"{model} in which {what} one example changes what the others contribute: it is not a "
            f"{engine.loss_reduction} of one loss for each example (but divided by a number of tokens or a sum of "
            "weights, or made with statistics of the batch). Return a loss for each example, computed from it alone "
            '(reduction="none", and a mean over its own tokens). A model of transformers: call it without labels, and '
            "write optimizer.backward(hoarfrost.losses.token_cross_entropy(output.logits, labels)); where each token "
            "tells the next, output.logits[:, :-1] and labels[:, 1:]; a model with a decoder (T5, BART) then needs "
            "decoder_input_ids=model.prepare_decoder_input_ids_from_labels(labels=labels). A number that is not "
            "trained on can be returned detached: loss.detach()."
        )

    def _refuse_memory(self, one: Seen, other: Seen) -> None:
        all_of_them = Part(range(self.few.count), self.few)
        place = self._difference(one, other, all_of_them, all_of_them, SAME, None)
        if place is not None:
            raise self.prober.refusal(
                place,
                "what is computed here depends on the batch before: the model keeps something of one batch (a running "
                "mean, a queue, a cache) and uses it for the next, so that an example has a say in steps that it was "
                "not drawn for. Keep nothing in forward(), or compute it beforehand from public data.",
            )

    def _refuse_data_in_caches(self, before: dict[str, Tensor]) -> None:
        """Buffers that are not saved may change as long as data have no say in it."""
        for name, t in self.kept.unsaved().items():
            alike = name in before and t.shape == before[name].shape
            close = alike and _close(before[name], t, SAME)
            if not close and not matches(name, self.engine.state.allowed):
                raise refusal("buffer", name, "holds other numbers for other data")

    def _difference(
        self, one: Seen, other: Seen, here: Part, there: Part, tolerance: float, again: Seen | None
    ) -> Place | None:
        """The first place whose rows differ; those that ``again`` shows to be random are passed over."""
        dims = self.prober.dims
        for place, calls in one.calls.items():
            known = dims.get(place, ())
            for number, tensors in enumerate(calls):
                for order, (dim, a) in enumerate(zip(known, tensors, strict=False)):
                    b = _at(other, place, number, order)
                    # Whole numbers beside the input are lengths and offsets, whose values may depend on the place.
                    compared = a.is_floating_point() or order == 0
                    repeated = a if again is None else _at(again, place, number, order)
                    if dim is None or dim < 0 or b is None or repeated is None or not compared:
                        continue
                    if (
                        a.shape == repeated.shape
                        and _close(a, repeated, tolerance)
                        and _differ(a, b, dim, here, there, tolerance)
                    ):
                        return place
        return None

    def _gradient_difference(self, one: Seen, other: Seen, here: Part, there: Part, tolerance: float) -> Place | None:
        """The same for gradients, beginning at the model's end."""
        arrived = {(w.place, w.call, w.order, n): w.gradient for n, w in _numbered(other)}
        for n, watched in reversed(list(_numbered(one))):
            a = watched.gradient
            b = arrived.get((watched.place, watched.call, watched.order, n))
            known = self.prober.dims.get(watched.place, ())
            own = watched.place[1] == "own parameters"
            dim = 0 if own else known[watched.order] if watched.order < len(known) else None
            if dim is None or dim < 0 or a is None or b is None:
                continue
            if _differ(a, b, dim, here, there, tolerance):
                return watched.place
        return None


_ALONE = "Compute every example from that example alone."


def _numbered(seen: Seen) -> Iterator[tuple[int, Watched]]:
    counts: dict[Any, int] = {}
    for watched in seen.watched:
        key = (watched.place, watched.call, watched.order)
        counts[key] = counts.get(key, -1) + 1
        yield counts[key], watched


def _at(seen: Seen, place: Place, call: int, order: int) -> Tensor | None:
    """One of the tensors, if this run had it."""
    calls = seen.calls.get(place, [])
    return calls[call][order] if call < len(calls) and order < len(calls[call]) else None


def _differ(a: Tensor, b: Tensor, dim: int, here: Part, there: Part, tolerance: float) -> bool:
    """Whether the rows of the same examples differ. Where they have another shape (padding), nothing is known."""
    one, other = here.rows(a, dim), there.rows(b, dim)
    return one is not None and other is not None and one.shape == other.shape and not _close(one, other, tolerance)


def _close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    if a.is_complex() and b.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    if torch.equal(a, b):  # as most are
        return True
    return a.is_floating_point() and torch.allclose(a, b, rtol=tolerance, atol=tolerance * _size(a), equal_nan=True)


def _size(a: Tensor) -> float:
    """The largest of its numbers, of those that are finite."""
    a = a.detach()
    largest = float(a.abs().max()) if a.numel() else 1.0
    if math.isfinite(largest):
        return largest
    finite = a[a.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 1.0


def _loose(seen: Seen) -> float:
    """How far values may be apart for batches of other sizes, whose sums are added up in another order."""
    half = any(t.dtype in (torch.float16, torch.bfloat16) for calls in seen.calls.values() for c in calls for t in c)
    return 3e-2 if half or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda") else 1e-3
