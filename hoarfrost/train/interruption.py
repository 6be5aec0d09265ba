"""Ctrl-C at the end of a step, not in the middle of one."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """While it is entered, SIGINT and SIGTERM are remembered in ``asked`` instead of ending the process.

    A second one no longer waits for the step: it raises KeyboardInterrupt where it is, unless ``patient`` was set
    because files are being written. In another thread than the main one Python hands out no signals, and this does
    nothing.

    >>> with Interruption() as interruption:
    ...     signal.raise_signal(signal.SIGINT)
    ...     interruption.asked
    True
    """

    def __init__(self) -> None:
        self.asked = False
        self.patient = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked and not self.patient:
            raise KeyboardInterrupt
        self.asked = True
