"""The examples of docs/measurements-models.md run, and its commands exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from hoarfrost.cli import app

PAGE = (Path(__file__).parents[2] / "docs" / "measurements-models.md").read_text()


def test_the_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    torch.manual_seed(0)
    given: dict[str, Any] = {}
    for each in blocks:
        exec(each, given)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("instability 0.")
    assert [line.split()[0] for line in printed[2:]] == ["True", "False", "False"]
    for line in printed[2:]:
        predicted, measured = map(float, line.split()[2:])
        assert measured == pytest.approx(predicted, rel=1e-6)
    assert given["by_pwcca"][20]["1"] == pytest.approx(1)
    assert given["by_cka"][0]["1"] < 1


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    short = {"train": ["--set", "privacy.steps=2"], "directions": ["--count", "2"], "surface": ["--points", "3"]}
    limited = {"ntk": ["--steps", "2", "--examples", "3"]}
    block = next(found for found in re.findall(r"```\n(.*?)```", PAGE, re.DOTALL) if "connectivity" in found)
    for line in block.splitlines():
        program, *words = line.split()
        if program == "mkdir":
            Path(words[0]).mkdir()
            continue
        name = words[1] if words[0] == "measure" else words[0]
        examples = ["--examples", "200"] if name in ("connectivity", "directions", "surface") else []
        result = CliRunner().invoke(app, [*words, *short.get(name, []), *limited.get(name, examples)])
        assert result.exit_code == 0, (line, result.output)
    assert len(list(tmp_path.rglob("not-private/*.svg"))) == 5


def test_the_scripts_exist() -> None:
    named = re.findall(r"^python -m benchmarks\.measure (\w+)", PAGE, re.MULTILINE)
    assert len(named) == 6
    for name in named:
        assert callable(importlib.import_module(f"benchmarks.measure.{name}").main)
