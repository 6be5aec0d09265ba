"""What a recipe may say, how it is read, and what is answered to one that is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from hoarfrost.errors import InvalidValue
from hoarfrost.train import Recipe, read_recipe, recipes, to_toml
from tests.support.recipes import tiny

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
    "no spread": ("[model]", "std = [0.5, 0.0]\n[model]", "std must be above 0"),
    "no mean": ("[model]", "mean = [nan]\n[model]", "mean must be a number"),
    "unknown key": ('name = "mlp"', 'name = "mlp"\nhiden = [3]', "unknown key model.hiden; did you mean hidden?"),
    "key of another kind": ("lr = 1", "lr = 1\nbetas = [0.9, 0.9]", "unknown key optimizer.betas; keys of optimizer: "),
    "unknown table": ("[privacy]", "[privasy]", "privacy is missing; unknown key privasy; did you mean privacy?"),
    "unknown kind": ('"sgd"', '"sgdd"', "optimizer.kind cannot be 'sgdd'; did you mean sgd?"),
    "no kind": ('kind = "sgd"', "", "optimizer.kind is missing"),
    "unknown model": ('"mlp"', '"forest"', "model.name cannot be 'forest'; it is one of: mlp, cnn,"),
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
    "name": ("[data]", 'name = "../up"\n[data]', "name: must match pattern"),
    "long name": ("[data]", f'name = "{"x" * 51}"\n[data]', "name: must have at most 50 characters"),
    "too many steps": ("epochs = 1", "steps = 1_000_000_001", "privacy.steps must be at most 1e+09, got 1000000001"),
    "endless digits": ("epochs = 1", f"steps = 0x{'f' * 999}", "privacy.steps must be at most 1e+09, got 82387"),
    "too many epochs": ("epochs = 1", "epochs = 1e300", "privacy.epochs must be at most 1e+06, got 1e+300"),
    "tiny batch": ("batch_size = 100", "batch_size = 0.5", "batch_size must be 1 or above, got 0.5"),
    "tiny rate": ("batch_size = 100", "sample_rate = 1e-10", "1 epochs at a sample_rate of 1e-10 take more than 1e+09"),
    "huge number": ("lr = 1", "lr = 1e31", "optimizer.lr must be at most 1e+30, got 1e+31"),
    "tiny number": ("lr = 1", "lr = 1e-31", "optimizer.lr must be at least 1e-30, got 1e-31"),
    "too wide": ('name = "mlp"', 'name = "mlp"\nhidden = [1_000_001]', "hidden must be at most 1e+06, got 1000001"),
    "too deep": ('name = "mlp"', f'name = "mlp"\nhidden = {[1] * 65}', "model.hidden: must have at most 64 items"),
    "date": ("lr = 1", "lr = 2024-01-01", "optimizer.lr: must be a valid number, got datetime.date(2024, 1, 1)"),
    "missing entry": ('"sgd"\nlr = 1', '"adam"\nbetas = [0.9]', "optimizer.betas.1 is missing"),
    "growing": (
        "[data]",
        '[schedule]\nkind = "step"\nevery = 1\nfactor = 2\n[data]',
        "schedule.factor must lie in (0, 1]",
    ),
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
    with pytest.raises(InvalidValue, match=r"the recipe file .* is a folder, not a file"):
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


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: neither the recipe's nor above it."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def names(folder: Path, path: str) -> Path:
    """A recipe in a folder, with that path for its data."""
    folder.mkdir(exist_ok=True)
    return written(folder, MINIMAL.replace('name = "digits"', f'path = "{path}"'))


def test_a_data_path_is_relative_to_the_recipe_and_an_override_to_where_one_is(tmp_path: Path, elsewhere: Path) -> None:
    recipe = names(tmp_path, "mine.npz")
    assert read_recipe(recipe).data.path == str(tmp_path / "mine.npz")
    assert read_recipe(recipe, ["data.path=other.npz"]).data.path == str(elsewhere / "other.npz")
    assert read_recipe("digits", ["data.path=other.npz"]).data.name is None


OUTSIDE = ["../data.npz", "deeper/../../data.npz", "/data.npz", "~/data.npz", "linked/data.npz", "link.npz"]


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_recipe_s_data_stays_below_its_folder_unless_a_root_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: Path, path: str
) -> None:
    monkeypatch.setenv("HOME", str(elsewhere))
    inner = tmp_path / "inner"
    recipe = names(inner, path)
    (inner / "linked").symlink_to("..")
    (inner / "link.npz").symlink_to("../data.npz")
    with pytest.raises(InvalidValue) as caught:
        read_recipe(recipe)
    assert f"data.path {path} lies outside of {inner}" in str(caught.value)
    assert "--root DIR" in str(caught.value)
    allowed = "/" if path.startswith("/") else tmp_path
    opened = read_recipe(recipe, root=allowed).data.path
    assert opened is not None
    assert Path(opened) == Path(opened).resolve()  # what was checked, and no link to it
    assert Path(opened).name == "data.npz"


@pytest.mark.parametrize("path", ["data.npz", "deeper/data.npz", "../inner/data.npz", "INNER/data.npz", "here.npz"])
def test_what_ends_up_below_the_folder_is_fine_however_it_is_written(tmp_path: Path, path: str) -> None:
    inner = tmp_path / "inner"
    recipe = names(inner, path.replace("INNER", str(inner)))
    (inner / "here.npz").symlink_to("data.npz")
    opened = read_recipe(recipe).data.path
    assert opened is not None
    assert Path(opened).is_relative_to(inner)
    assert read_recipe(recipe, root=str(tmp_path)).data.path == opened  # still relative to the recipe


def test_a_folder_whose_name_only_begins_like_the_root_is_outside(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="lies outside of"):
        read_recipe(names(tmp_path / "data", "../data-of-others/x.npz"))


def test_whoever_types_the_path_may_name_any_file_even_the_very_one_that_the_recipe_may_not(
    tmp_path: Path, elsewhere: Path
) -> None:
    recipe = names(tmp_path / "inner", "../data.npz")
    with pytest.raises(InvalidValue, match="lies outside of"):
        read_recipe(recipe, ["data.classes=3"])  # the path is still the file's own
    assert read_recipe(recipe, ["data.path=../data.npz"]).data.path == str(elsewhere / "../data.npz")
    assert read_recipe(recipe, ['data={path = "/data.npz"}']).data.path == "/data.npz"
    assert read_recipe(recipe, ["data.path=/data.npz", "data.name=digits"]).data.path is None


def test_a_root_that_is_not_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=r"the root .*absent is not a folder"):
        read_recipe(names(tmp_path, "mine.npz"), root=tmp_path / "absent")


def test_a_recipe_of_64_kib_is_read_and_a_longer_one_is_not_even_parsed(tmp_path: Path) -> None:
    padding = "#" * 99 + "\n"
    full = MINIMAL + padding * ((64 * 1024 - len(MINIMAL)) // 100)
    read_recipe(written(tmp_path, full))
    with pytest.raises(InvalidValue, match="longer than 64 KiB"):
        read_recipe(written(tmp_path, "not TOML at all\n" + full + padding))


def test_a_file_s_name_becomes_a_name_that_a_folder_can_have(tmp_path: Path) -> None:
    (tmp_path / f"-my réçipe {'x' * 200}.toml").write_text(MINIMAL)
    (path,) = tmp_path.iterdir()
    assert read_recipe(path).name == ("my-réçipe-" + "x" * 200)[:50]


def test_long_values_are_cut_and_nothing_reaches_the_terminal_raw(tmp_path: Path) -> None:
    text = MINIMAL.replace('"sgd"', '"\\u001b[2J' + "x" * 500 + '"')
    with pytest.raises(InvalidValue, match=r"optimizer\.kind cannot be '\\x1b\[2Jx+…x+'; it is one of: sgd") as caught:
        read_recipe(written(tmp_path, text))
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


def test_only_the_first_of_many_mistakes_are_told(tmp_path: Path) -> None:
    text = "".join(f"wrong{i} = 1\n" for i in range(50)) + MINIMAL
    with pytest.raises(InvalidValue) as caught:
        read_recipe(written(tmp_path, text.replace("augment", "")))
    assert "wrong0" in str(caught.value)
    assert "wrong9" not in str(caught.value)


def test_a_recipe_is_read_without_importing_torch() -> None:
    script = (
        "from hoarfrost.train import read_recipe; read_recipe('digits'); import sys; "
        "print([name for name in ('torch', 'numpy', 'dp_accounting') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


RECIPES = {
    "tiny": tiny(),
    "odd path": tiny(data={"path": '/tmp/a "quoted"\\ näme\n.npz'}),
    "everything": tiny(
        name="all-1.0", augment__shift=1, augment__flip=True, model={"name": "cnn", "channels": [4, 8]},
        optimizer={"kind": "adamw", "betas": [0.8, 0.9]}, schedule={"kind": "step", "every": 2}, clip__norm=0.1,
        data={"name": "digits", "mean": [0.5], "std": [0.25]}, privacy__seed=3,
        loop__views=4, loop__max_physical_batch=64,
    ),
    "styles within styles": tiny(
        clip={
            "kind": "schedule", "starts": [0.0, 0.5],
            "styles": [
                {"kind": "per-group", "groups": {f"layers.{n}.*": {"kind": "adaptive"} for n in range(40)}},
                {"kind": "per-layer", "style": {"kind": "global", "norm": 2.0}},
            ],
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
def test_a_resolved_recipe_reads_back_as_itself(tmp_path: Path, name: str) -> None:
    assert read_recipe(written(tmp_path, to_toml(RECIPES[name])), root="/") == RECIPES[name]


def test_a_part_of_a_key_may_stand_in_quotes() -> None:
    said = ["clip.kind=per-group", 'clip.groups."*.weight".kind=global', "clip.groups.'*.bias'.norm=0.3"]
    groups = read_recipe("digits", [*said, "clip.groups.'*.bias'.kind=local"]).clip.groups
    assert {name: style.kind for name, style in groups.items()} == {"*.weight": "global", "*.bias": "local"}
    assert groups["*.bias"].norm == 0.3


@pytest.mark.parametrize("override", ["a b=1", "=1", ".a=1", "a..b=1", '"a=1', "a\nb=1", "privacy"])
def test_what_is_no_key_is_refused(override: str) -> None:
    with pytest.raises(InvalidValue, match="--set takes key=value"):
        read_recipe("digits", [override])


def test_a_recipe_does_not_change_under_ones_hands() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        tiny().privacy.delta = 0.1  # type: ignore[misc]


def test_python_users_get_the_same_checks() -> None:
    with pytest.raises(ValidationError, match="delta must lie strictly between 0 and 1"):
        tiny(privacy__delta=2.0)
    with pytest.raises(ValidationError):
        Recipe.model_validate({})
