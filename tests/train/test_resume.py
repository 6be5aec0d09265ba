"""Going on after an end that was not planned: nothing is refunded, nothing is repeated, nothing changes unnoticed."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from hoarfrost import audit
from hoarfrost.budget import Gaussian, Ledger, epsilon
from hoarfrost.data import Splits
from hoarfrost.errors import BudgetSpent, Diverged, HoarfrostError, InvalidValue, LedgerDamaged
from hoarfrost.noise import Noise
from hoarfrost.sampling import Poisson
from hoarfrost.train import Progress, read_recipe, resume, run, to_toml
from hoarfrost.train import prepare as preparing
from hoarfrost.train.evaluation import Average
from hoarfrost.train.folder import RunFolder
from tests.support.kills import run_until_killed
from tests.support.recipes import tiny


@pytest.fixture
def killed(tmp_path: Path) -> Callable[..., Path]:
    """A run folder as a kill after so many steps leaves it."""

    def start(steps: int, ledger: Ledger | None = None, **changes: Any) -> Path:
        run_until_killed(steps, run, tiny(**changes), out=tmp_path / "run", ledger=ledger)
        return tmp_path / "run"

    return start


def facts(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def test_a_killed_run_goes_on_at_its_checkpoint_and_keeps_what_it_spent(killed: Callable[..., Path]) -> None:
    folder = killed(5, loop__checkpoint_every=2)  # the checkpoint has 4 steps; 5 were released
    result = resume(folder)
    assert (result.status, result.steps, result.steps_planned) == ("completed", 7, 7)
    assert result.statement.releases == (Gaussian(noise_multiplier=1.0, sample_rate=0.2, steps=8),)
    assert facts(folder, "budget.json")["steps_charged"] == 8
    assert Ledger(folder / "ledger.jsonl").epsilon() == result.statement.epsilon
    assert "8 charged: the others were lost in a restart" in (folder / "budget.txt").read_text()


def test_a_calibrated_run_keeps_to_its_epsilon_and_ends_short_instead(killed: Callable[..., Path]) -> None:
    privacy = {"epsilon": 2.0, "delta": 1e-4, "sample_rate": 0.2, "steps": 7}
    folder = killed(5, loop__checkpoint_every=2, privacy=privacy)
    result = resume(folder)
    assert (result.status, result.steps) == ("completed", 6)
    assert 1.9 < result.statement.epsilon <= 2.0
    with pytest.raises(BudgetSpent, match="the run has ended"):
        resume(folder)


def test_an_older_checkpoint_keeps_everything_that_was_spent(killed: Callable[..., Path]) -> None:
    folder = killed(6, loop__checkpoint_every=1, loop__checkpoints_kept=10)
    result = resume(folder / "checkpoints" / "step-00000001.safetensors")
    assert result.steps == 7
    assert result.statement.releases == (Gaussian(noise_multiplier=1.0, sample_rate=0.2, steps=12),)


def damage(path: Path, how: str) -> None:
    match how:
        case "flipped":
            whole = path.read_bytes()
            path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 4]) + whole[-2:])
        case "cut":
            path.write_bytes(path.read_bytes()[:-100])
        case "empty":
            path.write_bytes(b"")
        case "dangling":
            path.unlink()
            path.symlink_to("nowhere")


@pytest.mark.parametrize("how", ["flipped", "cut", "empty", "dangling"])
def test_a_damaged_checkpoint_is_passed_over_with_a_word(killed: Callable[..., Path], how: str) -> None:
    folder = killed(5, loop__checkpoint_every=2, loop__checkpoints_kept=10)
    damaged = folder / "checkpoints" / "step-00000004.safetensors"
    damage(damaged, how)
    with pytest.warns(UserWarning, match="goes on from .*step-00000002") as said:
        result = resume(folder)
    assert sum("step-00000004.safetensors" in str(word.message) for word in said) == 1
    assert (result.status, result.steps) == ("completed", 7)
    # The three steps after the older checkpoint stay charged.
    assert result.statement.releases == (Gaussian(noise_multiplier=1.0, sample_rate=0.2, steps=10),)


def test_a_damaged_checkpoint_that_is_named_is_refused(killed: Callable[..., Path]) -> None:
    folder = killed(5, loop__checkpoint_every=2, loop__checkpoints_kept=10)
    damaged = folder / "checkpoints" / "step-00000004.safetensors"
    damage(damaged, "flipped")
    with pytest.raises(InvalidValue, match=r"step-00000004.*does not match its checksum"):
        resume(damaged)


def test_a_run_whose_checkpoints_are_all_damaged_is_refused(killed: Callable[..., Path]) -> None:
    folder = killed(3, loop__checkpoint_every=2)
    for path in (folder / "checkpoints").iterdir():
        damage(path, "cut")
    with pytest.raises(InvalidValue, match=r"no checkpoint .* can be read"):
        resume(folder)


def test_killed_ten_times_with_one_step_reserved_at_a_time_it_is_charged_ten_more(killed: Callable[..., Path]) -> None:
    folder = killed(1, loop__checkpoint_every=1, privacy__steps=30)
    for at in range(2, 11):
        run_until_killed(at, resume, folder)
    result = resume(folder)
    assert result.steps == 30
    assert sum(event.steps for event in result.statement.releases) <= 40


def test_after_an_interruption_nothing_is_lost(tmp_path: Path) -> None:
    class Stops(Progress):
        def step(self, steps: int, average: Average) -> None:
            if steps == 3:
                os.kill(os.getpid(), 15)

    assert run(tiny(), out=tmp_path / "run", progress=Stops()).status == "interrupted"
    result = resume(tmp_path / "run")
    assert result.steps == 7
    assert sum(event.steps for event in result.statement.releases) == 7


def test_the_weights_and_the_optimizer_go_on_as_if_nothing_had_happened(
    killed: Callable[..., Path], tmp_path: Path
) -> None:
    """Without noise and with every example in every batch, an interrupted run and a whole one are the same."""
    settings: dict[str, Any] = {
        "privacy": {"noise_multiplier": 0.0, "delta": 1e-4, "sample_rate": 1.0, "steps": 7, "seed": 3},
        "optimizer": {"kind": "adamw", "lr": 0.01},
        "schedule": {"kind": "cosine"},
        "loop": {"threads": 1, "checkpoint_every": 2},
    }
    resumed = resume(killed(5, **settings))
    whole = run(tiny(**settings), out=tmp_path / "whole")
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


def test_noise_and_batches_are_new_after_a_restart_even_with_a_seed(
    killed: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seeded stream is the same after a restart, so the numbers of the draws tell whether any is used again."""
    draws: dict[str, list[int]] = {"noise": [], "sampling": []}
    add, draw = Noise.add_, Poisson.draw

    def noise(self: Noise, *args: Any) -> None:
        draws["noise"].append(self.draws)
        add(self, *args)

    def sample(self: Poisson, stream: Any) -> Any:
        draws["sampling"].append(stream.draws)
        return draw(self, stream)

    monkeypatch.setattr(Noise, "add_", noise)
    monkeypatch.setattr(Poisson, "draw", sample)
    resume(killed(4, loop__checkpoint_every=3, privacy__seed=3))
    assert len(draws["noise"]) == len(draws["sampling"]) == 8
    for numbers in draws.values():
        assert len(set(numbers)) == len(numbers)


