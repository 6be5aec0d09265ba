"""The tables of a recipe that choose no component, but for [data]."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import model_validator

from hoarfrost import validate
from hoarfrost.epochs import MOST_STEPS
from hoarfrost.errors import InvalidValue
from hoarfrost.recipes.base import Table
from hoarfrost.registry import Count, Natural, NotNegative, Positive, Probability, Rate, Whole
from hoarfrost.registry.types import Label, checked, up_to

MOST_EPOCHS = 1_000_000


class Augment(Table):
    """Random changes to images that leave their class alone.

    Args:
        shift: the largest shift, in pixels, each way.
        flip: mirror every image with probability 1/2.
    """

    shift: Count = 0
    flip: bool = False


class Privacy(Table):
    """The budget, and all that decides what it buys.

    Args:
        delta: δ of the guarantee; choose it below one over the number of examples.
        epsilon: ε that the whole run may spend; the noise is calibrated for it.
        noise_multiplier: instead of ``epsilon``: the noise relative to the sensitivity. 0 is allowed, and is not
            private.
        batch_size: the expected number of examples in a step.
        sample_rate: instead of ``batch_size``: the probability with which each example takes part in a step.
        per_person: with ``data.person``: a person takes part with up to so many of their rows, drawn anew each time,
            whose gradients are averaged before they are clipped. ``batch_size``, ``sample_rate`` and ``epochs`` then
            count people.
        epochs: the length of the run in epochs.
        steps: instead of ``epochs``: the length of the run in steps.
        accountant: how ε is computed: "pld" is nearly exact, "rdp" is Rényi accounting.
        seed: makes a run repeatable, noise included, so that nothing of it may be released.
    """

    _one_of = (("epsilon", "noise_multiplier"), ("batch_size", "sample_rate"), ("epochs", "steps"))

    delta: Probability
    epsilon: Positive | None = None
    noise_multiplier: NotNegative | None = None
    batch_size: Positive | None = None
    sample_rate: Rate | None = None
    per_person: Annotated[int, checked(validate.whole, up_to(1000)), Label("whole number from 1 to 1000")] | None = None
    epochs: (
        Annotated[float, checked(validate.positive, validate.finite, up_to(MOST_EPOCHS)), Label("number above 0")]
        | None
    ) = None
    steps: Annotated[int, checked(validate.whole, up_to(MOST_STEPS)), Label("whole number, 1 or above")] | None = None
    accountant: Literal["pld", "rdp"] = "pld"
    seed: Natural | None = None

    @model_validator(mode="after")
    def _lengths_make_sense(self) -> Privacy:
        if self.batch_size is not None and self.batch_size < 1:
            raise InvalidValue(f"batch_size must be 1 or above, got {self.batch_size}; sample_rate can say less")
        if self.epochs is not None and self.sample_rate is not None and self.epochs > MOST_STEPS * self.sample_rate:
            raise InvalidValue(
                f"{self.epochs:g} epochs at a sample_rate of {self.sample_rate:g} take more than {MOST_STEPS:g} steps"
            )
        return self


_UpToThousand = Annotated[int, checked(validate.whole, up_to(1000)), Label("whole number from 1 to 1000")]


class Loop(Table):
    """What changes neither the guarantee nor the budget.

    Args:
        max_physical_batch: the most examples that are worked on at once, which bounds the memory.
        group_by_length: with ``max_physical_batch``, of texts: those of like length are worked on together, so that
            little is computed on padding.
        cache_frozen: what frozen layers in front of the trained ones return is computed once for each example and kept
            in memory: true for at most half of the machine's, or a number of bytes.
        views: the number of augmented views of an example that are averaged before it is clipped.
        evaluate_every: the number of epochs after which the test set is evaluated.
        threads: the number of processor cores to use; by default torch decides.
        channels_last: lay images out pixel by pixel, which is faster for some networks and slower for others.
        checkpoint_every: the number of steps after which a checkpoint is written.
        checkpoints_kept: the number of checkpoints that are kept, the last ones.
        reserve_ahead: the number of steps that the ledger reserves at a time, which is what a kill can lose.
    """

    max_physical_batch: Whole | None = None
    group_by_length: bool = False
    cache_frozen: bool | Positive = False
    views: _UpToThousand = 1
    evaluate_every: Whole = 1
    threads: _UpToThousand | None = None
    channels_last: bool = False
    checkpoint_every: Whole = 50
    checkpoints_kept: Whole = 2
    reserve_ahead: Whole = 1
