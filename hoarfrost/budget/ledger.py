"""One budget for everything that is ever done with a data set, kept in a file that nothing refunds.

What can be asked of it is in `contents.py`; this is how it is drawn on.
"""

from __future__ import annotations

import hmac
import secrets
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hoarfrost import validate
from hoarfrost.budget._journal import Journal, Writer
from hoarfrost.budget.accountant import Accountant, check_accountant, privacy_filter, within
from hoarfrost.budget.accountant import epsilon as epsilon_of
from hoarfrost.budget.allowance import Allowance
from hoarfrost.budget.calibration import steps as steps_within
from hoarfrost.budget.contents import FORMAT, IMPOSSIBLE, Contents
from hoarfrost.budget.entry import code, now, who
from hoarfrost.budget.events import Gaussian
from hoarfrost.budget.statement import EXAMPLE, check_unit, rounded_up
from hoarfrost.errors import BudgetSpent, InvalidValue


class Ledger(Contents):
    """A data set's budget, shared by all who train on it, in one append-only file.

    Whoever wants to release something asks first (`admit`). What is admitted is held for them, step by step reserved
    *before* a batch is drawn, and committed after the step. What a run does not reserve returns to the others when it
    is closed; what is reserved never does.

    Args:
        path: of a ledger that `Ledger.create` made.
        key: the owner's, if it was made with one.

    Guarantees:
        Everything that was reserved counts as spent, committed or not: a kill at any moment may overstate what was
        released, never understate it. The releases admitted at any time, by any number of processes, cost together at
        most the budget. A record that was changed, reordered or taken out of the middle is noticed by anyone; one taken
        from the end is noticed by whoever has a later `head`, and with the owner's key by everyone, as long as the head
        file beside the ledger is not put back to an older one too.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "ledger.jsonl"
    >>> ledger = Ledger.create(path, epsilon=2.0, delta=1e-5)
    >>> allowance = ledger.admit(Gaussian(noise_multiplier=1.0, sample_rate=0.01, steps=500), what="a first model")
    >>> for step in range(3):
    ...     allowance.reserve()
    ...     # draw a batch, compute, add noise
    ...     allowance.commit()
    >>> round(Ledger(path).epsilon(), 3)
    0.275
    """

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        epsilon: float | None,
        delta: float,
        accountant: Accountant = "pld",
        key: bytes | None = None,
        seeded: bool = False,
        note: str = "",
        unit: str = EXAMPLE,
    ) -> Ledger:
        """Makes a ledger with a budget; an ``epsilon`` of None records without a limit.

        Args:
            accountant: how releases are composed. "filter" is for a budget whose users look at results before they ask
                for more: `privacy_filter` chooses it for the budget.
            key: the owner's secret. Whoever writes to the ledger then needs it.
            seeded: admit runs whose noise comes from a seed, and hides nothing from whoever knows it.
            unit: for whom it is kept: "one example", or "one person". Runs for the other one are refused: what they
                spend does not add up.
        """
        if epsilon is not None:
            validate.positive(epsilon=epsilon)
            validate.finite(epsilon=epsilon)
        validate.probability(delta=delta)
        if accountant == "filter":
            if epsilon is None:
                raise InvalidValue("a privacy filter is made for a budget: give epsilon=")
            accountant = privacy_filter(epsilon, delta)
        check_accountant(accountant)
        if not isinstance(note, str) or not isinstance(seeded, bool):
            raise InvalidValue("note is a text, and seeded is True or False")
        check_unit(unit)
        first = {
            "kind": "create", "format": FORMAT, "epsilon": epsilon, "delta": delta, "accountant": accountant,
            "keyed": key is not None, "seeded": seeded, "note": note, "unit": unit, "who": who(), "code": code(),
            "at": now(),
        }  # fmt: skip
        Journal(Path(path), key).create(first)
        return cls(path, key)

    # What is left of it.

    def steps_left(self, sample_rate: float, noise_multiplier: float, *, wanted: int | None = None) -> int | None:
        """How many more such steps the budget buys, besides all that is held; None without a limit.

        Args:
            wanted: no more than so many: whether all of them fit is asked first, since finding out how many do is a
                search.
        """
        if self.budget is None:
            return wanted
        others = self.spent() + self.held()
        if wanted is not None:
            all_of_them = Gaussian(noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=wanted)
            if within((*others, all_of_them), self.budget, self.delta, self.accountant):
                return wanted
        found = steps_within(self.budget, self.delta, sample_rate, noise_multiplier, self.accountant, after=others)
        return found if wanted is None else min(found, wanted)

    def fingerprint(self, digest: bytes) -> str | None:
        """What the ledger may keep of a data set's digest: nothing without the owner's key.

        Whoever can compute it could otherwise try out guesses of the data.
        """
        if self._key is None:
            return None
        return hmac.new(hmac.digest(self._key, b"hoarfrost data", "sha256"), digest, "sha256").hexdigest()

    # Drawing on it.

    def admit(
        self,
        event: Gaussian,
        *,
        run: str | None = None,
        what: str = "",
        seeded: bool = False,
        data: str | None = None,
        new_data: bool = False,
        ahead: int = 1,
        instead_of: Collection[str] = (),
        id: str | None = None,
        owner: str | None = None,
    ) -> Allowance:
        """Asks for ``event.steps`` steps; refuses what would exceed the budget together with all that is spent or held.

        Args:
            run: a name of one's own, to find the allowance again after a crash (`resume`).
            what: what it is for, told to whoever reads the ledger.
            data: the data set's `fingerprint`. One that differs from the ledger's earlier ones is refused, unless it is
                said to be ``new_data``: the same people's, say, with some added.
            ahead: so many steps are reserved at a time: fewer writes, and as many lost when the process is killed.
            instead_of: open runs that are closed if this one is admitted; what they hold is free for it.
            id: an identity that was drawn before; by default it is drawn now.
            owner: the id of the run that this belongs to, if it is a release in addition to that run's steps.
        """
        validate.whole(steps=event.steps, ahead=ahead)
        run = f"run-{secrets.token_hex(4)}" if run is None else run  # not a number: other ledgers count, too

        def check() -> None:
            if self.find(run) is not None:
                raise InvalidValue(f"the ledger {self.path} has a run named {run!r} already; choose another name")
            self._refuse_seeded(seeded)
            if not new_data:
                self._refuse_other_data(data)

        self.refresh()
        check()
        with self._affording(event, instead_of) as writer:
            check()
            record = self._append(
                writer,
                {
                    "kind": "admit", "run": run, "what": what, "who": who(), "code": code(), "at": now(),
                    "event": event.as_dict(), "seeded": seeded, "data": data, "id": id or secrets.token_hex(16),
                    "owner": owner,
                },
            )  # fmt: skip
            for entry in self.entries:
                if entry.run in instead_of and not entry.closed:
                    self._append(writer, {"kind": "close", "for": entry.number, "at": now()})
            return Allowance(self, int(record["n"]), ahead)

    def resume(self, run: str, *, ahead: int = 1) -> Allowance:
        """The allowance of a run that was admitted before and is not closed: what it reserved stays spent."""
        self.refresh()
        entry = self.find(run)
        if entry is None:
            raise InvalidValue(f"the ledger {self.path} knows no run named {run!r}")
        if entry.closed:
            raise InvalidValue(f"the run {run!r} is closed in the ledger {self.path}; admit it anew")
        return Allowance(self, entry.number, ahead)

    def close(self, run: str) -> None:
        """Gives back what the run holds and has not reserved. It can take no further step."""
        self.resume(run).close()

    @contextmanager
    def release(self, event: Gaussian, what: str) -> Iterator[None]:
        """Pays for a single release (a metric, a threshold, a selection) that the block makes.

        >>> import tempfile
        >>> ledger = Ledger.create(Path(tempfile.mkdtemp()) / "ledger.jsonl", epsilon=1.0, delta=1e-5)
        >>> with ledger.release(Gaussian(noise_multiplier=10.0), what="accuracy on the training set"):
        ...     pass  # compute it, and add the noise
        >>> ledger.entries[0].committed
        1
        """
        allowance = self.admit(event, what=what, ahead=event.steps)
        try:
            allowance.reserve()
            yield
            allowance.commit(event.steps)
        finally:
            allowance.close()

    # The inside.

    @contextmanager
    def _writing(self) -> Iterator[Writer]:
        self._refuse_without_key()
        with self._settled(), self._journal.locked() as writer:
            self._take(writer.new)
            yield writer

    @contextmanager
    def _affording(self, event: Gaussian, instead_of: Collection[str] = ()) -> Iterator[Writer]:
        """Writing, as soon as the event fits the budget together with all claims.

        What they cost is worked out without the lock: near the budget that may take long, and all who train would wait.
        If others were admitted meanwhile it is done again; if some were closed, what fitted fits.
        """
        self._refuse_without_key()
        self.refresh()
        while True:
            claims = self._claims(instead_of)
            self._refuse_beyond_budget(event, claims)
            with self._writing() as writer:
                if self._claims(instead_of) <= claims:
                    yield writer
                    return

    def _claims(self, instead_of: Collection[str] = ()) -> Counter[tuple[float, float]]:
        """How many steps of each noise multiplier and sampling rate are spent or held, but by those to be closed."""
        total: Counter[tuple[float, float]] = Counter()
        for entry in self._entries.values():
            steps = entry.reserved if entry.run in instead_of else entry.reserved + entry.left
            total[entry.event.noise_multiplier, entry.event.sample_rate] += steps
        return total

    def _append(self, writer: Writer, body: Mapping[str, Any], *, durable: bool = True) -> dict[str, Any]:
        try:  # before it is written: a record that cannot be would spoil the file for all
            self._entry_after({**body, "n": len(self._journal.hashes)})
        except IMPOSSIBLE as error:
            raise InvalidValue(f"the ledger {self.path}: {error}") from error
        record = writer.append(body, durable=durable)
        self._take([record])
        return record

    def _refuse_seeded(self, seeded: bool) -> None:
        if seeded and not self.seeded:
            raise InvalidValue(
                f"the ledger {self.path} admits no seeded runs: whoever knows the seed can subtract the noise. Leave "
                "out the seed, or use a ledger made with --allow-seeded"
            )

    def _refuse_other_data(self, data: str | None) -> None:
        known = {entry.data for entry in self.entries if entry.data is not None}
        if data is not None and known and data not in known:
            raise InvalidValue(
                f"the ledger {self.path} is for another data set than this one; a data set needs a ledger of its own. "
                "If the data have changed, say so with --accept data"
            )

    def _refuse_without_key(self) -> None:
        if self.keyed and self._key is None:
            raise InvalidValue(f"the ledger {self.path} has an owner's key: whoever draws on it needs it (--key FILE)")

    def _refuse_beyond_budget(self, event: Gaussian, claims: Counter[tuple[float, float]]) -> None:
        if self.budget is None:
            return
        others = (
            Gaussian(noise_multiplier=noise, sample_rate=rate, steps=steps) for (noise, rate), steps in claims.items()
        )
        together = (*others, event)
        if within(together, self.budget, self.delta, self.accountant):
            return
        wanted = epsilon_of(together, self.delta, self.accountant)
        buys = self.steps_left(event.sample_rate, event.noise_multiplier) or 0
        held = f", {rounded_up(self.epsilon_with_held())} with what open runs hold" if self.held() else ""
        raise BudgetSpent(
            f"{event} would bring the ledger {self.path} to epsilon {rounded_up(wanted)}, above its budget of "
            f"{self.budget:g} at delta {self.delta:g}. Spent so far: {rounded_up(self.epsilon())}{held}; what is left "
            f"buys {buys} such steps"
        )
