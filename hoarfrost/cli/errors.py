"""Errors are one line on standard error with exit code 2, never a traceback."""

import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from hoarfrost.errors import HoarfrostError
from hoarfrost.untrusted import line

INTERRUPTED = 130  # as in shells: 128 + SIGINT


class OneLineErrorGroup(TyperGroup):
    """A command group that prints each error in one line."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Runs the command line and exits with its code; returns the code if not in standalone mode."""
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except HoarfrostError as error:
            code = report(str(error))
        except (KeyboardInterrupt, typer.Abort):
            code = report("interrupted", INTERRUPTED)
        except Exception as error:
            # Errors of the parser. Their classes are in click or in typer, depending on typer's version.
            if not hasattr(error, "format_message"):
                raise
            code = report(error.format_message())
        if standalone_mode:
            sys.exit(code or 0)
        return code


def report(text: str, code: int = 2) -> int:
    """Prints one line on standard error, safe for a terminal whatever it quotes, and returns the exit code."""
    print(f"hoarfrost: {line(text, most=2000)}", file=sys.stderr, flush=True)
    return code
