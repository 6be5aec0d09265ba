"""Training that is killed at random moments: does the ledger ever know of fewer steps than were released?"""

import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import hoarfrost
from benchmarks.trust import processes
from hoarfrost.budget import Gaussian, Ledger

COUNT = 200
AHEAD = (1, 10)
STEPS = 40
NOISE, RATE = 1.0, 0.5
AIMED = 5  # one kill of so many comes right after a release, a moment that the clock seldom hits


class Witness(torch.optim.SGD):
    """Leaves a byte in a file whenever there is a noisy gradient, by a system call that a kill cannot undo."""

    def __init__(self, parameters: Any, file: int, last: int | None) -> None:
        super().__init__(parameters, lr=0.1)
        self.file, self.last, self.seen = file, last, 0

    def step(self, closure: Any = None) -> Any:
        os.write(self.file, b".")
        self.seen += 1
        if self.seen == self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(closure)


def train(ledger: Path, witness: Path, ahead: int, last: int | None = None) -> None:
    """A run of `STEPS` steps that reserves ``ahead`` steps at a time; it dies right after release number ``last``."""
    torch.set_num_threads(1)  # a forked process must not ask for the threads that its parent had
    model = nn.Linear(4, 2)
    data = TensorDataset(torch.randn(16, 4), torch.randint(2, (16,)))
    file = os.open(witness, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    allowance = Ledger(ledger).admit(Gaussian(noise_multiplier=NOISE, sample_rate=RATE, steps=STEPS), ahead=ahead)
    private = hoarfrost.make_private(
        model, Witness(model.parameters(), file, last), data, sample_rate=RATE, steps=STEPS, noise_multiplier=NOISE,
        delta=1e-5, ledger=allowance,
    )  # fmt: skip
    while private.steps_taken < STEPS:
        for x, y in private.loader:
            private.optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            private.optimizer.step()
    os.close(file)


def trial(folder: Path, ahead: int, delay: float | None = None, last: int | None = None) -> dict[str, Any]:
    """One run, killed after ``delay`` seconds, or right after release number ``last``, or left alone."""
    ledger, witness = folder / "ledger.jsonl", folder / "witness"
    Ledger.create(ledger, epsilon=None, delta=1e-5)
    witness.touch()
    start = time.perf_counter()
    child = processes.start(lambda: train(ledger, witness, ahead, last))
    if delay is not None:
        time.sleep(max(0.0, start + delay - time.perf_counter()))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    seconds = time.perf_counter() - start
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise RuntimeError("the training itself failed")
    killed = os.WIFSIGNALED(status)
    return {**outcome(ledger, witness), "killed": killed, "seconds": seconds}


def outcome(ledger: Path, witness: Path) -> dict[str, Any]:
    """What the ledger says and what the witness saw. A ledger that cannot be read, or written to, is not sound."""
    reserved = sum(entry.reserved for entry in Ledger(ledger).entries)
    Ledger(ledger).admit(Gaussian(noise_multiplier=NOISE))
    Ledger(ledger)
    return {"reserved": reserved, "released": witness.stat().st_size}


def measure(count: int = COUNT) -> dict[str, Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {f"ahead {ahead}": _measure(count, ahead) for ahead in AHEAD}
    finally:
        torch.set_num_threads(threads)


def _measure(count: int, ahead: int) -> dict[str, Any]:
    rng = random.Random(ahead)
    trials = []
    with tempfile.TemporaryDirectory() as folder:
        # Once in this process: imports are then done before forking, and children only train.
        warm_up = _place(folder, "warm-up")
        Ledger.create(warm_up / "ledger.jsonl", epsilon=None, delta=1e-5)
        train(warm_up / "ledger.jsonl", warm_up / "witness", ahead)
        life = min(trial(_place(folder, f"undisturbed {turn}"), ahead)["seconds"] for turn in range(3))
        while len(trials) < count:
            if len(trials) % AIMED == 0:
                when: dict[str, Any] = {"last": rng.randint(1, STEPS)}
            else:
                when = {"delay": rng.uniform(0, life)}
            with tempfile.TemporaryDirectory(dir=folder) as place:
                result = trial(Path(place), ahead, **when)
            if result["killed"]:  # not too late
                trials.append(result)
    excess = [each["reserved"] - each["released"] for each in trials]
    return {
        "kills": count,
        "kills between the first release and the last": sum(0 < each["released"] < STEPS for each in trials),
        "covered": sum(each >= 0 for each in excess),
        "largest excess": max(excess),
        "steps ahead": ahead,
    }


def _place(folder: str, name: str) -> Path:
    place = Path(folder) / name
    place.mkdir()
    return place


def summary(figures: dict[str, Any]) -> str:
    return "; ".join(
        f"reserving {each['steps ahead']} at a time: ledger ≥ releases in {each['covered']} of {each['kills']} kills "
        f"({each['kills between the first release and the last']} of them between the first release and the last), "
        f"largest excess {each['largest excess']}"
        for each in (figures[f"ahead {ahead}"] for ahead in AHEAD)
    )
