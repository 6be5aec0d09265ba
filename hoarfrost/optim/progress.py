"""Where a run is: what must travel with the weights and torch's optimizer state so that they can go on elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hoarfrost.budget import Account, Counters, Snapshot
from hoarfrost.errors import InvalidValue

if TYPE_CHECKING:
    from hoarfrost.optim.private import PrivateOptimizer

KEY = "hoarfrost"  # under which it is in the optimizer's state_dict


@dataclass(frozen=True)
class Progress:
    """What was spent, where the sampler is, and what clipping style and freezer keep.

    Args:
        account: what was spent.
        position: of the sampler.
        ledger: its path, the run's name there, and its head.
        clipper, freezer: in words.
        clipped: every way in which gradients were clipped so far, in words.
        live_shares: of all steps, added up.
        tensors: what the clipping style and the freezer keep; their names begin with "clipper." and "freezer.".
    """

    account: Snapshot
    position: Mapping[str, int]
    ledger: Mapping[str, str] | None
    clipper: str
    freezer: str | None
    live_shares: float
    clipped: tuple[str, ...] = ()
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, optimizer: PrivateOptimizer) -> Progress:
        """Where the run of this optimizer is."""
        optimizer.refuse_ended()
        account, engine, controller = optimizer.account, optimizer.engine, optimizer.controller
        tensors = {f"clipper.{name}": value for name, value in engine.clipper.state().items()}
        if controller is not None:
            tensors |= {f"freezer.{name}": value for name, value in controller.freezer.state().items()}
        return cls(
            account=account.snapshot(),
            position=optimizer.loader.state_dict(),
            ledger=_ledger(account),
            clipper=engine.clipper_repr,
            freezer=None if controller is None else controller.freezer_repr,
            live_shares=float(account.steps_taken) if controller is None else controller.live_shares,
            clipped=tuple(engine.clipped),
            tensors=tensors,
        )

    def as_dict(self) -> dict[str, Any]:
        """Everything but the tensors, as JSON can hold it."""
        return {
            "account": self.account.as_dict(),
            "position": dict(self.position),
            "ledger": None if self.ledger is None else dict(self.ledger),
            "clipper": self.clipper,
            "freezer": self.freezer,
            "live_shares": self.live_shares,
            "clipped": list(self.clipped),
        }

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Progress:
        """What `as_dict` described; anything else raises."""
        ledger = facts["ledger"]
        if ledger is not None and not all(isinstance(ledger[name], str) for name in ("path", "run", "head")):
            raise ValueError("what it says of its ledger cannot be")
        clipped = facts.get("clipped", [])  # older files do not say it
        if not isinstance(clipped, list) or not all(isinstance(each, str) for each in clipped):
            raise ValueError("what it says of clipping cannot be")
        return cls(
            account=Snapshot.from_dict(facts["account"]),
            position=facts["position"],
            ledger=ledger,
            clipper=facts["clipper"],
            freezer=facts["freezer"],
            live_shares=float(facts["live_shares"]),
            clipped=tuple(clipped),
            tensors=tensors,
        )

    @contextmanager
    def restoring(self, optimizer: PrivateOptimizer, *, also: Counters | None = None) -> Iterator[None]:
        """Brings a run to where this is; the block loads the state of torch's optimizer, and perhaps the weights.

        Args:
            also: what else is known to have been charged for these weights.

        Guarantees:
            Noise and batches that follow are new ones, and a batch that was under way is void. Nothing is refunded
            (`Account.restore`). Whatever fails, what was spent on the weights is known.
        """
        account, engine, controller = optimizer.account, optimizer.engine, optimizer.controller
        self._check_ledger(account)
        account.check(self.account)
        # The account first: whatever of the rest fails, what these weights have behind them is known.
        account.learn(self.account)
        account.learn(also or {})
        engine.reset()
        optimizer.loader.load_state_dict({**self.position, "steps_drawn": self.account.steps_taken})
        engine.clipped = dict.fromkeys([*self.clipped, *engine.clipped])
        yield
        if self.clipper == engine.clipper_repr:
            engine.clipper.load_state(self._of("clipper"))
        stands = controller is not None and controller.restore(self.freezer, self.live_shares, self._of("freezer"))
        account.restore(self.account, releases_stand=stands)

    def _of(self, kind: str) -> dict[str, Tensor]:
        return {n.removeprefix(f"{kind}."): t for n, t in self.tensors.items() if n.startswith(f"{kind}.")}

    def _check_ledger(self, account: Account) -> None:
        """Refuses a ledger that was cut since: what was charged to it after this would be forgotten."""
        if self.ledger is None or account.allowance is None:
            return
        ledger = account.allowance.ledger
        ledger.refresh()
        knows_it = any(ledger.with_id(id) is not None for id in self.account.counters)
        if knows_it or ledger.path.resolve() == Path(self.ledger["path"]):
            ledger.check(self.ledger["head"])


def _ledger(account: Account) -> dict[str, str] | None:
    if account.allowance is None:
        return None
    ledger = account.allowance.ledger
    return {"path": str(ledger.path.resolve()), "run": account.run, "head": str(ledger.head)}


def with_progress(state_dict: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """A state_dict of a torch optimizer, and under one more key where the run is: plain data and tensors."""
    return {**state_dict, KEY: {**progress.as_dict(), "tensors": dict(progress.tensors)}}


def progress_in(state_dict: Mapping[str, Any]) -> Progress | None:
    """What `with_progress` added; None if the state_dict is a plain optimizer's."""
    facts = state_dict.get(KEY)
    if facts is None:
        return None
    try:
        return Progress.from_dict(facts, facts["tensors"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidValue(
            "this optimizer's state_dict says what was spent on its weights in a way that cannot be read "
            f"({' '.join(str(error).split())[:200] or type(error).__name__})"
        ) from error
