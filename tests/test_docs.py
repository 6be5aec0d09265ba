"""What the documents say is true: examples run, tables are those of the results, and the version has one home."""

import doctest
import importlib
import pkgutil
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import hoarfrost
from benchmarks.readme import documents
from hoarfrost.gradients.rules import registry
from hoarfrost.registry import registration
from hoarfrost.train import read_recipe, run

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
MODULES = sorted(info.name for info in pkgutil.walk_packages(hoarfrost.__path__, "hoarfrost."))


def block(document: str, language: str, containing: str = "") -> str:
    """The first block of code in that language that contains those words."""
    blocks: list[str] = re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    return next(found for found in blocks if containing in found)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_the_docstrings_run(name: str) -> None:
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


def test_there_are_examples_to_run() -> None:
    for name in ("hoarfrost.private", "hoarfrost.validate"):
        assert doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS).attempted


def test_the_loop_in_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(4, 3)
    given = {
        "F": F,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "dataset": TensorDataset(torch.randn(1500, 4), torch.randint(3, (1500,))),
    }
    exec(block("README.md", "python"), given)
    private = given["private"]
    assert private.steps_taken == 90  # 60 epochs of 1.5 steps
    assert 2.9 < private.epsilon() <= 3
    assert str(private.statement()) in capsys.readouterr().out


def test_the_freezer_in_the_docs_freezes_every_second_epoch() -> None:
    given: dict[str, Any] = {"hoarfrost": hoarfrost}
    exec(block("docs/freezing.md", "python", "class"), given)
    info = hoarfrost.freeze.RunInfo({"stem.weight": torch.Size([2]), "head.weight": torch.Size([2])}, sample_rate=0.5)
    live = [given["EverySecondEpoch"]().live(step, info) for step in range(4)]
    assert [masks["stem.weight"] for masks in live] == [True, True, False, False]
    assert all(masks["head.weight"] for masks in live)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        file, _, heading = target.partition("#")
        if "://" in target:
            continue
        where = document.parent / file if file else document
        assert where.exists(), target
        headings = re.findall(r"^#+ (.*)$", where.read_text(), re.MULTILINE) if heading else []
        assert not heading or heading in {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


def test_the_examples_of_extending_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "RULES", dict(registry.RULES))
    monkeypatch.setattr(registration, "_REGISTERED", dict(registration._REGISTERED))
    page = (ROOT / "docs/extending.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == page.count("```") // 2 == 6
    given: dict[str, Any] = {"__name__": "extending"}
    for each in blocks:
        exec(each, given)
    given["test_my_style"]()
    assert given["result"].steps == 10
    assert type(given["result"].model[1]) is nn.Linear


def test_the_examples_of_losses_run() -> None:
    page = (ROOT / "docs/losses.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == page.count("```") // 2 == 4
    given: dict[str, Any] = {}
    for each in blocks:
        exec(each, given)
    mean_over_all = lambda output, batch: F.cross_entropy(output.flatten(0, 1), batch[1].flatten())  # noqa: E731
    with pytest.raises(hoarfrost.errors.NotPrivate, match="the loss"):
        hoarfrost.check_independence(
            given["Words"](), 5, mean_over_all, dataset=given["texts"], collate=given["pad"]
        )  # fmt: skip


def test_the_recipe_in_the_docs_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(block("docs/command-line.md", "toml") + block("docs/freezing.md", "toml"))
    recipe = read_recipe(path)
    assert recipe.privacy.epsilon == 3
    assert recipe.freeze is not None


def test_the_recipe_for_a_table_trains(tmp_path: Path) -> None:
    rows = ["30,12.5,basic,no", "61,99,plus,yes"] * 1000
    (tmp_path / "customers.csv").write_text("\n".join(["age,monthly spend,plan,churned", *rows]))
    text = block("docs/tables.md", "toml", "customers.csv")
    scaling = block("docs/tables.md", "toml", 'scaling = "private"').replace("[data]\n", "")
    for number, content in enumerate((text, text.replace("[data]\n", f"[data]\n{scaling}"))):
        (tmp_path / "recipe.toml").write_text(content)
        result = run(read_recipe(tmp_path / "recipe.toml", ["privacy.steps=2"]), out=tmp_path / f"run-{number}")
        assert len(result.statement.releases) == number + 1


def test_the_tables_are_those_of_the_results() -> None:
    """Written by `python -m benchmarks.readme`."""
    for path, text in documents().items():
        assert path.read_text() == text


def test_the_version_is_stated_in_one_place() -> None:
    """The changelog, which tells of all versions, is excepted."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert hoarfrost.__version__ == version  # if not: `make test` installs it anew
    folders = ("hoarfrost", "benchmarks", "tests", "docs", ".github")
    paths = [path for path in ROOT.iterdir() if path.is_file() and path.name != "CHANGELOG.md"]
    paths += [path for folder in folders for path in (ROOT / folder).rglob("*")]
    literal = re.compile(rf"(?<![\d.]){re.escape(version)}(?!\.?\d)")
    places = {
        str(path.relative_to(ROOT)): len(literal.findall(path.read_text(errors="ignore")))
        for path in paths
        if path.suffix in {"", ".cfg", ".md", ".py", ".toml", ".txt", ".yml"} and path.is_file()
    }
    assert {place: count for place, count in places.items() if count} == {"pyproject.toml": 1}
