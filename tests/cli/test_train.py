"""`hoarfrost train`, as it is typed: in this process, in another one, and on a terminal."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import hoarfrost.cli
from hoarfrost.cli import app
from hoarfrost.train import to_toml
from tests.support.recipes import tiny

PACKAGE = Path(hoarfrost.cli.__file__).parent.parent
COMMAND = [sys.executable, "-c", "from hoarfrost.cli import main; main()"]
# The first terminal that a new session opens is the one whose Ctrl-C it obeys.
ON_TERMINAL = [
    sys.executable, "-c", "import os; os.open(os.ttyname(0), os.O_RDWR); from hoarfrost.cli import main; main()"
]  # fmt: skip
ENDLESS = ["--set", "privacy.steps=1000000"]
PATIENCE = 60  # seconds, for a machine that is busy with other things


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "tiny.toml"
    path.write_text(to_toml(tiny(name="tiny")))
    return str(path)


def budget(folder: Path) -> Any:
    return json.loads((folder / "budget.json").read_text())


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(PACKAGE.parent), "TERM": "xterm-256color", "COLUMNS": "100"}


def test_it_says_what_was_reached_and_what_was_spent(tmp_path: Path, recipe: str) -> None:
    result = CliRunner().invoke(app, ["train", recipe, "--out", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    assert "epoch 2/2  step 7/7" in result.stdout
    assert re.search(r"reached +test accuracy \d+\.\d % \(ECE \d+\.\d %\) after 7 of 7 steps", result.stdout)
    assert re.search(r"spent +epsilon [\d.]+ at delta 0\.0001 \(rdp accountant\)", result.stdout)
    assert "of any outcome by a factor of at most e^" in result.stdout
    assert "\x1b" not in result.output


def test_the_default_folder_is_named_after_recipe_and_time(
    tmp_path: Path, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["train", recipe, "--quiet"]).exit_code == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"tiny-\d{8}-\d{6}", folder.name)


def test_without_a_recipe_digits_are_trained_and_it_says_so(tmp_path: Path) -> None:
    arguments = ["train", "--set", "privacy.steps=1", "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("no recipe given: training digits (built in: ")


def test_quiet_is_quiet(tmp_path: Path, recipe: str) -> None:
    result = CliRunner().invoke(app, ["train", recipe, "-q", "--out", str(tmp_path / "run")])
    assert (result.exit_code, result.output) == (0, "")


def test_overrides_and_seed_end_up_in_the_folder_and_the_seed_on_the_screen(tmp_path: Path, recipe: str) -> None:
    arguments = ["train", recipe, "--out", str(tmp_path / "run"), "--set", "privacy.steps=2", "--seed", "4"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert budget(tmp_path / "run")["steps_taken"] == 2
    assert budget(tmp_path / "run")["seeded"] is True
    assert "seed = 4" in (tmp_path / "run" / "recipe.toml").read_text()
    shown = [line for line in result.stdout.splitlines() if "ε" in line]
    assert shown
    assert all("seeded: do not release" in line for line in shown)
    assert "This run was seeded" in result.stdout


def test_a_delta_above_one_over_n_is_a_warning_and_the_run_goes_on(tmp_path: Path, recipe: str) -> None:
    arguments = ["train", recipe, "-q", "--out", str(tmp_path / "run"), "--set", "privacy.delta=0.01"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert result.stderr.startswith("hoarfrost: warning: delta 0.01 is not below 1/1500")
    assert result.stderr.count("\n") == 1


def test_as_a_process_an_error_is_one_line_without_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "train", "digits", "--set", "privacy.delta=2.0"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "hoarfrost: digits.toml: privacy.delta must lie strictly between 0 and 1, got 2.0\n"
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_terminated_process_leaves_a_usable_folder(tmp_path: Path, recipe: str) -> None:
    folder = tmp_path / "run"
    process = subprocess.Popen(
        [*COMMAND, "train", recipe, "--out", str(folder), *ENDLESS],
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        waited = time.monotonic() + PATIENCE
        while not (folder / "metrics.jsonl").exists() and time.monotonic() < waited:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert (process.returncode, err) == (130, "")
    assert "(interrupted)" in out
    assert "\x1b" not in out
    _is_usable(folder)


def test_on_a_terminal_there_is_a_bar_and_ctrl_c_leaves_a_usable_folder(tmp_path: Path, recipe: str) -> None:
    folder = tmp_path / "run"
    screen, inner = pty.openpty()
    process = subprocess.Popen(
        [*ON_TERMINAL, "train", recipe, "--out", str(folder), *ENDLESS],
        cwd=tmp_path, env=environment(), stdin=inner, stdout=inner, stderr=inner, start_new_session=True,
    )  # fmt: skip
    os.close(inner)
    try:
        shown = _until(screen, "train loss")  # a step was taken
        os.write(screen, b"\x03")
        shown += _until(screen, None)
        code = process.wait(PATIENCE)
    finally:
        process.kill()
        process.wait()
        os.close(screen)
    assert code == 130
    for part in ("epoch ", "/1000000", "steps/s", "left", "train loss ", "test accuracy ", "ε ", "\x1b["):
        assert part in shown
    assert "(interrupted)" in shown
    _is_usable(folder)


def _until(screen: int, wanted: str | None) -> str:
    """What a terminal shows until a text appears, or until the other end hangs up."""
    shown, waited = b"", time.monotonic() + PATIENCE
    while time.monotonic() < waited:
        if select.select([screen], [], [], 0.2)[0]:
            try:
                read = os.read(screen, 65536)
            except OSError:  # how Linux says that the other end has hung up
                return shown.decode(errors="replace")
            shown += read
        if wanted is not None and wanted.encode() in shown:
            return shown.decode(errors="replace")
    raise TimeoutError(shown.decode(errors="replace"))


def _is_usable(folder: Path) -> None:
    said = budget(folder)
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert said["status"] == "interrupted"
    assert said["steps_taken"] == said["releases"][0]["steps"] == last["step"] > 0
    assert said["epsilon"] > 0
    assert (folder / "model.safetensors").exists()
    assert not [path for path in folder.rglob("*") if path.name.endswith(".draft")]


def test_the_command_line_s_own_modules_wait_with_importing_torch() -> None:
    """Measured with an empty package around them, so that it is about them."""
    script = (
        "import sys, types\n"
        "package = types.ModuleType('hoarfrost')\n"
        f"package.__path__ = [{str(PACKAGE)!r}]\n"
        "sys.modules['hoarfrost'] = package\n"
        "import hoarfrost.cli\n"
        "print([name for name in ('torch', 'dp_accounting', 'numpy', 'rich.progress') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "[]\n"
