"""Recipes for texts, as they are read: neither data nor models are looked at."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hoarfrost.errors import InvalidValue
from hoarfrost.recipes import read_recipe, to_toml
from hoarfrost.recipes.schedules import Linear
from hoarfrost.recipes.schema import Recipe
from tests.support.recipes import tiny

GUIDE = Path(__file__).parents[2] / "docs" / "text-recipes.md"
DATA: dict[str, Any] = {"path": "a.tsv", "test": "b.tsv", "text": ["said"], "target": "mood", "classes": 2}
MODEL: dict[str, Any] = {"name": "transformers", "path": "model"}


def texts(**changes: Any) -> Recipe:
    settings = {"data": DATA, "model": MODEL, **{key: each for key, each in changes.items() if "__" not in key}}
    return tiny(**settings, **{key: each for key, each in changes.items() if "__" in key})


def test_kind_says_what_name_says() -> None:
    assert texts(model={"kind": "transformers", "path": "model"}) == texts()
    assert tiny(model={"kind": "mlp", "hidden": [8]}) == tiny()
    assert "kind" not in to_toml(tiny(model={"kind": "mlp"})).partition("[model]")[2].partition("[loss]")[0]
    one, other = (read_recipe("digits", [f"model.{key}=cnn"]) for key in ("kind", "name"))
    assert one == other
    assert one.model.name == "cnn"
    with pytest.raises(ValueError, match="kind"):
        tiny(model={"kind": "mlp", "name": "mlp"})


def test_one_column_may_be_written_as_a_text() -> None:
    assert texts(data=DATA | {"text": "said"}) == texts()
    assert texts().data.rules().text == ("said",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"name": "mlp"}}, "data.text needs a model with a tokenizer, and model.name = mlp has none"),
        ({"data": {"name": "digits"}}, r"model.name = transformers reads texts: .* \(data.text\)"),
        (
            {"data": {"name": "digits"}, "model": {"name": "mlp"}, "peft": {"kind": "lora"}},
            "peft is for pretrained",
        ),
        (
            {"peft": {"kind": "lora"}, "model": MODEL | {"train": ["x"]}},
            "model.train and peft both say what",
        ),
        ({"peft": {"kind": "lora", "rank": 3}}, "rank"),
        ({"peft": {"kind": "prompt_tuning"}}, "num_virtual_tokens"),
        ({"augment": {"shift": 1}}, "augment changes images"),
        ({"model": MODEL | {"hub": "a/b"}}, "give either path or hub, not both"),
        ({"model": {"name": "transformers"}}, "give either path or hub, one of them"),
        ({"data": DATA | {"bounds": {"a": [0, 1]}}}, "bounds is for columns of numbers"),
        ({"data": DATA | {"text": ["a", "b", "c"]}}, "text"),
        ({"data": DATA | {"text": []}}, "text"),
        ({"data": DATA | {"text": 3}}, "text"),
        (
            {"data": DATA | {"path": "a.npz"}},
            "is for a table: a path that ends in .csv, .tsv, .jsonl or .parquet",
        ),
        ({"data": DATA | {"scaling": "private", "scaling_noise": 1.0}}, "scaling is for numeric columns"),
        ({"data": {**DATA, "text": None, "bounds": {"a": [0, 1]}, "max_length": 3}}, "max_length is for text"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        texts(**changes)


def test_a_model_stays_below_the_recipe_s_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(to_toml(texts(model=MODEL | {"path": "../model"})))
    with pytest.raises(InvalidValue, match=r"model.path .* lies outside of"):
        read_recipe(tmp_path / "mine.toml")
    assert read_recipe(tmp_path / "mine.toml", ["model.path=/elsewhere"]).model.path == "/elsewhere"
    assert read_recipe(tmp_path / "mine.toml", ["model.path=model"]).model.path == str(Path.cwd() / "model")


def test_the_guide_s_recipe_is_one(tmp_path: Path) -> None:
    first, *others = re.findall(r"```toml\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    (tmp_path / "mine.toml").write_text(first)
    recipe = read_recipe(tmp_path / "mine.toml")
    assert recipe.model.path == str(tmp_path / "all-MiniLM-L6-v2")
    for table in others:
        (tmp_path / "other.toml").write_text(re.sub(r"\[(model|peft)\].*?(?=\n\[optim)", table, first, flags=re.DOTALL))
        assert read_recipe(tmp_path / "other.toml").model.train


def test_reading_a_recipe_for_texts_imports_no_heavy_library() -> None:
    code = (
        "import sys; from hoarfrost.recipes import read_recipe; read_recipe('sst2-lora'); "
        "print({'torch', 'transformers', 'peft', 'datasets', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_learning_rate_falls_in_a_straight_line() -> None:
    schedule = Linear(warmup=0.2, final=0.1)
    found = [schedule.multiplier(step, 100, 0.1) for step in range(101)]
    wanted = [(step + 1) / 21 if step < 20 else 0.1 + 0.9 * (100 - step) / 80 for step in range(101)]
    assert found == pytest.approx(wanted)
