"""The examples of docs/calibration.md run, and give what it says."""

import re
from pathlib import Path
from typing import Any

import torch

PAGE = Path(__file__).parents[2] / "docs" / "calibration.md"


def test_the_examples_run(capsys: Any) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 2
    torch.manual_seed(0)
    given: dict[str, Any] = {}
    for each in blocks:
        exec(each, given)
    assert capsys.readouterr().out == f"ECE {given['found'].ece:.1%}, MCE {given['found'].mce:.1%}\n"
    assert len(given["per_class"]) == 10
    assert 0 < given["same_mass"] < 1
    assert given["figure"].startswith("<?xml")
    assert (
        given["calibrated"].ece < given["found"].ece
    )  # the labels are guesses: anything else than guessing is too sure
