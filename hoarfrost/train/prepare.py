"""From a recipe to a run that can begin: everything that can be refused is refused here, before a file is written."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from hoarfrost import budget, data
from hoarfrost.errors import InvalidValue
from hoarfrost.freezing import Freezer
from hoarfrost.private import make_private
from hoarfrost.recipes import freezers, networks, optimizers, schedules, schema, sources
from hoarfrost.recipes.schema import Recipe
from hoarfrost.run import Private
from hoarfrost.train import fingerprint, formatting
from hoarfrost.train.progress import Plan


@dataclass(frozen=True)
class Prepared:
    """A run, checked and calibrated."""

    recipe: Recipe
    splits: data.Splits
    digest: bytes  # of the training data; private
    private: Private
    scheduler: LRScheduler | None
    device: torch.device
    steps: int  # that the weights shall have behind them in the end
    warnings: tuple[str, ...]

    @cached_property
    def planned(self) -> budget.Statement:
        """What it will have cost in the end, with all that was spent before."""
        private = self.private
        assert private.steps is not None
        everything = private.charged + private.steps - private.steps_taken
        own = private.loader.poisson.event(private.noise_multiplier, everything)
        events = (*private.earlier.values(), own, *private.freezer_events())
        return budget.Statement.of(events, private.delta, private.accountant, seeded=private.seeded)

    @cached_property
    def _readout(self) -> budget.Readout:
        private = self.private
        return budget.Readout(
            noise_multiplier=private.noise_multiplier,
            sample_rate=private.sample_rate,
            delta=private.delta,
            # The readout's bound on the whole plan is PLD's. Where RDP was asked for, the display shall agree with it.
            planned=self.steps if private.accountant == "pld" else None,
            before=(*private.earlier.values(), *private.freezer_events()),
        )

    def epsilon_so_far(self) -> float:
        """An upper bound on what was spent, in microseconds."""
        return self._readout(self.private.charged)

    @property
    def density(self) -> float | None:
        """The share of the coordinates that were live, over all steps so far; None where nothing is frozen."""
        switch, steps = self.private.optimizer.switch, self.private.steps_taken
        return None if switch is None or steps == 0 else switch.shares / steps

    @property
    def parameters(self) -> int:
        """How many numbers the model has."""
        return sum(p.numel() for p in self.private.model.parameters())

    def plan(self) -> Plan:
        """What is shown of it."""
        private, recipe = self.private, self.recipe
        assert private.steps is not None
        switch = private.optimizer.switch
        return Plan(
            headline=(
                f"{recipe.name}: {len(self.splits.train)} examples, {recipe.model.name} with {self.parameters:,} "
                f"parameters on {self.device}\n"
                f"{self.steps} steps with {private.expected_batch:g} examples expected in each, noise multiplier "
                f"{private.noise_multiplier:.4g}, {_clipping(recipe.clip)}{self._resumed()}"
            ),
            steps=private.steps,
            epochs=max(1, math.ceil(self.steps * private.sample_rate - 1e-9)),
            epsilon=self.planned.epsilon,
            epsilon_so_far=self.epsilon_so_far,
            seeded=private.seeded,
            done=private.steps_taken,
            epoch=private.loader.epoch + 1,
            live=None if switch is None else lambda: switch.share,
        )

    def _resumed(self) -> str:
        """What a restart has cost."""
        private = self.private
        charged = sum(event.steps for event in private.spent().values())
        if charged == 0:
            return ""
        text = f"\nresumed after {private.steps_taken} steps"
        if charged > private.steps_taken:
            text += f"; {charged - private.steps_taken} more were lost and stay charged"
        if private.steps is not None and private.steps < self.steps:
            text += f", so the run ends after {private.steps} to keep to its budget"
        return text


def prepare(
    recipe: Recipe,
    device: torch.device,
    *,
    noise_multiplier: float | None = None,
    splits: data.Splits | None = None,
    freezer: Freezer | None = None,
) -> Prepared:
    """Loads the data, calibrates the noise and builds the freezer, unless they are given; builds the model."""
    asked = recipe.privacy
    splits = splits or sources.load(recipe.data)
    model = networks.build(recipe.model, splits).to(device)
    if recipe.loop.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    private = make_private(
        model,
        optimizers.build(recipe.optimizer, model.parameters()),
        _examples(recipe, splits),
        delta=asked.delta,
        batch_size=asked.batch_size,
        sample_rate=asked.sample_rate,
        epochs=asked.epochs,
        steps=asked.steps,
        epsilon=asked.epsilon if noise_multiplier is None else None,
        noise_multiplier=asked.noise_multiplier if noise_multiplier is None else noise_multiplier,
        clip=schema.build(recipe.clip, "clip"),
        freeze=freezer or freezers.build(recipe.freeze, model, recipe.data),
        max_physical_batch=recipe.loop.max_physical_batch,
        views=recipe.loop.views,
        accountant=asked.accountant,
        seed=asked.seed,
    )
    assert private.steps is not None  # a recipe always says how long
    private.target = asked.epsilon
    advice = formatting.delta_advice(asked.delta, len(splits.train))
    return Prepared(
        recipe=recipe,
        splits=splits,
        digest=fingerprint.digest(splits.train),
        private=private,
        scheduler=schedules.build(
            recipe.schedule, private.optimizer, steps=private.steps, sample_rate=private.sample_rate
        ),
        device=device,
        steps=private.steps,
        warnings=() if advice is None else (advice,),
    )


def _clipping(wanted: schema.ComponentTable) -> str:
    norm = getattr(wanted, "norm", None)
    return f"clipping {schema.build(wanted, 'clip')}" if norm is None else f"clipping norm {norm:g}"


def device_for(wanted: str | torch.device | None) -> torch.device:
    """The device asked for, once it is sure that it works; by default the GPU if there is one."""
    if wanted is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0] if str(error) else "it is not there"
        raise InvalidValue(f"the device {wanted} cannot be used: {reason}") from error
    return device


@contextmanager
def surroundings(recipe: Recipe) -> Iterator[None]:
    """The seed and the threads of a run; the caller's come back afterwards."""
    threads, seed = torch.get_num_threads(), recipe.privacy.seed
    with torch.random.fork_rng(enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        if recipe.loop.threads is not None:
            torch.set_num_threads(recipe.loop.threads)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def _examples(recipe: Recipe, splits: data.Splits) -> Any:
    if recipe.augment is None:
        return splits.train
    return data.Augmented(splits.train, shift=recipe.augment.shift, flip=recipe.augment.flip)
