"""Every script in examples/ runs in a process of its own, and prints what its docstring promises."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))

# A part of what each script prints.
PRINTS = {
    "csv_dataset": r"^4000 rows, delta 2\.5e-05, epsilon (1\.00|0\.9\d), accuracy on other rows 0\.[789]\d$",
    "own_freezer": r"epoch 2: moved head\.weight, head\.bias\nepoch 3: moved body\.0\.weight, body\.0\.bias, head",
    "plain_loop": r"epoch 5: epsilon (3\.00|2\.9\d)\n.*\n\nepsilon (3|2\.9\d*) at delta 1e-05 \(pld accountant\)\n",
    "private_trainer": r"'epsilon': '3', .*'epoch': '2'(.*\n)+accuracy on other texts: (1\.00|0\.[89]\d)\n"
    r"epsilon (3|2\.9\d*) at",
    "private_freezer": r"trained: \[0, 1, 2, 3\]\nepsilon (2|1\.9\d*) at(.*\n)+1 step on all examples with noise",
    "resume": r"at step 13, charged for 13, epsilon (\S+)\nafter loading: at step 10, charged for 13, epsilon \1\n"
    r"nothing was refunded\nat the end: at step 37, charged for 40, epsilon (2\.000|1\.9\d*)$",
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_an_example_prints_what_it_promises(script: Path, tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))  # for a clone without installation
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(PRINTS.get(script.stem, r"epsilon \d"), done.stdout.rstrip("\n")), done.stdout
    assert not list(tmp_path.iterdir())  # it leaves nothing behind


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_an_example_is_short_and_says_how_it_is_run(script: Path) -> None:
    text = script.read_text()
    assert len(text.splitlines()) <= 75
    assert f"python examples/{script.name}" in text
    assert "seed=" not in text  # whoever copies it gets noise that nobody can repeat


def test_nothing_is_expected_of_scripts_that_are_not_there() -> None:
    assert set(PRINTS) <= {script.stem for script in SCRIPTS}
