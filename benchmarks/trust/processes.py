"""Forked processes, some of which will be killed."""

import os
from collections.abc import Callable


def start(work: Callable[[], object]) -> int:
    """Forks a process that does the work; returns its id. It exits with 0 if the work finished, else with 1."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child
