"""DP-FROST: which part of a pretrained model is worth training, found by noisy gradient magnitudes."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from hoarfrost import budget as costs
from hoarfrost import validate
from hoarfrost.budget.shares import check_share
from hoarfrost.errors import InvalidValue
from hoarfrost.freezing.base import Both, Freezer
from hoarfrost.freezing.magnitudes import LossOfOne, Magnitude, of_recipe
from hoarfrost.freezing.partitions import Layout, layout_of
from hoarfrost.freezing.report import Selection
from hoarfrost.freezing.selection import Ranking, Selecting
from hoarfrost.info import RunInfo
from hoarfrost.masks import Live
from hoarfrost.registry import NotNegative, Patterns, Positive, Rate, SomePatterns, Whole, component

if TYPE_CHECKING:
    from hoarfrost.query import Query


@component(
    "freeze",
    "frost",
    examples=lambda: [
        (Frost(0.7, noise=1.0, rounds=1, sample_rate=0.5, head=[], loss=lambda model, batch: model(batch).sum()), 0.6)
    ],
)
class Frost(Freezer):
    """DP-FROST: trains the head, and of everything else the partitions whose gradients are largest for their size.

    Magnitudes are measured with noise on a few Poisson samples, before training (`Private.prepare`, or else when the
    first batch is asked for). Everything that follows from them costs nothing more.

    Args:
        ratio: of all numbers that the optimizer moves, so many are live (γ), the head's among them.
        budget: the share of epsilon that measuring may spend: the steps alone cost (1 - ``budget``)·epsilon, and steps
            and measuring together cost epsilon. "auto": the least noise variance in all, summed over steps and rounds.
        noise: instead of ``budget``: the noise multiplier of every round. Needed where the noise of the steps is
            stated, and not epsilon.
        rounds: how many samples are looked at (T), each for the partitions that are still undecided.
        sample_rate: the probability with which an example is in one of these samples.
        gap: before the last round a partition is chosen if it is above the others by so many standard errors (ν).
        magnitude: "clipped" (DP-MG), "normalised" (DP-MGN) or "absolute" (DP-MGNA) as in the paper; or "norms", the sum
            over examples of the partitions' gradient norms (`hoarfrost.freezing.magnitudes.Magnitude`).
        order: of the norms: 1 or 2; by default 1, and 2 for "norms".
        clip: the paper's threshold c. By default every example is given the same say, and there is none to guess.
        partitions: "weight" (each weight with its bias), "module" (all that a module holds itself), "block" (such as
            "encoder.layer.3"), or patterns of names: each is a partition.
        head: patterns of the names of what is new and always trained; it is not measured. By default the part that the
            model does not call its trunk, or else its last module. An empty list: nothing is.
        selections: so many times (K), spread evenly over the run, it is chosen anew.

    Guarantees:
        Every round is a Gaussian release with a Poisson sample: charged before it looks, clipped to a bound that it
        does not learn from data, and noised before anything of it is kept. A crash costs what was charged; a run that
        goes on from a checkpoint goes on after the rounds that are in it. What the choice depends on besides (names,
        sizes, settings) ignores the data.

    >>> from torch import nn
    >>> from torch.utils.data import TensorDataset
    >>> import hoarfrost
    >>> model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)), nn.Linear(8, 2))
    >>> private = hoarfrost.make_private(
    ...     model, torch.optim.SGD(model.parameters(), lr=0.1),
    ...     TensorDataset(torch.randn(300, 8), torch.randint(2, (300,))),
    ...     batch_size=30, epochs=1, epsilon=4.0, delta=1e-4,
    ...     loss=lambda output, batch: nn.functional.cross_entropy(output, batch[1]),
    ...     freeze=Frost(ratio=0.6, rounds=2, sample_rate=0.1))
    >>> private.prepare()
    >>> len(private.freezer.selection.chosen), private.epsilon() < 4.0
    (2, True)
    """

    def __init__(
        self,
        ratio: Rate = 0.25,
        *,
        budget: Positive | Literal["auto"] = 0.1,
        noise: Positive | None = None,
        rounds: Whole = 5,
        sample_rate: Rate = 0.02,
        gap: NotNegative = 5.0,
        magnitude: Literal["clipped", "normalised", "absolute", "norms"] = "absolute",
        order: Literal[1, 2] | None = None,
        clip: Positive | None = None,
        partitions: Literal["weight", "module", "block"] | Patterns = "weight",
        head: SomePatterns | None = None,
        selections: Whole = 1,
        loss: LossOfOne | None = None,
    ) -> None:
        validate.rate(ratio=ratio, sample_rate=sample_rate)
        validate.whole(rounds=rounds, selections=selections)
        validate.not_negative(gap=gap)
        validate.finite(gap=gap)
        check_share(budget=budget)
        if noise is not None:
            validate.positive(noise=noise)
            validate.finite(noise=noise)
        if isinstance(head, str):
            raise InvalidValue(f"head takes a list of patterns, such as head=[{head!r}]")
        if loss is not None and not callable(loss):
            raise InvalidValue(f"loss is a function of the model and a batch of one example, not {loss!r}")
        self.ratio, self.budget, self.noise, self.rounds, self.sample_rate = ratio, budget, noise, rounds, sample_rate
        self.gap, self.selections, self.loss = gap, selections, loss
        self.magnitude, self.order, self.clip = magnitude, order, clip
        self.partitions = partitions if isinstance(partitions, str) else tuple(partitions)
        self.head = None if head is None else tuple(head)
        self._measure = Magnitude(magnitude, order, clip)
        self._info: RunInfo | None = None
        self._forget()

    @classmethod
    def from_recipe(
        cls,
        loss: Callable[[Tensor, Tensor], Tensor],
        *,
        ratio: Rate = 0.25,
        budget: Positive | Literal["auto"] = 0.1,
        noise: Positive | None = None,
        rounds: Whole = 5,
        sample_rate: Rate = 0.02,
        gap: NotNegative = 5.0,
        magnitude: Literal["clipped", "normalised", "absolute", "norms"] = "absolute",
        order: Literal[1, 2] | None = None,
        clip: Positive | None = None,
        partitions: Literal["weight", "module", "block"] | Patterns = "weight",
        head: SomePatterns | None = None,
        selections: Whole = 1,
    ) -> Frost:
        """With the recipe's loss."""

        return cls(
            ratio, budget=budget, noise=noise, rounds=rounds, sample_rate=sample_rate, gap=gap, magnitude=magnitude,
            order=order, clip=clip, partitions=partitions, head=head, selections=selections, loss=of_recipe(loss),
        )  # fmt: skip

    def __repr__(self) -> str:
        known = list(inspect.signature(Frost).parameters.items())[1:]
        other = [n for n, each in known if n != "loss" and getattr(self, n) != each.default]
        return f"Frost({', '.join([str(self.ratio), *(f'{name}={getattr(self, name)!r}' for name in other)])})"

    # What it will look at.

    def releases(self, info: RunInfo) -> tuple[costs.Wanted, ...]:
        self._layout(info)
        return tuple(
            self._release(f"DP-FROST, selection {k} of {self.selections}, round {t + 1} of {self.rounds}", step)
            for k, step in enumerate(self._steps(info), 1)
            for t in range(self.rounds)
        )

    def _release(self, what: str, step: int) -> costs.Wanted:
        if self.noise is None:
            return costs.PlannedShare(share=self.budget, sample_rate=self.sample_rate, what=what, step=step)
        event = costs.Gaussian(noise_multiplier=self.noise, sample_rate=self.sample_rate)
        return costs.PlannedRelease(event=event, what=what, step=step)

    def _steps(self, info: RunInfo) -> list[int]:
        """Before which steps it is chosen."""
        if self.selections == 1:
            return [0]
        if info.steps is None or info.steps < self.selections:
            raise InvalidValue(
                f"selections={self.selections} are spread over the run, which has "
                f"{info.steps if info.steps is not None else 'no end'}: give epochs= or steps=, at least as many"
            )
        return [k * (info.steps // self.selections) for k in range(self.selections)]

    def check(self, info: RunInfo) -> None:
        self._steps(info)
        self._layout(info)
        if info.pretrained is False and not info.ordered:
            warnings.warn(
                "the model's config does not say that its weights were loaded (from_pretrained does): of new weights, "
                "gradients say little about which are worth training. Load pretrained ones, or train everything",
                stacklevel=2,
            )

    # Looking.

    def prepare(self, number: int, query: Query, info: RunInfo) -> None:
        k, t = divmod(number, self.rounds)
        del self._found[k][t:]  # of a round that is made anew
        self._noise, self._expected, self._info = query.event.noise_multiplier, query.expected_batch, info
        left = self._ranking(k, info).left
        if t == 0 and self._noise * len(left) > self._expected:
            warnings.warn(
                f"the noise of a round (multiplier {self._noise:.3g}) is larger than what a partition has on average "
                f"({self._expected:g} examples are shared by {len(left)} partitions): the choice will be close to "
                "random. Give it more of the budget, a larger sample_rate, or fewer partitions",
                stacklevel=2,
            )
        values = self._measure.measured(query, left, self.loss or query.loss) if left else torch.empty(0)
        self._found[k].append(values.double().cpu())

    def _layout(self, info: RunInfo) -> Layout:
        layout = layout_of(info, self.partitions, self.head, self.ratio)
        if self.rounds > len(layout.candidates):
            raise InvalidValue(
                f"rounds={self.rounds} are more than the {len(layout.candidates)} partitions to choose from: each "
                f"round decides about one at least. Take rounds={len(layout.candidates)} or fewer"
            )
        return layout

    def _ranking(self, k: int, info: RunInfo) -> Ranking:
        """What follows from the rounds of a selection so far."""
        selecting = Selecting(
            self._layout(info), self.rounds, self.gap, self._measure.sensitivity, self._noise, self._expected
        )
        return selecting.after([values.tolist() for values in self._found[k]])

    # What is live.

    @property
    def _complete(self) -> int:
        """How many selections are complete."""
        return sum(len(found) == self.rounds for found in self._found)

    def key(self, step: int, info: RunInfo) -> Hashable:
        return self._complete

    def live(self, step: int, info: RunInfo) -> Live:
        if not self._complete:  # nothing is trained before
            return dict.fromkeys(info.shapes, True)
        chosen = {*self._selection(info).names, *self._layout(info).head}
        return {name: name in chosen for name in info.shapes}

    @property
    def selection(self) -> Selection | None:
        """What was found last, as it may be released; None before the first selection is complete.

        Guarantees:
            It follows from noisy magnitudes alone.
        """
        return None if self._info is None or not self._complete else self._selection(self._info)

    def _selection(self, info: RunInfo) -> Selection:
        self._info = info
        return Selection.of(self._layout(info), self._ranking(self._complete - 1, info), repr(self))

    # What it keeps.

    def _forget(self) -> None:
        self._found: list[list[Tensor]] = [[] for _ in range(self.selections)]
        self._noise = self._expected = 1.0
        self._info = None

    def fresh(self) -> Freezer:
        new = copy.copy(self)
        new._forget()
        return new

    def start(self, weights: Mapping[str, Tensor]) -> None:
        self._forget()

    def state(self) -> dict[str, Tensor]:
        if not self._found[0]:
            return {}
        kept = {"plan": torch.tensor([self._noise, self._expected], dtype=torch.float64)}
        return kept | {f"{k}.{t}": v for k, found in enumerate(self._found) for t, v in enumerate(found)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self._forget()
        if "plan" in state:
            self._noise, self._expected = state["plan"].tolist()
        for k, found in enumerate(self._found):
            while (values := state.get(f"{k}.{len(found)}")) is not None:
                found.append(values.double())

    @staticmethod
    def from_file(path: str) -> Freezer:
        """The choice that `Selection.save` wrote, at no further cost."""
        from hoarfrost.freezing.chosen import Chosen

        return Chosen(path)


def frost_in(freezer: Freezer | None) -> Frost | None:
    """The DP-FROST that a freezer is, or is combined from."""
    if isinstance(freezer, Both):
        return next((found for part in freezer.parts if (found := frost_in(part)) is not None), None)
    return freezer if isinstance(freezer, Frost) else None
