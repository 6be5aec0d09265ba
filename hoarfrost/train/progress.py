"""What is seen of a run while it runs: a bar on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from hoarfrost.train import formatting
from hoarfrost.train.evaluation import Average
from hoarfrost.train.loop import Epoch

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


@dataclass(frozen=True)
class Overview:
    """What the run is going to do, as far as showing it needs to know."""

    headline: str
    steps: int
    epochs: int
    epsilon: float  # when all steps are taken
    epsilon_so_far: Callable[[], float]  # an upper bound, in microseconds
    seeded: bool
    done: int = 0  # steps taken before, if the run is resumed
    epoch: int = 1  # the one it begins with
    metric: str = "accuracy"  # what the test set is judged by
    live: Callable[[], float] | None = None  # the share of the coordinates that is live now, if some are frozen

    def spent(self) -> str:
        """Epsilon so far, of how much; and how much of the model is live."""
        live = "" if self.live is None else f" · live {formatting.percent(self.live())}"
        return formatting.spent(self.epsilon_so_far(), self.epsilon, self.seeded) + live

    def tested(self, epoch: Epoch | None = None) -> str:
        """The metric of the test set after an epoch; a dash before the first."""
        return formatting.figure(
            self.metric, None if epoch is None or epoch.test is None else epoch.test.figures.get(self.metric)
        )


class Progress:
    """Shows nothing, and hands warnings to Python. The other kinds show more."""

    def warn(self, text: str) -> None:
        """Something that the user should know and that does not stop the run."""
        warnings.warn(text, stacklevel=3)

    def start(self, overview: Overview) -> None:
        """Training begins."""

    def step(self, steps: int, average: Average) -> None:
        """So many steps were taken; ``average`` is private, for the local screen only."""

    def epoch(self, epoch: Epoch) -> None:
        """An epoch has ended."""

    def stop(self) -> None:
        """Training has ended, in whatever way."""


class Quiet(Progress):
    """Warnings, one line each on standard error, and nothing else."""

    def warn(self, text: str) -> None:
        print(f"hoarfrost: warning: {text}", file=sys.stderr, flush=True)


class Lines(Quiet):
    """A line after an epoch, but no more than one a second, and one at the end.

    Training loss and accuracy are not in it: output that is not a screen is kept, and shared, and no epsilon covers
    them.
    """

    INTERVAL = 1.0

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._shown = -self.INTERVAL

    def start(self, overview: Overview) -> None:
        self._overview = overview
        self._print(overview.headline)

    def epoch(self, epoch: Epoch) -> None:
        now = time.monotonic()
        if now - self._shown < self.INTERVAL and epoch.step < self._overview.steps:
            return
        self._shown = now
        overview = self._overview
        tested = "" if epoch.test is None else (
            f"test loss {epoch.test.figures['loss']:.3f}  test {self._overview.tested(epoch)}  "
        )  # fmt: skip
        left = (overview.steps - epoch.step) / epoch.steps_per_second
        self._print(
            f"epoch {epoch.number}/{overview.epochs}  step {epoch.step}/{overview.steps}  {tested}{overview.spent()}  "
            f"{epoch.steps_per_second:.1f} steps/s  {formatting.duration(left)} left"
        )

    def _print(self, text: str) -> None:
        print(text, file=self._out, flush=True)


class Bar(Quiet):
    """A progress bar with the live figures in a line below it. For a terminal."""

    REFRESH = 0.1  # seconds; a figure that is read more often would make a GPU wait

    def __init__(self) -> None:
        self._rich: RichProgress | None = None
        self._task: TaskID | None = None
        self._epoch = 1
        self._next = 0.0

    def start(self, overview: Overview) -> None:
        from hoarfrost.train.bar import make_bar

        self._overview, self._epoch, self._tested = overview, overview.epoch, overview.tested()
        print(overview.headline, flush=True)
        self._rich = make_bar()
        self._rich.start()
        self._task = self._rich.add_task(
            "",
            total=overview.steps,
            completed=overview.done,
            epoch=f"epoch {overview.epoch}/{overview.epochs}",
            figures="",
        )

    def step(self, steps: int, average: Average) -> None:
        now = time.monotonic()
        if now < self._next and steps < self._overview.steps:
            return
        self._next = now + self.REFRESH
        self._show(steps, average.loss)

    def epoch(self, epoch: Epoch) -> None:
        if epoch.test is not None:
            self._tested = self._overview.tested(epoch)
        self._show(epoch.step, epoch.train_loss)
        self._epoch = min(epoch.number + 1, self._overview.epochs)  # the next one

    def warn(self, text: str) -> None:
        if self._rich is None:
            super().warn(text)
        else:
            self._rich.console.print(f"hoarfrost: warning: {text}", markup=False)

    def stop(self) -> None:
        if self._rich is not None:
            self._rich.stop()
            self._rich = None

    def _show(self, steps: int, train_loss: float | None) -> None:
        if self._rich is None or self._task is None:
            return
        loss = "–" if train_loss is None else f"{train_loss:.3f}"
        self._rich.update(
            self._task,
            completed=steps,
            epoch=f"epoch {self._epoch}/{self._overview.epochs}",
            figures=f"train loss {loss} · test {self._tested} · {self._overview.spent()}",
        )


def progress_for(quiet: bool = False) -> Progress:
    """The kind that suits standard output."""
    if quiet:
        return Quiet()
    if not sys.stdout.isatty():
        return Lines()
    from rich.console import Console

    return Lines() if Console().is_dumb_terminal else Bar()
