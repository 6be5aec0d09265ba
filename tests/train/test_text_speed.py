"""Recipes for texts whose chunks are of like length, or whose frozen layers are computed once: the same run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hoarfrost.data import Texts
from hoarfrost.errors import InvalidValue
from hoarfrost.gradients.frozen_cache import FrozenCache
from hoarfrost.recipes import read_recipe
from hoarfrost.train import records, resume, run
from tests.support.kills import run_until_killed
from tests.support.texts import text_recipe, write_model, write_reviews

transformers = pytest.importorskip("transformers")

LAST = {"model__train": ["encoder.layer.1.*", "pooler.*", "classifier.*"]}
BOTH: dict[str, Any] = {"group_by_length": True, "cache_frozen": True}


@pytest.fixture(scope="module", autouse=True)
def _quietly() -> Iterator[None]:
    transformers.utils.logging.disable_progress_bar()
    yield
    transformers.utils.logging.enable_progress_bar()


@pytest.fixture(autouse=True)
def _without_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "reliability_diagram", lambda found: "<svg/>")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return write_reviews(tmp_path_factory.mktemp("data"), train=80, test=20)


@pytest.fixture
def padding(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of every batch that was put together, how many places were padding."""
    seen: list[int] = []
    collate = Texts.collate

    def watching(self: Texts, examples: Any) -> Any:
        inputs, targets = collate(self, examples)
        seen.append(int((inputs["attention_mask"] == 0).sum()))
        return inputs, targets

    monkeypatch.setattr(Texts, "collate", watching)
    return seen


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[FrozenCache]:
    """The caches that were asked for rows."""
    caches: list[FrozenCache] = []
    found = FrozenCache._found

    def watching(self: FrozenCache, *args: Any) -> Any:
        caches.append(self)
        return found(self, *args)

    monkeypatch.setattr(FrozenCache, "_found", watching)
    return caches


def settings(**loop: Any) -> dict[str, Any]:
    """Seeded batches in chunks of eight."""
    return LAST | {
        "privacy": {"noise_multiplier": 0.5, "delta": 1e-4, "sample_rate": 0.4, "steps": 6, "seed": 3},
        "optimizer": {"kind": "sgd", "lr": 0.3},
        "clip": {"norm": 0.5},
        "loop": {"threads": 1, "max_physical_batch": 8, "checkpoint_every": 2, **loop},
    }


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    for name, value in wanted.items():
        torch.testing.assert_close(
            found[name], value, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("loop", [{"group_by_length": True}, {"cache_frozen": True}, BOTH], ids=str)
def test_the_run_is_the_one_without(
    data: dict[str, Any], model: Path, tmp_path: Path, loop: dict[str, Any], padding: list[int],
    served: list[FrozenCache],
) -> None:  # fmt: skip
    plain = run(text_recipe(data, model, **settings()), out=tmp_path / "plain")
    without = sum(padding)
    padding.clear()
    assert not served
    found = run(text_recipe(data, model, **settings(**loop)), out=tmp_path / "found")
    assert_same(found.model.state_dict(), plain.model.state_dict())
    assert found.statement.epsilon == plain.statement.epsilon
    if "group_by_length" in loop:
        assert sum(padding) < 0.7 * without  # of which some is of the texts to test on
    if "cache_frozen" in loop:
        assert served[-1].rows > 40
        assert any(name.endswith("encoder.layer.0") for name in served[-1].modules)
    assert read_recipe(tmp_path / "found" / "recipe.toml", root="/").loop.model_dump().items() >= loop.items()


def test_an_interrupted_run_goes_on_equally(data: dict[str, Any], model: Path, tmp_path: Path) -> None:
    """Without noise and with all texts in each step, what follows is known; neither key belongs to what a run is."""
    exact = {"noise_multiplier": 0.0, "delta": 1e-4, "sample_rate": 1.0, "steps": 5}
    plain = run(text_recipe(data, model, **settings() | {"privacy": exact}), out=tmp_path / "plain")
    recipe = text_recipe(data, model, **settings(**BOTH) | {"privacy": exact})
    for name, changes in (("same", []), ("other", ["loop.group_by_length=false", "loop.cache_frozen=false"])):
        run_until_killed(4, run, recipe, out=tmp_path / name)
        found = resume(tmp_path / name, overrides=changes)
        assert found.steps == 5
        assert_same(found.model.state_dict(), plain.model.state_dict())


def test_what_has_nothing_to_work_on_is_refused(data: dict[str, Any], model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"loop\.group_by_length .* needs data\.text, and loop\.max_physical_batch"):
        text_recipe(data, model, loop={"group_by_length": True})
    with pytest.raises(InvalidValue, match=r"needs data\.text"):
        read_recipe("digits", ["loop.group_by_length=true", "loop.max_physical_batch=8"])
    with pytest.raises(ValueError, match=r"loop\.cache_frozen keeps .* say what is trained"):
        text_recipe(data, model, loop={"cache_frozen": True})
    for wrong in ("-1", '"yes"', "0.0"):
        with pytest.raises(InvalidValue, match="cache_frozen"):
            read_recipe("digits", [f"loop.cache_frozen={wrong}"])
    dropping = text_recipe(data, model, **settings(cache_frozen=True), model__dropout=0.1)
    with pytest.raises(InvalidValue, match=r"cache_frozen: .*draws random numbers"):
        run(dropping, out=tmp_path / "run")