CHANGES = {
    "noise": ("privacy.noise_multiplier", "1.5"),
    "sampling": ("privacy.batch_size", "150"),
    "clipping": ("clip.norm", "0.5"),
    "learning rate": ("optimizer.lr", "0.1"),
    "loss": ("loss.label_smoothing", "0.1"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_recipe_changed_behind_the_run_s_back_is_refused(killed: Callable[..., Path], what: str) -> None:
    folder = killed(5, loop__checkpoint_every=2)
    key, value = CHANGES[what]
    recipe = read_recipe(folder / "recipe.toml", [f"{key}={value}"])
    (folder / "recipe.toml").write_text(to_toml(recipe))
    before = Ledger(folder / "ledger.jsonl").head
    with pytest.raises(InvalidValue, match=f"--accept {key}"):
        resume(folder)
    assert Ledger(folder / "ledger.jsonl").head == before
    assert resume(folder, accept=[key]).status == "completed"


def test_changed_noise_is_charged_as_what_it_is(killed: Callable[..., Path]) -> None:
    folder = killed(5, loop__checkpoint_every=2)
    result = resume(folder, overrides=["privacy.noise_multiplier=2.0"])
    assert result.statement.releases == (
        Gaussian(noise_multiplier=1.0, sample_rate=0.2, steps=5),
        Gaussian(noise_multiplier=2.0, sample_rate=0.2, steps=3),
    )
    assert result.statement.epsilon == epsilon(Ledger(folder / "ledger.jsonl").spent(), 1e-4, "rdp")
    assert [entry.closed for entry in Ledger(folder / "ledger.jsonl").entries] == [True, True]


def test_a_new_epsilon_pays_for_what_was_spent_before(killed: Callable[..., Path]) -> None:
    privacy = {"epsilon": 2.0, "delta": 1e-4, "sample_rate": 0.2, "steps": 7}
    folder = killed(5, loop__checkpoint_every=2, privacy=privacy)
    result = resume(folder, overrides=["privacy.epsilon=3.0"])
    assert result.steps == 7
    assert 2.9 < result.statement.epsilon <= 3.0
    assert len(result.statement.releases) == 2


def test_harmless_settings_may_change(killed: Callable[..., Path]) -> None:
    folder = killed(5, loop__checkpoint_every=2)
    assert resume(folder, overrides=["loop.threads=2", "loop.checkpoint_every=3"]).status == "completed"


def test_changed_data_are_refused_or_charged_as_a_run_of_their_own(
    killed: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = killed(5, loop__checkpoint_every=2)
    load = preparing.data.load

    def changed(name: str) -> Splits:
        splits = load(name)
        x, y = splits.train.tensors
        x = x.clone()
        x[17, 0, 3, 3] += 1 / 16
        return Splits(TensorDataset(x, y), splits.test, splits.classes)

    monkeypatch.setattr(preparing.data, "load", changed)
    with pytest.raises(InvalidValue, match="--accept data"):
        resume(folder)
    assert resume(folder, accept=["data"]).status == "completed"
    assert [entry.reserved for entry in Ledger(folder / "ledger.jsonl").entries] == [5, 3]


def test_a_data_file_may_be_moved(killed: Callable[..., Path], tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).random((400, 9)), np.arange(400) % 3
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    folder = killed(5, loop__checkpoint_every=2, data={"path": str(tmp_path / "mine.npz")})
    (tmp_path / "mine.npz").rename(tmp_path / "moved.npz")
    assert resume(folder, overrides=[f"data.path={tmp_path / 'moved.npz'}"]).status == "completed"


def test_an_older_ledger_put_back_is_refused(killed: Callable[..., Path]) -> None:
    folder = killed(2, loop__checkpoint_every=2)
    old = (folder / "ledger.jsonl").read_bytes()
    run_until_killed(5, resume, folder)
    (folder / "ledger.jsonl").write_bytes(old)
    with pytest.raises(LedgerDamaged, match="cut, put back"):
        resume(folder)


def test_runs_share_a_ledger_and_one_that_would_exceed_it_is_refused(
    killed: Callable[..., Path], tmp_path: Path
) -> None:
    plan = Gaussian(noise_multiplier=1.0, sample_rate=0.2, steps=7)
    ledger = Ledger.create(tmp_path / "shared.jsonl", epsilon=1.2 * epsilon(plan, 1e-4), delta=1e-4)
    folder = killed(5, ledger, loop__checkpoint_every=2)
    with pytest.raises(BudgetSpent, match="what is left buys"):
        run(tiny(), out=tmp_path / "second", ledger=ledger)
    assert not (tmp_path / "second").exists()
    assert resume(folder, ledger=tmp_path / "shared.jsonl").steps == 7
    assert ledger.epsilon() <= ledger.budget


def test_a_folder_in_use_is_refused(killed: Callable[..., Path]) -> None:
    folder = killed(5, loop__checkpoint_every=2)

    class Twice(Progress):
        def step(self, steps: int, average: Average) -> None:
            with pytest.raises(InvalidValue, match="another process is training"):
                resume(folder)

    assert resume(folder, progress=Twice()).status == "completed"


def test_weights_that_are_not_numbers_stop_the_run_before_it_spends_more(tmp_path: Path) -> None:
    class Spoils(Progress):
        model: torch.nn.Module

        def step(self, steps: int, average: Average) -> None:
            if steps == 4:
                with torch.no_grad():
                    next(self.model.parameters())[0] = float("nan")

    spoils = Spoils()
    build = preparing.networks.build

    def remember(*args: Any) -> torch.nn.Module:
        spoils.model = build(*args)
        return spoils.model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparing.networks, "build", remember)
        with pytest.raises(Diverged, match="step-00000003"):
            run(tiny(loop__checkpoint_every=3), out=tmp_path / "run", progress=spoils)
    assert Ledger(tmp_path / "run" / "ledger.jsonl").entries[0].reserved == 4
    assert facts(tmp_path / "run", "run.json")["status"] == "failed"
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_what_an_error_says_about_the_data_stays_below_not_private(tmp_path: Path) -> None:
    class Breaks(Progress):
        def step(self, steps: int, average: Average) -> None:
            raise RuntimeError(f"shapes do not fit: {average.examples} x 64 of patient 4711")

    with pytest.raises(HoarfrostError, match="RuntimeError") as caught:
        run(tiny(), out=tmp_path / "run", progress=Breaks())
    assert "4711" not in str(caught.value)
    assert caught.value.__suppress_context__
    assert "4711" in (tmp_path / "run" / "not-private" / "error.txt").read_text()
    for path in (tmp_path / "run").iterdir():
        if path.is_file():
            assert b"4711" not in path.read_bytes()


# What was found by trying to break it.


def interrupted(start: Callable[..., Any], *args: Any, at: int, **options: Any) -> Any:
    class Stops(Progress):
        def step(self, steps: int, average: Average) -> None:
            if steps == at:
                os.kill(os.getpid(), 15)

    result = start(*args, progress=Stops(), **options)
    assert result.status == "interrupted"
    return result


def test_what_was_spent_on_a_branch_that_was_given_up_stays_in_the_statement(tmp_path: Path) -> None:
    privacy = {"epsilon": 3.0, "delta": 1e-4, "sample_rate": 0.2, "steps": 40}
    recipe = tiny(privacy=privacy, loop={"threads": 1, "checkpoint_every": 5, "checkpoints_kept": 50})
    folder = tmp_path / "run"
    interrupted(run, recipe, out=folder, at=12)
    interrupted(resume, folder, overrides=["privacy.epsilon=6.0"], at=25)
    older = folder / "checkpoints" / "step-00000010.safetensors"
    result = interrupted(resume, older, accept=["privacy.epsilon"], at=17)
    ledger = Ledger(folder / "ledger.jsonl")
    assert result.statement.epsilon == epsilon(ledger.spent(), 1e-4)
    assert [entry.closed for entry in ledger.entries] == [True, True, False]
    final = resume(folder)  # goes on where the last process was, not with the most steps
    assert final.statement.epsilon == epsilon(Ledger(folder / "ledger.jsonl").spent(), 1e-4) <= 6.0
    assert audit.ledger(folder).passed


def test_two_runs_with_the_same_folder_do_not_delete_each_other(tmp_path: Path) -> None:
    late = RunFolder(tmp_path / "run")  # found it empty, and then took its time
    run(tiny(), out=tmp_path / "run")
    with pytest.raises(InvalidValue, match="cannot make the run folder"):
        late.create()
    late.remove()
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert Ledger(tmp_path / "run" / "ledger.jsonl").entries[0].committed == 7


def test_a_refused_change_leaves_the_run_as_it_was(killed: Callable[..., Path], tmp_path: Path) -> None:
    privacy = {"epsilon": 2.0, "delta": 1e-4, "sample_rate": 0.2, "steps": 7}
    ledger = Ledger.create(tmp_path / "shared.jsonl", epsilon=2.2, delta=1e-4)
    folder = killed(5, ledger, loop__checkpoint_every=2, privacy=privacy)
    for refused in (["privacy.epsilon=7.0"], ["model.hidden=[9]", "privacy.epsilon=2.1"]):
        before = Ledger(ledger.path).head
        with pytest.raises(HoarfrostError):
            resume(folder, overrides=refused)
        assert Ledger(ledger.path).head == before
    assert resume(folder).status == "completed"


def test_a_run_without_its_not_private_folder_can_be_resumed_if_the_data_are_accepted(
    killed: Callable[..., Path],
) -> None:
    folder = killed(5, loop__checkpoint_every=2)
    shutil.rmtree(folder / "not-private")
    with pytest.raises(InvalidValue, match="--accept data"):
        resume(folder)
    assert resume(folder, accept=["data"]).status == "completed"


def test_a_calibrated_run_that_was_closed_by_hand_has_the_rest_of_its_plan(killed: Callable[..., Path]) -> None:
    privacy = {"epsilon": 2.0, "delta": 1e-4, "sample_rate": 0.2, "steps": 7}
    folder = killed(4, loop__checkpoint_every=2, privacy=privacy)
    ledger = Ledger(folder / "ledger.jsonl")
    ledger.close(ledger.entries[0].run)
    result = resume(folder)
    assert sum(event.steps for event in result.statement.releases) == 7
    assert result.statement.epsilon <= 2.0


def test_what_is_shown_of_a_resumed_run_counts_every_step_once(killed: Callable[..., Path]) -> None:
    shown = []

    class Looks(Progress):
        def start(self, plan: Any) -> None:
            shown.extend([plan.epsilon, plan.epsilon_so_far()])

    privacy = {"epsilon": 2.0, "delta": 1e-4, "sample_rate": 0.2, "steps": 7}
    result = resume(killed(5, loop__checkpoint_every=5, privacy=privacy), progress=Looks())
    assert shown[0] == pytest.approx(result.statement.epsilon)
    assert 0 < shown[1] <= result.statement.epsilon


NOT_PRIVATE = {"kind": "pruned", "keep": 0.5, "public": "digits", "private": False, "epochs": 1}


@pytest.mark.parametrize("shared", [False, True])
def test_a_freezer_s_release_is_no_run_and_is_booked_once(
    killed: Callable[..., Path], tmp_path: Path, shared: bool
) -> None:
    ledger = Ledger.create(tmp_path / "shared.jsonl", epsilon=None, delta=1e-4, seeded=True) if shared else None
    privacy = {"epsilon": 2.0, "delta": 1e-4, "sample_rate": 0.2, "steps": 7}
    folder = killed(3, ledger, freeze=NOT_PRIVATE, privacy=privacy)
    result = resume(folder, overrides=["privacy.steps=9"], accept=["privacy.steps"], ledger=ledger)
    assert result.statement.epsilon == math.inf
    text = (folder / "budget.txt").read_text()
    assert text.count("the pruning mask") == 2  # in the first line, and among the releases
    entries = Ledger(tmp_path / "shared.jsonl" if shared else folder / "ledger.jsonl").entries
    assert [entry.owner is not None for entry in entries] == [False, True, False]
    assert audit.ledger(folder).passed


def test_layers_frozen_from_an_epsilon_on_count_what_was_spent_before(killed: Callable[..., Path]) -> None:
    privacy = {"epsilon": 3.0, "delta": 1e-4, "sample_rate": 0.2, "steps": 20}
    folder = killed(
        16, loop__checkpoint_every=1, privacy=privacy, freeze={"kind": "layers", "first": 1.0, "epsilon": 2.95}
    )
    changes = {"privacy.epsilon": 6.0, "freeze.epsilon": 4.5}
    result = resume(folder, overrides=[f"{key}={value}" for key, value in changes.items()], accept=list(changes))
    assert result.status == "completed"
    frozen = (1 - facts(folder, "run.json")["density"]) * 20 / (520 / 610)  # steps in which the first layer was frozen
    assert 0 < round(frozen, 3) < 5  # of those 5 that were left: not at once, as if nothing had been spent
