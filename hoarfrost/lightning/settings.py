"""What a Lightning Trainer may be told, and how long a run it asks for."""

from __future__ import annotations

from typing import Any

from hoarfrost.errors import NotPrivate


def refuse_settings(trainer: Any) -> None:
    """Refuses what a private run cannot follow, by name, with what to do instead."""
    refused = {
        "accumulate_grad_batches": (
            trainer.accumulate_grad_batches != 1,
            "puts several Poisson batches into one step. Leave it out, and give Private the batch_size= of all of them "
            "and max_physical_batch= for what fits into memory",
        ),
        "gradient_clip_val": (
            bool(trainer.gradient_clip_val),
            "clips the gradient of the whole batch, which a private run does not have before its step. Leave it out; "
            "clip= of Private clips the gradient of each example",
        ),
        "overfit_batches": (bool(trainer.overfit_batches), "trains on the same batches again. Leave it out"),
        "limit_train_batches": (
            trainer.limit_train_batches != 1.0,
            "breaks epochs off. Leave it out, and set max_steps to what you want",
        ),
    }
    for name, (given, why) in refused.items():
        if given:
            raise NotPrivate(f"Trainer({name}={getattr(trainer, name)}) {why}")
    if trainer.world_size > 1:
        raise NotPrivate(
            f"Trainer(devices={trainer.num_devices}, num_nodes={trainer.num_nodes}) trains in {trainer.world_size} "
            "processes, and a private run trains in one: write Trainer(devices=1)"
        )


def length_of(trainer: Any) -> dict[str, Any]:
    """How long the run is, as `make_private` is told it."""
    if trainer.max_steps != -1:
        return {"steps": trainer.max_steps}
    return {} if trainer.max_epochs in (-1, None) else {"epochs": trainer.max_epochs}
