"""Prints for every program of the corpus what must happen, what happens, and how far one example moves a sum.

``python -m tests.programs.report`` prints all that does not come out as it must; with ``--all``, every program; with
words, those whose names contain one of them.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.programs.corpus import Holds, Program
from tests.programs.tables import KNOWN_FAILURES, KNOWN_GAPS, PROGRAMS, SLOW


def happens(program: Program) -> str:
    """What a program comes to, in a line."""
    if isinstance(program.must, Holds):
        found = program.once()
        return str(found) if found.error is not None else f"returns {found.returned}"
    seen = program.seen()
    if seen.run.error is not None or not seen.run.steps:
        return str(seen.run)
    parts = [str(seen.run), f"one example moves a sum by {seen.moved:.3g} × C"]
    parts += [f"neighbours stopped by {type(seen.stopped).__name__}"] if seen.stopped is not None else []
    parts += [f"from the oracle: {seen.from_oracle:.1e} C"] if seen.from_oracle is not None else []
    parts += [f"one example changes {name}" for name in dict.fromkeys(seen.leaks)][:2]
    return ", ".join(parts)


def main(arguments: list[str]) -> None:
    words = [word for word in arguments if not word.startswith("-")]
    chosen = [name for name in PROGRAMS if not words or any(word in name for word in words)]
    as_they_must = 0
    for name in chosen:
        program = PROGRAMS[name]
        verdict = program.verdict()
        as_they_must += verdict is None
        listed = "known failure" * (name in KNOWN_FAILURES) or "known gap" * (name in KNOWN_GAPS)
        mark = "as it must" if verdict is None else "NOT AS IT MUST"
        if verdict is None and not listed and not words and "--all" not in arguments:
            continue
        print(f"{name}: {mark}{f' ({listed})' if listed else ''}{' (slow)' if name in SLOW else ''}")
        print(f"    must happen: {program.must}")
        print(f"    happens:     {happens(program)}", flush=True)
    print(f"{as_they_must} of {len(chosen)} programs come out as they must")


if __name__ == "__main__":
    main(sys.argv[1:])
