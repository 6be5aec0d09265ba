"""What docs/texts.md says to write works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
PAGE = Path(__file__).parents[2] / "docs" / "texts.md"


def test_the_examples_of_texts_run(capsys: pytest.CaptureFixture[str]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == page.count("```") // 2 == 4
    given: dict[str, Any] = {}
    for each in blocks:
        exec(each, given)
    said = capsys.readouterr().out.strip()
    assert f"print(private.frozen_cache.modules)  # {said}" in page
