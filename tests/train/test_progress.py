"""What is seen of a run."""

import dataclasses
import io
import math
from collections.abc import Iterator

import pytest
import torch
from rich.console import Console

from hoarfrost.train import bar
from hoarfrost.train.evaluation import Average, Evaluation
from hoarfrost.train.loop import Epoch
from hoarfrost.train.progress import Bar, Lines, Overview, Quiet, progress_for


def plan(seeded: bool = False, epsilon: float = 3.0) -> Overview:
    return Overview(
        headline="digits: 10 examples", steps=40, epochs=4, epsilon=epsilon,
        epsilon_so_far=lambda: epsilon / 4, seeded=seeded,
    )  # fmt: skip


def epoch(number: int) -> Epoch:
    return Epoch(
        number=number, step=10 * number, seconds=1.0, steps_per_second=5.0, train_loss=0.7777, train_accuracy=0.6666,
        test=Evaluation({"loss": 0.5, "accuracy": 0.9, "mse": 0.25}),
    )  # fmt: skip


def printed(seeded: bool = False, epsilon: float = 3.0) -> list[str]:
    out = io.StringIO()
    lines = Lines(out)
    lines.start(plan(seeded, epsilon))
    for number in range(1, 5):
        lines.epoch(epoch(number))
    return out.getvalue().splitlines()


def test_lines_come_at_most_once_a_second_and_at_the_end() -> None:
    headline, first, last = printed()
    assert headline == "digits: 10 examples"
    assert first == (
        "epoch 1/4  step 10/40  test loss 0.500  test accuracy 90.0 %  ε 0.75 of 3.00  5.0 steps/s  6.0 s left"
    )
    assert last.startswith("epoch 4/4  step 40/40 ")


def test_a_regression_shows_its_error(screen: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    out, shown = io.StringIO(), Bar()
    for each in (Lines(out), shown):
        each.start(dataclasses.replace(plan(), metric="mse"))
        each.epoch(epoch(4))
    shown.stop()
    assert "test loss 0.500  test MSE 0.25  ε" in out.getvalue()
    assert "test MSE 0.25 · ε" in " ".join(screen.getvalue().split())


def test_lines_tell_nothing_about_the_training_data() -> None:
    assert "777" not in "".join(printed())
    assert "66" not in "".join(printed())


def test_a_seeded_run_says_so_next_to_epsilon() -> None:
    assert "ε 0.75 of 3.00 (seeded: do not release)" in printed(seeded=True)[1]


def test_without_noise_no_epsilon_is_shown() -> None:
    assert "not private" in printed(epsilon=math.inf)[1]


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """A terminal of 80 columns that remembers what was written."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, highlight=False, color_system=None)
    monkeypatch.setattr(bar, "Console", lambda **_: console)
    return out


def test_the_bar_shows_loss_accuracy_epsilon_speed_and_time_left(
    screen: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = Bar()
    shown.start(plan(seeded=True))
    average = Average(torch.tensor(8.0), torch.tensor(3), 4)
    for number in (1, 2, 3, 4):
        shown.step(10 * number, average)
        shown.epoch(epoch(number))
    shown.stop()
    shown.stop()  # twice does no harm
    text = screen.getvalue()
    assert "epoch 4/4" in text
    assert "40/40" in text
    assert "steps/s" in text
    assert "left" in text
    assert "train loss 0.778 · test accuracy 90.0 % · ε 0.75 of 3.00 (seeded: do not release)" in " ".join(text.split())


def test_output_that_is_no_terminal_gets_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert type(progress_for()) is Lines
    assert type(progress_for(quiet=True)) is Quiet


def test_warnings_are_one_line_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    Lines().warn("too large")
    assert capsys.readouterr().err == "hoarfrost: warning: too large\n"
