"""All audits of a recipe or of a run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hoarfrost.audit.canaries import AsInRun, ByFreezer, Freezing, InOneStep, stages
from hoarfrost.audit.ledger_audit import ledger as audit_ledger
from hoarfrost.audit.noise_audit import noise
from hoarfrost.audit.one_run_audit import one_run, refuse_texts
from hoarfrost.audit.result import Audit
from hoarfrost.audit.sampling_audit import sampling, sufficient_size
from hoarfrost.audit.sensitivity_audit import sensitivity
from hoarfrost.audit.step_audit import step
from hoarfrost.budget import Ledger
from hoarfrost.data import Texts
from hoarfrost.models import outputs_of
from hoarfrost.recipes import networks, optimizers
from hoarfrost.recipes.loading import read_recipe
from hoarfrost.recipes.losses import Loss
from hoarfrost.recipes.schema import Recipe
from hoarfrost.train.folder import RunFolder
from hoarfrost.train.loading import as_calibrated
from hoarfrost.train.prepare import Parts, Prepared, device_for, surroundings


@dataclass(frozen=True)
class Subject:
    """What is audited: a recipe, and its run folder if there is one."""

    recipe: Recipe
    folder: Path | None = None

    @classmethod
    def find(cls, source: str, root: Path | None = None) -> Subject:
        """A run folder by its path; a recipe by its path or its name."""
        path = Path(source).expanduser()
        if not path.is_dir():
            return cls(read_recipe(source, root=root))
        folder = RunFolder.existing(path).path
        return cls(read_recipe(folder / "recipe.toml", root="/" if root is None else root), folder)


def run_suite(
    subject: Subject,
    *,
    key: bytes | None = None,
    canaries: int | None = None,
    ledger: Ledger | None = None,
    device: str | torch.device | None = None,
) -> Iterator[Audit]:
    """Runs one audit after the other: ledger (of a run), sampling, sensitivity, noise, step, and one run if asked for.

    Args:
        key: the ledger's, if it has one.
        canaries: how many for `one_run`, which trains once more and spends budget; None leaves it out.
        ledger: pays for `one_run`.
    """
    recipe = subject.recipe
    if canaries is not None:
        refuse_texts(recipe)
    changes: dict[str, Any] = {}
    if subject.folder is not None:
        yield audit_ledger(subject.folder, key)
        changes = as_calibrated(subject.folder)
    with surroundings(recipe):
        where = device_for(device)
        parts = Parts.build(recipe, where)
        run = parts.prepare(parts.solve(**changes))
        # A rate below 1e-4 would take too long to measure: the same code is tested at a larger one.
        rate = max(run.private.sample_rate, 1e-4)
        yield sampling(
            sample_rate=rate, records=sufficient_size(rate), steps=sufficient_size(rate),
            per_person=recipe.privacy.per_person,
        )  # fmt: skip
        yield from _steps(run)
    if canaries is not None:
        yield one_run(recipe, canaries=canaries, ledger=ledger, device=device)


def _steps(run: Prepared) -> Iterator[Audit]:
    # The model has not run: its layers are taken in the order in which it lists them.
    for clip in stages(run.private.optimizer.engine.clipper, replace(run.private.info(), ordered=True)):
        yield from _steps_clipped_by(clip, run)


def _steps_clipped_by(clip: AsInRun, run: Prepared) -> Iterator[Audit]:
    private, recipe = run.private, run.recipe
    per_person = recipe.privacy.per_person
    yield sensitivity(clip=clip, per_person=per_person, device=run.device)
    plain = networks.build(recipe.model, run.splits, run.loss.outputs(run.splits.classes), recipe.peft)
    freeze = _freezing(run)
    if run.splits.real_inputs:
        yield sensitivity(
            clip=clip, model=plain, shape=run.splits.shape, loss=_with_fixed_target(run.loss), freeze=freeze,
            views=recipe.loop.views, per_person=per_person,
            max_physical_batch=3 * recipe.loop.views * (per_person or 1), device=run.device,
        )  # fmt: skip
    if private.noise_multiplier > 0:
        yield noise(
            model=plain, shape=run.splits.shape, dtype=run.splits.dtype, clip=clip, freeze=freeze, device=run.device,
            call=_with_tokens if isinstance(run.splits.train, Texts) else outputs_of,
        )  # fmt: skip
        yield step(
            noise_multiplier=private.noise_multiplier,
            clip=clip,
            optimizer=lambda parameters: optimizers.build(recipe.optimizer, parameters),
            delta=private.delta,
            sample_rate=private.sample_rate,
            steps=run.steps,
            other_releases=tuple(release.event for release in private.plan.releases),
            canaries=512 if clip.blocks <= 16 else 128,  # each has a coordinate in every block
            device=run.device,
        )


def _freezing(run: Prepared) -> Freezing:
    """The recipe's own freezing in its last step, when most is frozen."""
    controller = run.private.optimizer.controller
    if controller is None:
        return Freezing()
    # The model has not run: its layers are taken in the order in which it lists them.
    freezer, info, last = controller.freezer, replace(controller.info, ordered=True), run.steps - 1
    before = info.first_step(info.epoch_of(last)) - 1  # the last step of the epoch before
    if freezer.observes and before >= 0:
        freezer.observe(before, {name: torch.randn(shape) for name, shape in info.shapes.items()}, info)
    return ByFreezer(InOneStep(freezer, last, info))


def _with_tokens(model: nn.Module, ids: Tensor) -> Tensor:
    """The outputs of a model for texts, for tokens alone."""
    return outputs_of(model, {"input_ids": ids})


def _with_fixed_target(loss: Loss) -> Callable[[Tensor], Tensor]:
    """The recipe's own loss, for examples that are all of the first class, or have the target 1."""
    target = torch.tensor(1.0 if loss.real_targets else 0)
    return lambda outputs: loss(outputs, target.to(outputs.device).expand(len(outputs)))
