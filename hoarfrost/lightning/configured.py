"""Optimizers and schedulers in what `configure_optimizers` returns, in all the forms that it may have."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer


def parts_of(found: Any) -> tuple[list[Optimizer], list[Any]]:
    """Optimizers and schedulers in what `configure_optimizers` returns, in all the forms that it may have."""
    if isinstance(found, Optimizer):
        return [found], []
    if isinstance(found, dict):
        scheduler = found.get("lr_scheduler")
        scheduler = scheduler.get("scheduler") if isinstance(scheduler, dict) else scheduler
        return ([found["optimizer"]] if "optimizer" in found else []), [] if scheduler is None else [scheduler]
    optimizers: list[Optimizer] = []
    schedulers: list[Any] = []
    for each in found if isinstance(found, list | tuple) else []:
        if isinstance(each, Optimizer | dict | list | tuple) and not (isinstance(each, dict) and "scheduler" in each):
            more, others = parts_of(each)
            optimizers, schedulers = optimizers + more, schedulers + others
        elif each is not None:
            schedulers.append(each["scheduler"] if isinstance(each, dict) else each)
    return optimizers, schedulers


def with_optimizer(found: Any, optimizer: Optimizer) -> Any:
    """The same, with this optimizer in the place of its own."""
    if isinstance(found, Optimizer):
        return optimizer
    if isinstance(found, dict):
        return {**found, "optimizer": optimizer} if "optimizer" in found else found
    return type(found)(with_optimizer(each, optimizer) for each in found) if isinstance(found, list | tuple) else found


def follow(scheduler: Any, optimizer: Optimizer) -> None:
    """A scheduler of the plain optimizer, whose groups are the private one's: it is that one's from now on."""
    if getattr(scheduler, "optimizer", None) is None:
        return
    scheduler.optimizer = optimizer
    step = optimizer.step
    if not hasattr(step, "_wrapped_by_lr_sched"):  # by which torch sees whether steps come before a scheduler's

        def counted(*args: Any, **kwargs: Any) -> Any:
            optimizer._opt_called = True  # type: ignore[attr-defined]
            return step(*args, **kwargs)

        counted._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        optimizer.step = counted  # type: ignore[method-assign]
