"""The reference of recipes: it is complete, and it is what the documentation holds."""

from pathlib import Path

import pytest

from hoarfrost.recipes import read_recipe, recipes, schema, to_toml
from hoarfrost.recipes.loading import about
from hoarfrost.recipes.reference import reference
from hoarfrost.recipes.schema import ComponentTable, Recipe, Table, forms, meaning

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
FORMS: dict[str, type[Table]] = {"recipe": Recipe}
for _name in Recipe.model_fields:
    for _form in forms(_name):
        FORMS[f"{_name} {_form._component.kind}" if issubclass(_form, ComponentTable) else _name] = _form


def test_the_page_is_what_the_command_prints() -> None:
    made = "hoarfrost recipe reference > docs/recipes.md"
    assert PAGE.read_text("utf-8") == reference(), f"the page is out of date: {made}"


def test_there_are_tables_to_look_at() -> None:
    assert {"recipe", "data", "privacy", "clip local", "freeze pruned", "model cnn", "optimizer sgd"} <= set(FORMS)


@pytest.mark.parametrize("form", FORMS)
def test_every_key_has_a_meaning(form: str) -> None:
    for key in FORMS[form].model_fields:
        assert len(meaning(FORMS[form], key)) > 7, key


@pytest.mark.parametrize("name", recipes())
def test_a_recipe_with_its_explanations_reads_back_as_itself(name: str, tmp_path: Path) -> None:
    recipe = read_recipe(name)
    text = to_toml(recipe, explained=True)
    (tmp_path / "explained.toml").write_text(text)
    assert read_recipe(tmp_path / "explained.toml", root="/") == recipe  # some name files of the current folder
    assert all("  # " in line for line in text.splitlines() if " = " in line.partition("#")[0])
    assert 20 < len(about(name)) < 120


def test_alternatives_come_from_the_components() -> None:
    assert ("public", "reference") in schema.alternatives("freeze")
    assert ("epochs", "steps") in schema.alternatives("privacy")
    assert schema.alternatives("no such table") == ()
