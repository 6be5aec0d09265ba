"""`hoarfrost data`: what a user sees of fetching data sets, and training on them by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hoarfrost.cli import app
from hoarfrost.data.catalog import CATALOG
from tests.support import raw_datasets as raw


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tiny data sets, an empty cache, nobody on the web, and a folder with MNIST's raw files."""
    for name in raw.SIZES:
        monkeypatch.setitem(CATALOG, name, raw.tiny(name, ("http://127.0.0.1:9/",)))
    monkeypatch.setenv("HOARFROST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return raw.written(tmp_path / "raw", raw.idx_files(raw.parts("mnist")), zipped=True)


def ask(*arguments: Any) -> Any:
    return CliRunner().invoke(app, list(map(str, arguments)))


def answer(*arguments: Any) -> str:
    result = ask(*arguments)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""  # no bar where there is no terminal
    return str(result.stdout)


def refused(*arguments: Any) -> str:
    """The one line that is told instead."""
    result = ask(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("hoarfrost: ")
    assert result.stderr.count("\n") == 1
    return str(result.stderr)


def test_get_says_what_came_and_where_it_is(tmp_path: Path, files: Path) -> None:
    path = tmp_path / "cache" / "mnist.safetensors"
    expected = f"mnist: 20 training images, 6 test images; checksums match\n{path}\n"
    assert answer("data", "get", "mnist", "--from", files) == expected
    assert answer("data", "get", "mnist") == expected  # it is there: nobody is asked
    assert path.exists()


def test_list_says_what_is_there_where_and_how_large(tmp_path: Path, files: Path) -> None:
    answer("data", "get", "mnist", "--from", files)
    path = tmp_path / "cache" / "mnist.safetensors"
    mnist, fashion, cifar, digits = answer("data", "list").splitlines()
    assert mnist.split(maxsplit=5)[:5] == ["mnist", "20", "+", "6", "images"]
    assert mnist.endswith(f"{path.stat().st_size / 1000:.1f} kB  {path}")
    assert fashion.endswith("not downloaded; run `hoarfrost data get fashion-mnist`")
    assert cifar.startswith("cifar10        20 + 6 images 3x4x5  ")
    assert digits.startswith("digits ")


def test_a_recipe_trains_on_it_by_name(tmp_path: Path, files: Path) -> None:
    train = ["train", "digits", "--out", tmp_path / "run", "--set", "data.name=mnist", "--set", "privacy.batch_size=5"]
    assert "is not in" in refused(*train)
    assert "run `hoarfrost data get mnist`" in refused(*train)
    answer("data", "get", "mnist", "--from", files)
    assert ask(*train, "--set", "privacy.epochs=1").exit_code == 0


WRONG: dict[str, tuple[list[str], str]] = {
    "a name": (
        ["get", "imagenet"],
        "no data set named 'imagenet'; available: mnist, fashion-mnist, cifar10",
    ),
    "no name": (["get"], "Missing argument 'NAME'"),
    "no network": (["get", "cifar10"], "run `hoarfrost data get cifar10 --from FOLDER`"),
    "no folder": (["get", "mnist", "--from", "absent"], "absent is not a folder; give the folder with train-images"),
    "other files": (["get", "fashion-mnist", "--from", "raw"], "not the images and labels of fashion-mnist"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_told_in_a_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    arguments, message = WRONG[wrong]
    monkeypatch.chdir(tmp_path)
    raw.written(tmp_path / "raw", raw.idx_files(raw.parts("mnist", seed=1)), zipped=True)
    assert message in refused("data", *arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raw"]


def test_a_terminal_sees_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(name: str, source: Path | None, progress: Any) -> Path:
        progress("raw.gz", 0, None)
        progress("raw.gz", 500, 1000)
        progress("raw.gz", 1000, 1000)
        return Path("there")

    monkeypatch.setattr("hoarfrost.data.fetch", fetch)
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    monkeypatch.setenv("TERM", "xterm")
    result = ask("data", "get", "mnist")
    assert result.exit_code == 0
    assert "raw.gz" in result.stderr
    assert "1.0/1.0 kB" in result.stderr
    assert result.stdout.endswith("there\n")


def test_help_does_not_wait_for_torch() -> None:
    script = "import sys; from hoarfrost.cli import data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
