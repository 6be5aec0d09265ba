"""The progress bar's looks, apart from what it shows, because importing rich takes a while."""

from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


class StepsPerSecond(ProgressColumn):
    """How fast it goes."""

    def render(self, task: Task) -> RenderableType:
        """The speed over the last seconds, or over all of them when it is done."""
        speed = task.finished_speed or task.speed
        return Text("– steps/s" if speed is None else f"{speed:.1f} steps/s", style="progress.data.speed")


class TwoLines(Progress):
    """The bar, and below it the task's ``figures``: together they would be too long for a line of 80 characters."""

    def get_renderables(self) -> Iterable[RenderableType]:
        """What is on the screen now."""
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            yield Text(task.fields["figures"], no_wrap=False)


def make_bar(console: Console | None = None) -> TwoLines:
    """A bar that has not been started; its task needs the fields ``epoch`` and ``figures``."""
    return TwoLines(
        TextColumn("{task.fields[epoch]}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        StepsPerSecond(),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console or Console(highlight=False),
        expand=True,
    )
