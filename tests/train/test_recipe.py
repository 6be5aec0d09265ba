"""What a recipe may say, how it is read, and what is answered to one that is wrong."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from hoarfrost.errors import InvalidValue
from hoarfrost.train import Recipe, read_recipe, recipes, to_toml
from tests.train.recipes import tiny

MINIMAL = """
[data]
name = "digits"
[model]
name = "mlp"
[optimizer]
kind = "sgd"
lr = 1
[privacy]
epsilon = 3
delta = 1e-4
batch_size = 100
epochs = 1
"""


def written(folder: Path, text: str = MINIMAL) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", recipes())
def test_every_built_in_recipe_is_valid(name: str) -> None:
    assert read_recipe(name).name == name


def test_defaults_are_filled_in_and_the_file_names_the_recipe(tmp_path: Path) -> None:
    recipe = read_recipe(written(tmp_path))
    assert recipe.name == "mine"
    assert recipe.clip.norm == 1.0
    assert recipe.privacy.accountant == "pld"
    assert recipe.optimizer.lr == 1.0  # a whole number is a number


# What is replaced in the minimal recipe, and what must be said.
WRONG = {
    "unknown key": ('name = "mlp"', 'name = "mlp"\nhiden = [3]', "unknown key model.hiden; did you mean hidden?"),
    "key of another kind": ("lr = 1", "lr = 1\nbetas = [0.9, 0.9]", "unknown key optimizer.betas; keys of optimizer: "),
    "unknown table": ("[privacy]", "[privasy]", "privacy is missing; unknown key privasy; did you mean privacy?"),
    "unknown kind": ('"sgd"', '"sgdd"', "optimizer.kind cannot be 'sgdd'; did you mean sgd?"),
    "no kind": ('kind = "sgd"', "", "optimizer.kind is missing"),
    "unknown model": ('"mlp"', '"transformer"', "model.name cannot be 'transformer'; it is one of: mlp, cnn,"),
    "missing key": ("lr = 1", "", "optimizer.lr is missing"),
    "text for a number": ("lr = 1", 'lr = "1"', "optimizer.lr: must be a valid number, got '1'"),
    "truth for a number": ("lr = 1", "lr = true", "optimizer.lr: must be a valid number, got True"),
    "not TOML": ("[data]", "model = [3\n[data]", "is not valid TOML: "),
    "learning rate": ("lr = 1", "lr = 0", "optimizer.lr must be above 0, got 0"),
    "infinite": ("lr = 1", "lr = inf", "optimizer.lr must be finite, got inf"),
    "epsilon": ("epsilon = 3", "epsilon = -1", "privacy.epsilon must be above 0, got -1"),
    "not a number": ("epsilon = 3", "epsilon = nan", "privacy.epsilon must be a number, got nan"),
    "delta": ("delta = 1e-4", "delta = 1.0", "privacy.delta must lie strictly between 0 and 1, got 1.0"),
    "noise": ("epsilon = 3", "noise_multiplier = -0.5", "privacy.noise_multiplier must not be negative, got -0.5"),
    "rate": ("batch_size = 100", "sample_rate = 1.5", "privacy.sample_rate must lie in (0, 1], got 1.5"),
    "rate zero": ("batch_size = 100", "sample_rate = 0", "privacy.sample_rate must lie in (0, 1], got 0"),
    "both lengths": ("epochs = 1", "epochs = 1\nsteps = 2", "privacy: give either epochs or steps, not both"),
    "no batch": ("batch_size = 100", "", "privacy: give either batch_size or sample_rate, one of them"),
    "whole steps": ("epochs = 1", "steps = 1.5", "privacy.steps: must be a valid integer, got 1.5"),
    "no steps": ("epochs = 1", "steps = 0", "privacy.steps must be a whole number, 1 or above, got 0"),
    "accountant": ("delta = 1e-4", 'delta = 1e-4\naccountant = "prv"', "privacy.accountant: must be 'pld' or 'rdp'"),
    "list": ('name = "mlp"', 'name = "mlp"\nhidden = [8, 0]', "model.hidden.1: "),
    "nesterov": ("lr = 1", "lr = 1\nnesterov = true", "nesterov needs a momentum above 0"),
    "two sources": ('name = "digits"', 'name = "digits"\npath = "x.npz"', "data: give either name or path, not both"),
    "views": ("[data]", "[loop]\nviews = 2\n[data]", "loop.views = 2 without [augment]"),
    "name": ("[data]", 'name = "../up"\n[data]', "name: "),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_one_line_by_its_key(tmp_path: Path, case: str) -> None:
    old, new, message = WRONG[case]
    with pytest.raises(InvalidValue) as caught:
        read_recipe(written(tmp_path, MINIMAL.replace(old, new, 1)))
    assert message in str(caught.value)
    assert "mine.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_cannot_be_a_value(tmp_path: Path) -> None:
    text = MINIMAL.replace('[model]\nname = "mlp"', "", 1)
    with pytest.raises(InvalidValue, match="model must be a table, got 3"):
        read_recipe(written(tmp_path, "model = 3\n" + text))


def test_a_recipe_that_cannot_be_found_or_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=r"there is no recipe 'digts'.*did you mean digits\?"):
        read_recipe("digts")
    with pytest.raises(InvalidValue, match=r"there is no recipe 'zebra'.*built in: .*digits"):
        read_recipe("zebra")
    with pytest.raises(InvalidValue, match=r"no recipe file at .*absent\.toml"):
        read_recipe(tmp_path / "absent.toml")
    with pytest.raises(InvalidValue, match=r"cannot read the recipe .*: Is a directory"):
        read_recipe(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidValue, match="not text in UTF-8"):
        read_recipe(tmp_path / "binary.toml")


def test_overrides_are_typed_by_the_schema() -> None:
    recipe = read_recipe(
        "digits", ["privacy.epsilon=2", "privacy.accountant=rdp", "model.channels=[8, 8]", "optimizer.nesterov=true"]
    )
    assert (recipe.privacy.epsilon, recipe.privacy.accountant) == (2.0, "rdp")
    assert recipe.model.model_dump() == {"name": "cnn", "channels": (8, 8)}
    assert recipe.optimizer.model_dump()["nesterov"] is True


def test_overriding_one_of_two_alternatives_replaces_the_other() -> None:
    privacy = read_recipe(
        "digits", ["privacy.noise_multiplier=1", "privacy.sample_rate=0.1", "privacy.steps=5"]
    ).privacy
    assert (privacy.epsilon, privacy.batch_size, privacy.epochs) == (None, None, None)
    assert (privacy.noise_multiplier, privacy.sample_rate, privacy.steps) == (1.0, 0.1, 5)


def test_a_whole_table_can_be_overridden() -> None:
    recipe = read_recipe("digits", ['optimizer={kind = "adam", lr = 0.01}', "augment.shift=1"])
    assert (recipe.optimizer.kind, recipe.optimizer.lr) == ("adam", 0.01)
    assert recipe.augment is not None
    assert recipe.augment.shift == 1


@pytest.mark.parametrize("override", ["privacy.epsilon", "=3", "privacy..epsilon=3", "name.deeper=1"])
def test_an_override_that_is_not_key_and_value_is_refused(override: str) -> None:
    with pytest.raises(InvalidValue, match="--set"):
        read_recipe("digits", [override])


def test_a_data_path_is_relative_to_the_recipe_and_an_override_to_where_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = written(tmp_path, MINIMAL.replace('name = "digits"', 'path = "mine.npz"'))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert read_recipe(recipe).data.path == str(tmp_path / "mine.npz")
    assert read_recipe(recipe, ["data.path=other.npz"]).data.path == str(tmp_path / "elsewhere" / "other.npz")
    assert read_recipe("digits", ["data.path=other.npz"]).data.name is None


RECIPES = {
    "tiny": tiny(),
    "odd path": tiny(data={"path": '/tmp/a "quoted"\\ näme\n.npz'}),
    "everything": tiny(
        name="all-1.0", augment__shift=1, augment__flip=True, model={"name": "cnn", "channels": [4, 8]},
        optimizer={"kind": "adamw", "betas": [0.8, 0.9]}, schedule={"kind": "step", "every": 2}, clip__norm=0.1,
        privacy__seed=3, loop__views=4, loop__max_physical_batch=64,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
def test_a_resolved_recipe_reads_back_as_itself(tmp_path: Path, name: str) -> None:
    assert read_recipe(written(tmp_path, to_toml(RECIPES[name]))) == RECIPES[name]


def test_a_recipe_does_not_change_under_ones_hands() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        tiny().privacy.delta = 0.1  # type: ignore[misc]


def test_python_users_get_the_same_checks() -> None:
    with pytest.raises(ValidationError, match="delta must lie strictly between 0 and 1"):
        tiny(privacy__delta=2.0)
    with pytest.raises(ValidationError):
        Recipe.model_validate({})
