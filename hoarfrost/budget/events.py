"""Releases as data. An event says what was released and how noisily; what that costs is worked out elsewhere."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Protocol, runtime_checkable

from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)

from hoarfrost.errors import InvalidValue
from hoarfrost.validate import count, finite, not_negative, rate

# Accountants square the noise multiplier. Less noise than this hides nothing; of more than this, what is beyond counts
# for nothing, which can only overstate the cost.
LEAST_NOISE, MOST_NOISE = 1e-6, 1e9


@runtime_checkable
class Event(Protocol):
    """One release, or several of a kind. ``str(event)`` describes it to a person."""

    def dp_event(self) -> DpEvent:
        """The release in dp-accounting's terms, for neighbours that differ by adding or removing one example."""
        ...

    def as_dict(self) -> dict[str, object]:
        """The release as JSON can hold it."""
        ...


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """`steps` sums over Poisson-sampled examples, each released with Gaussian noise.

    In every step each example takes part independently with probability `sample_rate` (q), and moves the sum by at
    most the sensitivity; the noise has standard deviation `noise_multiplier` (σ) times that sensitivity.

    >>> print(Gaussian(noise_multiplier=1.5, sample_rate=0.02, steps=2000))
    2000 steps at sampling rate 0.02 with noise multiplier 1.5
    """

    noise_multiplier: float
    sample_rate: float = 1.0
    steps: int = 1

    def __post_init__(self) -> None:
        finite(noise_multiplier=self.noise_multiplier)
        not_negative(noise_multiplier=self.noise_multiplier)
        rate(sample_rate=self.sample_rate)
        count(steps=self.steps)  # nothing released yet is a fair thing to describe

    def dp_event(self) -> DpEvent:
        """The release in dp-accounting's terms."""
        if self.steps == 0:
            return NoOpDpEvent()
        step = GaussianDpEvent(min(float(self.noise_multiplier), MOST_NOISE))
        if self.sample_rate < 1:
            step = PoissonSampledDpEvent(float(self.sample_rate), step)
        return SelfComposedDpEvent(step, self.steps)

    def as_dict(self) -> dict[str, object]:
        """The release as JSON can hold it.

        >>> Gaussian(noise_multiplier=1.5).as_dict()
        {'kind': 'gaussian', 'noise_multiplier': 1.5, 'sample_rate': 1.0, 'steps': 1}
        """
        return {"kind": "gaussian", **asdict(self)}

    def __str__(self) -> str:
        count = "1 step" if self.steps == 1 else f"{self.steps} steps"
        sampling = "on all examples" if self.sample_rate == 1 else f"at sampling rate {self.sample_rate:.6g}"
        return f"{count} {sampling} with noise multiplier {self.noise_multiplier:.6g}"


@dataclass(frozen=True)
class Unprotected:
    """Something that depends on private data and was used without noise: nothing that includes it is private.

    >>> print(Unprotected("the pruning mask"))
    the pruning mask, taken from the private data without noise
    """

    what: str

    def __post_init__(self) -> None:
        if not isinstance(self.what, str):
            raise InvalidValue(f"what was not protected is said in words, not {self.what!r}")

    def dp_event(self) -> DpEvent:
        """The release in dp-accounting's terms."""
        return NonPrivateDpEvent()

    def as_dict(self) -> dict[str, object]:
        """The release as JSON can hold it."""
        return {"kind": "unprotected", "what": self.what}

    def __str__(self) -> str:
        return f"{self.what}, taken from the private data without noise"


Release = Gaussian | Unprotected

KINDS: dict[str, type[Release]] = {"gaussian": Gaussian, "unprotected": Unprotected}


