"""The page for users of Opacus is a program that runs, and does what the page says."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

PAGE = Path(__file__).parents[2] / "docs" / "from-opacus.md"
LIGHTNING = 3  # blocks, the last ones


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All blocks in one namespace, in the order of the page."""
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == text.count("```") // 2
    torch.manual_seed(0)
    given: dict[str, Any] = {
        "__name__": "from_opacus",
        "dataset": TensorDataset(torch.randn(500, 1, 8, 8), torch.randint(3, (500,))),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("page"))
        for number, block in enumerate(blocks[: None if find_spec("lightning") else -LIGHTNING]):
            exec(compile(block, f"block {number} of {PAGE.name}", "exec"), given)
            given[f"private {number}"] = given["private"]
    return given


def test_the_first_loop_spends_its_epsilon(page: dict[str, Any]) -> None:
    assert page["private 0"].steps_taken == page["private 0"].steps == 20
    assert 7.9 < page["private 0"].epsilon() <= 8


def test_epsilon_can_be_asked_for_at_any_delta(page: dict[str, Any]) -> None:
    assert page["same"] == pytest.approx(page["private 0"].epsilon())
    assert 0.5 < page["sigma"] < 2


def test_the_clipping_styles_fit_the_model(page: dict[str, Any]) -> None:
    info = page["private 0"].info()
    assert [len(style.begin(0, info).blocks) for style in page["styles"]] == [2, 2, 1]


def test_batch_norm_is_replaced_as_the_page_says(page: dict[str, Any]) -> None:
    norm = page["private 3"].model[1]
    assert f"GroupNorm({norm.num_groups}, {norm.num_channels}) now" in PAGE.read_text(encoding="utf-8")


def test_the_observer_has_seen_norms(page: dict[str, Any]) -> None:
    assert page["norms"].largest > 0


def test_one_cycle_ends_with_the_run_although_batches_come_in_chunks(page: dict[str, Any]) -> None:
    private = page["private 4"]
    assert private.steps_taken == private.steps == 10
    assert page["scheduler"].last_epoch == 10


def test_a_second_stage_is_charged_with_the_first(page: dict[str, Any]) -> None:
    first, second = page["first"], page["second"]
    assert (first.steps_taken, second.steps_taken) == (4, 0)
    assert second.epsilon() == pytest.approx(first.epsilon())
    assert second.noise_multiplier == 1.0


def test_empty_batches_were_steps(page: dict[str, Any]) -> None:
    assert page["empty"] > 10
    assert page["private 6"].steps_taken == 50


def test_the_discriminator_was_trained(page: dict[str, Any]) -> None:
    assert page["private 8"].steps_taken == 10


@pytest.mark.skipif(find_spec("lightning") is None, reason="Lightning is not installed")
def test_the_classifier_went_on_from_its_checkpoint(page: dict[str, Any]) -> None:
    first, later = page["classifier"].private, page["later"].private
    assert (first.steps_taken, later.steps_taken, later.charged) == (10, 20, 10)
    assert later.epsilon() > first.epsilon()
    assert page["InChunks"]
