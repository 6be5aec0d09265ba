"""What a check has found so far."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hoarfrost.errors import ContractBroken


class Findings:
    """Collects findings, each once, and raises them together.

    >>> found = Findings("MyClipper()")
    >>> found.add("begin() returns None", "Return a Clipping")
    >>> found.finish()
    Traceback (most recent call last):
        ...
    hoarfrost.errors.ContractBroken: MyClipper() does not pass:
      1. begin() returns None. Return a Clipping.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._found: dict[str, None] = {}
        self._first_error: Exception | None = None

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, problem: str, fix: str) -> None:
        """Notes one finding: what is wrong, and how to mend it."""
        self._found.setdefault(f"{problem}. {fix}.")

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """An exception in this block is a finding."""
        try:
            yield
        except Exception as error:
            self._first_error = self._first_error or error
            self.add(f"{what} raises {type(error).__name__}: {error}", "The first such error is shown above")

    def finish(self) -> None:
        """Raises everything that was found, if anything was."""
        if self._found:
            lines = (f"\n  {number}. {finding}" for number, finding in enumerate(self._found, 1))
            raise ContractBroken(f"{self.what} does not pass:{''.join(lines)}", tuple(self._found)) from (
                self._first_error
            )