def from_dict(facts: Mapping[str, Any]) -> Release:
    """The release that `as_dict` described.

    >>> from_dict(Gaussian(noise_multiplier=1.5).as_dict())
    Gaussian(noise_multiplier=1.5, sample_rate=1.0, steps=1)
    """
    facts = dict(facts)
    kind = facts.pop("kind", None)
    if kind not in KINDS or set(facts) != {field.name for field in fields(KINDS[kind])}:
        raise InvalidValue("this is not the description of a release")
    return KINDS[kind](**facts)


def gaussian_from_dict(facts: Mapping[str, Any]) -> Gaussian:
    """The same where nothing but steps with noise may be."""
    event = from_dict(facts)
    if not isinstance(event, Gaussian):
        raise InvalidValue("this is not the description of steps")
    return event


def as_gaussian(event: Release) -> Gaussian:
    """The release as a ledger books it: what was not protected had no noise.

    >>> as_gaussian(Unprotected("the pruning mask"))
    Gaussian(noise_multiplier=0.0, sample_rate=1.0, steps=1)
    """
    return event if isinstance(event, Gaussian) else Gaussian(noise_multiplier=0.0)


def noisy(events: Iterable[Event]) -> tuple[Event, ...]:
    """Those that were released with noise. What was released without, no noise elsewhere makes up for.

    >>> noisy([Gaussian(noise_multiplier=1.0), Gaussian(noise_multiplier=0.0), Unprotected("a mask")])
    (Gaussian(noise_multiplier=1.0, sample_rate=1.0, steps=1),)
    """
    return tuple(event for event in events if not any(map(noiseless, mechanisms([event]))))


def by_kind(events: Iterable[Event]) -> tuple[Event, ...]:
    """The same releases with steps of one kind added up, and what was not protected named once.

    >>> by_kind([Gaussian(noise_multiplier=1.0, steps=2), Unprotected("a"), Gaussian(noise_multiplier=1.0, steps=3)])
    (Gaussian(noise_multiplier=1.0, sample_rate=1.0, steps=5), Unprotected(what='a'))
    """
    found: dict[object, Event] = {}
    for event in events:
        if not isinstance(event, Gaussian):
            found.setdefault(event, event)
            continue
        kind = (event.noise_multiplier, event.sample_rate)
        before = found.get(kind)
        steps = event.steps + (before.steps if isinstance(before, Gaussian) else 0)
        found[kind] = replace(event, steps=steps)
    return tuple(found.values())


def gathered(events: Event | Iterable[Event]) -> tuple[Event, ...]:
    """One event or many, as a tuple; anything else is refused."""
    several = (events,) if isinstance(events, Event) else tuple(events) if isinstance(events, Iterable) else None
    if several is None or not all(isinstance(event, Event) for event in several):
        raise InvalidValue(f"events must be one release or several, such as Gaussian(...), got {events!r}")
    return several


def mechanisms(events: Iterable[Event]) -> Counter[DpEvent]:
    """How often each single mechanism runs, in all, in the order in which they are mentioned last.

    The order of releases does not change what they cost. What is asked about goes last, so that an accountant finds the
    composition of all others where it left it.
    """
    total: Counter[DpEvent] = Counter()
    for event in events:
        for mechanism, times in _single(event.dp_event(), 1):
            total[mechanism] = total.pop(mechanism, 0) + times
    return total


def noiseless(mechanism: DpEvent) -> bool:
    """Whether the mechanism releases its input as it is, or as good as."""
    while isinstance(mechanism, PoissonSampledDpEvent):
        mechanism = mechanism.event
    return isinstance(mechanism, NonPrivateDpEvent) or getattr(mechanism, "noise_multiplier", 1.0) < LEAST_NOISE


def _single(event: DpEvent, times: int) -> Iterator[tuple[DpEvent, int]]:
    if isinstance(event, NoOpDpEvent) or times == 0:
        return
    if isinstance(event, SelfComposedDpEvent):
        yield from _single(event.event, times * event.count)
    elif isinstance(event, ComposedDpEvent):
        for part in event.events:
            yield from _single(part, times)
    else:
        yield event, times
