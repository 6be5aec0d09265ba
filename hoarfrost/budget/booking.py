"""How a ledger is charged for a run's releases in addition to its steps: each is an entry that the run owns."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from hoarfrost.budget.allowance import Allowance
from hoarfrost.budget.events import Release, Unprotected, as_gaussian
from hoarfrost.budget.shares import PlannedRelease


def admit(run: Allowance, event: Release, what: str, id: str) -> Allowance:
    """Has the ledger admit a release that belongs to the run."""
    cost = as_gaussian(event)
    return run.ledger.admit(
        cost, run=f"{run.run}-{id[:8]}", what=what, seeded=run.entry.seeded, ahead=cost.steps, id=id,
        owner=run.entry.id,
    )  # fmt: skip


def book(run: Allowance, id: str, event: Release, *, booked: Iterable[str]) -> None:
    """Charges the ledger for a release that was made, if it does not know it; ``booked`` are ids that it may know."""
    ledger = run.ledger
    others = [entry for entry in map(ledger.with_id, booked) if entry is not None]
    # Of releases without noise one is as many as several: it need not be repeated whenever a run goes on.
    known = isinstance(event, Unprotected) and any(entry.event.noise_multiplier == 0 for entry in others)
    if known or ledger.with_id(id) is not None or as_gaussian(event).steps == 0:
        return
    charge = admit(run, event, str(event), id)
    charge.reserve()
    charge.commit(charge.entry.event.steps)
    charge.close()


def held_for(run: Allowance, planned: PlannedRelease, *, but: Iterable[Allowance]) -> Allowance:
    """Has the ledger keep room for a planned release: what it kept before a crash (``but`` is in use), or new."""
    taken = {held.entry.id for held in but}
    for entry in run.ledger.owned_by(run.entry.id):
        if entry.event == planned.event and not entry.reserved and not entry.closed and entry.id not in taken:
            return run.ledger.resume(entry.run, ahead=entry.event.steps)
    return admit(run, planned.event, planned.what, secrets.token_hex(16))
