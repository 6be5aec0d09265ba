"""What goes wrong is told in one line on standard error, with exit code 2; never by a traceback."""

import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from hoarfrost.errors import HoarfrostError
from hoarfrost.untrusted import line

INTERRUPTED = 130  # as shells count: 128 + SIGINT


class OneLine(TyperGroup):
    """A group of commands whose every error is one line."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Runs the command line; ends the process with its exit code, unless it is asked not to."""
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except HoarfrostError as error:
            code = complain(str(error))
        except (KeyboardInterrupt, typer.Abort):
            code = complain("interrupted", INTERRUPTED)
        except Exception as error:
            # The parser's own complaints. Its classes live in click, or in typer itself, depending on typer's version.
            if not hasattr(error, "format_message"):
                raise
            code = complain(error.format_message())
        if standalone_mode:
            sys.exit(code or 0)
        return code


def complain(text: str, code: int = 2) -> int:
    """Prints one line, safe for a terminal whatever it quotes, and hands the exit code back."""
    print(f"hoarfrost: {line(text, most=2000)}", file=sys.stderr, flush=True)
    return code
