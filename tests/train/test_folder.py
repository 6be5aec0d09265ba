"""A run folder holds whole files only."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from hoarfrost.errors import HoarfrostError, InvalidValue
from hoarfrost.train.folder import RunFolder


def folder(path: Path) -> RunFolder:
    made = RunFolder(path)
    made.create()
    return made


def test_nothing_exists_before_it_is_created(tmp_path: Path) -> None:
    RunFolder(tmp_path / "a" / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    with pytest.raises(InvalidValue, match="is not empty"):
        RunFolder(tmp_path)
    with pytest.raises(InvalidValue, match="is a file"):
        RunFolder(tmp_path / "precious")


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    folder(tmp_path).text("a.txt", "a")
    assert (tmp_path / "a.txt").read_text() == "a"


def test_where_no_folder_can_be_made_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.mkdir

    def mkdir(self: Path, *args: object) -> None:
        if self.name == "run":
            raise PermissionError(13, "Permission denied")
        real(self)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(InvalidValue, match=r"cannot make the run folder .*run: Permission denied"):
        folder(tmp_path / "deep" / "run")
    assert list(tmp_path.iterdir()) == []


def test_what_came_to_nothing_is_taken_back(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "new" / "run"):
        made = folder(path)
        made.text("recipe.toml", "x")
        made.remove()
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    made = folder(tmp_path / "run")
    made.text("budget.txt", "first")

    def half(path: Path) -> None:
        path.write_text("seco")
        raise OSError(28, "No space left on device")

    with pytest.raises(HoarfrostError, match=r"cannot write .*budget\.txt: No space left on device"):
        made._replace("budget.txt", half)
    assert (tmp_path / "run" / "budget.txt").read_text() == "first"
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["budget.txt", "checkpoints", "not-private"]


def test_what_json_cannot_say_is_null(tmp_path: Path) -> None:
    made = folder(tmp_path / "run")
    made.json("a.json", {"epsilon": math.inf, "losses": [math.nan, 1.0]})
    made.append("m.jsonl", {"epsilon": math.inf})
    assert json.loads((tmp_path / "run" / "a.json").read_text()) == {"epsilon": None, "losses": [None, 1.0]}
    assert (tmp_path / "run" / "m.jsonl").read_text() == '{"epsilon": null}\n'


def test_weights_carry_their_budget_even_if_some_are_tied(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    folder(tmp_path / "run").weights(model, {"epsilon": 3.0})
    path = tmp_path / "run" / "model.safetensors"
    saved = load_file(path)
    assert saved.keys() == model.state_dict().keys()
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in saved.items())
    with safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["hoarfrost"]) == {"epsilon": 3.0}


def test_two_runs_in_one_second_get_two_folders(tmp_path: Path) -> None:
    first, second = (RunFolder.named("digits", tmp_path) for _ in range(2))
    first.create()
    second = RunFolder.named("digits", tmp_path)
    assert first.path != second.path
    assert second.path.name.startswith("digits-")
