"""From a recipe to a run that can begin: everything that can be refused is refused here, before a file is written."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from hoarfrost import budget, data
from hoarfrost.budget.statement import EXAMPLE, PERSON, counted
from hoarfrost.epochs import rate_of, steps_of
from hoarfrost.errors import InvalidValue
from hoarfrost.freezing import Freezer
from hoarfrost.measure import Measurement
from hoarfrost.private import assemble, planned_releases, spent_before, trained_parameters
from hoarfrost.recipes import freezers, losses, networks, optimizers, schedules, schema, sources
from hoarfrost.recipes.losses import Loss
from hoarfrost.recipes.schema import Recipe
from hoarfrost.run import Private
from hoarfrost.sampling import PoissonLoader
from hoarfrost.train import fingerprint
from hoarfrost.train.measuring import measurements, with_note
from hoarfrost.train.progress import Overview


@dataclass(frozen=True)
class Prepared:
    """A run, checked and calibrated."""

    recipe: Recipe
    splits: data.Splits
    digest: bytes  # of the training data; private
    private: Private
    loss: Loss
    scheduler: LRScheduler | None
    device: torch.device
    warnings: tuple[str, ...]
    measurements: tuple[Measurement, ...] = ()

    @property
    def steps(self) -> int:
        """How many steps the weights were planned to have in the end."""
        assert self.private.plan.steps is not None  # a recipe always says how long
        return self.private.plan.steps

    @cached_property
    def planned(self) -> budget.Statement:
        """What it will have cost in the end, with all that was spent before."""
        return with_note(self.private.account.planned(), self.measurements)

    @cached_property
    def _readout(self) -> budget.Readout:
        plan = self.private.plan
        return budget.Readout(
            noise_multiplier=plan.noise_multiplier,
            sample_rate=plan.sample_rate,
            delta=plan.delta,
            # The readout's bound on the whole plan is PLD's. Where RDP was asked for, the display shall agree with it.
            planned=plan.steps if plan.accountant == "pld" else None,
            before=self.private.account.before_this_run(),
        )

    def epsilon_so_far(self) -> float:
        """An upper bound on what was spent, in microseconds."""
        return self._readout(self.private.charged)

    @property
    def density(self) -> float | None:
        """The share of the coordinates that were live, over all steps so far; None where nothing is frozen."""
        controller, steps = self.private.optimizer.controller, self.private.steps_taken
        return None if controller is None or steps == 0 else controller.live_shares / steps

    @property
    def parameters(self) -> int:
        """How many numbers the model has."""
        return sum(p.numel() for p in self.private.model.parameters())

    @property
    def trained_parameters(self) -> int:
        """How many of them the optimizer moves."""
        return sum(p.numel() for group in self.private.optimizer.param_groups for p in group["params"])

    def overview(self) -> Overview:
        """What is shown of it."""
        private, recipe = self.private, self.recipe
        assert private.steps is not None
        controller = private.optimizer.controller
        return Overview(
            headline=(
                f"{recipe.name}: {self._size()}, {recipe.model.name} with {self.parameters:,} "
                f"parameters{self._trained()} on {self.device}\n"
                f"{self.steps} steps with {private.expected_batch:g} {counted(private.plan.unit)} expected in each, "
                f"noise multiplier {private.noise_multiplier:.4g}, "
                f"clipping {private.optimizer.engine.clipper_repr}{self._resumed()}"
            ),
            steps=private.steps,
            epochs=max(1, math.ceil(self.steps * private.sample_rate - 1e-9)),
            epsilon=self.planned.epsilon,
            epsilon_so_far=self.epsilon_so_far,
            seeded=private.seeded,
            done=private.steps_taken,
            epoch=private.loader.epoch + 1,
            metric=self.loss.metrics[0],
            live=None if controller is None else lambda: controller.live_share,
        )

    def _size(self) -> str:
        rows, people = len(self.splits.train), self.private.loader.people
        return f"{rows} examples" if people is None else f"{len(people)} people with {rows} rows"

    def _trained(self) -> str:
        return "" if self.trained_parameters == self.parameters else f", {self.trained_parameters:,} of them trained,"

    def _resumed(self) -> str:
        """What a restart has cost."""
        private = self.private
        charged = private.account.charged_in_all
        if charged == 0:
            return ""
        text = f"\nresumed after {private.steps_taken} steps"
        if charged > private.steps_taken:
            text += f"; {charged - private.steps_taken} more were lost and stay charged"
        if private.steps is not None and private.steps < self.steps:
            text += f", so the run ends after {private.steps} to keep to its budget"
        return text


@dataclass(frozen=True)
class Parts:
    """What a recipe's run is made of, before it is decided what it releases."""

    recipe: Recipe
    splits: data.Splits
    device: torch.device
    model: nn.Module
    loss: Loss
    optimizer: Optimizer
    examples: Any  # the training data, augmented if the recipe says so
    freezer: Freezer | None
    digest: bytes  # of the training data; private

    @classmethod
    def build(
        cls,
        recipe: Recipe,
        device: torch.device,
        *,
        splits: data.Splits | None = None,
        freezer: Freezer | None = None,
    ) -> Parts:
        """Loads the data and builds the freezer, unless they are given; builds model and optimizer."""
        loss = losses.build(recipe.loss)
        splits = splits or sources.load(
            recipe.data, real_targets=loss.real_targets, tokenizer=lambda: schema.load_tokenizer(recipe.model)
        )
        loss = loss.in_units(splits.unit)
        outputs = losses.outputs(recipe.loss, loss, splits.classes)
        model = networks.build(recipe.model, splits, outputs, recipe.peft).to(device)
        if recipe.loop.channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return cls(
            recipe=recipe,
            splits=splits,
            device=device,
            model=model,
            loss=loss,
            optimizer=optimizers.build(recipe.optimizer, [p for p in model.parameters() if p.requires_grad]),
            examples=_examples(recipe, splits),
            freezer=freezers.with_scaling(
                freezer or freezers.build(recipe.freeze, model, recipe.data, loss), model, recipe.data
            ),
            digest=fingerprint.digest(splits.train, splits.people),
        )

    def solve(self, **changes: Any) -> budget.Plan:
        """The plan that the recipe asks for; ``changes`` replace arguments of `Plan.solve`."""
        asked = self.recipe.privacy
        people = self.splits.people
        unit = EXAMPLE if people is None else PERSON
        size = changes.pop("size", len(self.splits.train) if people is None else len(people.unique()))
        rate = rate_of(size, asked.batch_size, asked.sample_rate, counted(unit))
        settings: dict[str, Any] = {
            "size": size,
            "unit": unit,
            "sample_rate": rate,
            "delta": asked.delta,
            "epochs": asked.epochs,
            "steps": asked.steps,
            "epsilon": asked.epsilon,
            "noise_multiplier": asked.noise_multiplier,
            "accountant": asked.accountant,
            "spent": spent_before(self.freezer),
            "releases": self.releases(rate, changes.get("steps", asked.steps)),
        }
        return budget.Plan.solve(**settings | changes)

    def releases(self, sample_rate: float, steps: int | None = None) -> tuple[budget.Wanted, ...]:
        """What the freezer and the scaling of the data will release in addition to the steps."""
        parameters = trained_parameters(self.model, self.optimizer)
        length = steps_of(self.recipe.privacy.epochs if steps is None else None, steps, sample_rate)
        return planned_releases(self.freezer, self.examples, self.model, parameters, sample_rate, length)

    def prepare(self, plan: budget.Plan) -> Prepared:
        """The run that follows the plan."""
        recipe = self.recipe
        seed = recipe.privacy.seed
        loader = PoissonLoader(
            self.examples,
            sample_rate=plan.sample_rate,
            max_physical_batch=recipe.loop.max_physical_batch,
            lengths=_lengths(recipe, self.splits),
            views=recipe.loop.views,
            person=self.splits.people,
            per_person=recipe.privacy.per_person,
            seed=seed,
        )
        private = assemble(
            self.model,
            self.optimizer,
            loader,
            plan,
            clip=schema.build(recipe.clip, "clip"),
            freeze=self.freezer,
            seed=seed,
            run=f"{recipe.name}-{secrets.token_hex(3)}",
            cache_frozen=recipe.loop.cache_frozen,
        )
        assert plan.steps is not None  # a recipe always says how long
        return Prepared(
            recipe=recipe,
            splits=self.splits,
            digest=self.digest,
            private=private,
            loss=self.loss,
            scheduler=schedules.build(
                recipe.schedule, private.optimizer, steps=plan.steps, sample_rate=plan.sample_rate
            ),
            device=self.device,
            warnings=(plan.delta_advice,) if plan.delta_advice else (),
            measurements=measurements(recipe, self.splits, self.loss, private),
        )


def prepare(recipe: Recipe, device: torch.device, *, freezer: Freezer | None = None) -> Prepared:
    """The run that the recipe asks for."""
    parts = Parts.build(recipe, device, freezer=freezer)
    return parts.prepare(parts.solve())


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


def _lengths(recipe: Recipe, splits: data.Splits) -> torch.Tensor | None:
    """How many tokens each text has, if that matters."""
    return splits.train.lengths if recipe.loop.group_by_length and isinstance(splits.train, data.Texts) else None


def _examples(recipe: Recipe, splits: data.Splits) -> Any:
    if isinstance(splits.train, data.Texts):
        return DataLoader(splits.train, collate_fn=splits.train.collate)  # which lends its collate function
    if recipe.augment is None:
        return splits.train
    return data.Augmented(splits.train, shift=recipe.augment.shift, flip=recipe.augment.flip)
