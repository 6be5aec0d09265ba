"""Training in stages: what earlier runs have released belongs to what is said about the weights that go on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from hoarfrost.budget import Snapshot
from hoarfrost.checkpoint import Checkpoint
from hoarfrost.errors import InvalidValue
from hoarfrost.optim.progress import progress_in
from hoarfrost.run import Private

Earlier = Private | str | Path | Mapping[str, Any]
"""A run, the path of a checkpoint, or the state_dict of a private optimizer."""


def snapshots(after: Earlier | Sequence[Earlier] | None) -> list[Snapshot]:
    """What was spent in the stages given."""
    return [_snapshot(earlier) for earlier in _gathered(after)]


@contextmanager
def taking_over(model: nn.Module, after: Earlier | Sequence[Earlier] | None) -> Iterator[None]:
    """Earlier runs that hold modules of the model let go of them, for good if the block succeeds.

    Guarantees:
        A run that has let go takes no further step, and is not saved: the weights have more behind them than it knows.
    """
    modules = set(model.modules())
    runs = [run for run in _gathered(after) if isinstance(run, Private) and not modules.isdisjoint(run.model.modules())]
    runs = [run for run in runs if not run.optimizer.ended]
    for run in runs:
        run.optimizer.let_go()
    try:
        yield
    except BaseException:
        for run in runs:
            run.optimizer.take_back()
        raise
    for run in runs:
        run.account.close()


def _gathered(after: Earlier | Sequence[Earlier] | None) -> list[Earlier]:
    if after is None:
        return []
    if isinstance(after, list | tuple) and not isinstance(after, Private):  # which is a tuple, too
        return list(after)
    return [after]  # type: ignore[list-item]


def _snapshot(earlier: object) -> Snapshot:
    if isinstance(earlier, Private):
        return earlier.account.snapshot()
    if isinstance(earlier, str | Path):
        return Checkpoint.read(earlier).account
    progress = progress_in(earlier) if isinstance(earlier, Mapping) else None
    if progress is None:
        raise InvalidValue(
            "after= takes what make_private returned for the earlier stage, the path of a checkpoint of it, or the "
            f"state_dict of its private optimizer, not {type(earlier).__name__!r} that says nothing of what was spent"
        )
    return progress.account
