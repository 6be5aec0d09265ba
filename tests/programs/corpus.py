"""Programs that an honest user writes, each with what must happen: private as stated, or refused by name.

A program is a function of two arguments, and reads as its user would write it: the private examples, and
`make_private`. `@right(...)` and `@wrong(...)` put it into a table; its name says what it does. `running.py` runs it,
`test_corpus.py` judges it, and ``python -m tests.programs.report`` prints what must happen and what happens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hoarfrost.errors import HoarfrostError, NotPrivate
from tests.programs.running import MakePrivate, Run, Seen, measure, run

Rows = list[Any]


@dataclass(frozen=True)
class Private:
    """Accepted without a word, and private as stated: one example moves each step's sum by at most its sensitivity, and
    nothing else that is saved.

    Args:
        oracle: the sums are also those of the same program run plainly on one example at a time, and clipped.
        tolerance: how far the sums may be from the oracle's, in units of the sensitivity.
    """

    oracle: bool = True
    tolerance: float = 1e-4

    def __str__(self) -> str:
        return "private as stated"


@dataclass(frozen=True)
class Refused:
    """Stopped by an error of the library, in words that name the culprit and the fix."""

    error: type[Exception]
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.error.__name__}: {' ... '.join(self.words)}"


@dataclass(frozen=True)
class Told:
    """Refused, or accepted with a warning, in these words."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"refused, or a warning: {' ... '.join(self.words)}"


@dataclass(frozen=True)
class PrivateOrRefused:
    """Either is right, and so is a warning in these words; what must not be is a crash, or words that mislead."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"private as stated, or refused: {' ... '.join(self.words)}"


@dataclass(frozen=True)
class Holds:
    """What the program returns is true; ``what`` says what that means."""

    what: str

    def __str__(self) -> str:
        return self.what


Outcome = Private | Refused | Told | PrivateOrRefused | Holds


@dataclass(frozen=True)
class Program:
    """A row of the corpus.

    Args:
        rows: makes the examples.
        must: what must happen.
        newcomers: makes further examples, each of which is added to make a neighbouring data set.
        random: the program draws random numbers for each row, so that neighbours are made by replacing an example
            (which may move a sum twice as far), and there is no oracle.
        norm: the clipping norm, where no oracle tells which one clips half of the examples.
    """

    run: Callable[[Rows, MakePrivate], Any]
    rows: Callable[[], Rows]
    must: Outcome
    newcomers: Callable[[], Rows] | None = None
    random: bool = False
    norm: float = 1.0

    @property
    def name(self) -> str:
        return self.run.__name__

    def seen(self) -> Seen:
        """What happens when it is run on its examples and on neighbouring ones."""
        plainly = isinstance(self.must, Private) and self.must.oracle and not self.random
        return measure(self.run, self.rows(), self.newcomers, oracle=plainly, replace=self.random, norm=self.norm)

    def verdict(self) -> str | None:
        """What is not as it must be; None if all is well."""
        match self.must:
            case Private(tolerance=tolerance):
                return _private(self.seen(), tolerance)
            case Refused(error, words):
                return _refused(self.once(), error, words)
            case Told(words):
                # Some things show only where batches differ.
                runs = [self.once(), run(self.run, self.rows(), norm=self.norm, sample_rate=0.25)]
                said = [each for found in runs for each in (str(found.error), *found.warnings)]
                return None if any(_contains(each, words) for each in said) else f"not a word of {words}: {runs[0]}"
            case PrivateOrRefused(words):
                seen = self.seen()
                if seen.run.is_refused:
                    return _refused(seen.run, HoarfrostError, words)
                seen.run.warnings = [each for each in seen.run.warnings if not _contains(each, words)]
                return _private(seen, tolerance=1e-4)
            case Holds():
                found = self.once()
                return None if found.error is None and found.returned is True else f"it does not hold: {found}"

    def once(self) -> Run:
        """One run, on its own examples."""
        return run(self.run, self.rows(), norm=self.norm)


def _private(seen: Seen, tolerance: float) -> str | None:
    stopped = seen.run.error or seen.stopped
    if stopped is not None:
        return f"stopped by {type(stopped).__name__}: {stopped}"
    if seen.run.warnings:
        return f"a warning: {seen.run.warnings[0]}"
    if not seen.run.steps:
        return "no step was taken"
    if seen.from_oracle is not None and seen.from_oracle > tolerance:
        return f"the sum is {seen.from_oracle:.2g} sensitivities from the oracle's"
    if seen.moved > 1 + 1e-4:
        return f"one example moves the sum by {seen.moved:.4g} × its sensitivity"
    return f"one example changes {seen.leaks[0]}, which is saved" if seen.leaks else None


def _refused(found: Run, error: type[Exception], words: tuple[str, ...]) -> str | None:
    if not isinstance(found.error, error):
        return f"not refused as {error.__name__}: {found}"
    return None if _contains(str(found.error), words) else f"the message lacks some of {words}: {found.error}"


def _contains(text: str, words: tuple[str, ...]) -> bool:
    return all(word.lower() in text.lower() for word in words)


RIGHT: dict[str, Program] = {}
WRONG: dict[str, Program] = {}


def _register(table: dict[str, Program], must: Outcome, rows: Callable[[], Rows], options: dict[str, Any]) -> Any:
    def register(function: Callable[[Rows, MakePrivate], Any]) -> Callable[[Rows, MakePrivate], Any]:
        assert function.__name__ not in RIGHT.keys() | WRONG.keys(), f"two programs are called {function.__name__}"
        table[function.__name__] = Program(function, rows, must, **options)
        return function

    return register


def right(rows: Callable[[], Rows], *, oracle: bool = True, tolerance: float = 1e-4, **options: Any) -> Any:
    """A program that must not be refused, and is private as stated."""
    return _register(RIGHT, Private(oracle, tolerance), rows, options)


def wrong(rows: Callable[[], Rows], must: Outcome, **options: Any) -> Any:
    """A program that cannot be private as it stands, or misunderstands what it is doing."""
    return _register(WRONG, must, rows, options)


def refused(*words: str, error: type[Exception] = NotPrivate) -> Refused:
    """Refused in these words."""
    return Refused(error, words)


def told(*words: str) -> Told:
    """Refused or warned of, in these words."""
    return Told(words)


def private_or_refused(*words: str) -> PrivateOrRefused:
    """Made private, or refused in these words."""
    return PrivateOrRefused(words)
