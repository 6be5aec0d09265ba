"""The examples of the pages about measuring run, and give what they say."""

import re
from pathlib import Path
from typing import Any

import torch

DOCS = Path(__file__).parents[2] / "docs"


def blocks_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def test_the_examples_of_calibration_run(capsys: Any) -> None:
    blocks = blocks_of("calibration.md")
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


def test_the_example_of_attacks_runs(capsys: Any) -> None:
    (block,) = blocks_of("measurements-attacks.md")
    torch.manual_seed(0)
    given: dict[str, Any] = {}
    exec(block, given)
    found = given["found"]
    assert capsys.readouterr().out.startswith(f"AUC {found.auc}, at most {given['bound'].auc:.3f}; TPR ")
    assert found.auc.low < 0.5 < found.auc.high  # nothing tells members from others
    assert found.red_flags == ()
    assert f"They allow an AUC of {given['bound'].auc:.3f} at most" in (DOCS / "measurements-attacks.md").read_text()
