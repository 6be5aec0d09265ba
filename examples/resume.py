"""Continuing after a crash: what was spent stays spent.

A run saves a checkpoint at step 10 and crashes after step 13. A new object with the same settings loads the checkpoint.
Its weights are those of step 10, but the ledger remembers that 13 batches were drawn. The script prints the charge and
epsilon before the crash, after loading and at the end: nothing was refunded, and the target of 2 was kept.

    python examples/resume.py
"""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import hoarfrost

dataset = TensorDataset(torch.randn(1000, 8), torch.randint(2, (1000,)))


def new_run(ledger: Path) -> hoarfrost.Private:
    """After a crash it is called again with the same settings, in the same process or in another one."""
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    # The ledger recognises the run by its name. Without run= this would be a new run that asks for new budget.
    return hoarfrost.make_private(
        model, optimizer, dataset, batch_size=50, steps=40, epsilon=2.0, delta=1e-5, ledger=ledger, run="first-model"
    )


def train(private: hoarfrost.Private, checkpoint: Path, crash_after: int | None = None) -> None:
    model, optimizer, loader = private
    while private.steps_taken < private.steps:  # `steps` is less than 40 if steps were lost
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            if private.steps_taken % 10 == 0:
                private.save(checkpoint)
            if private.steps_taken == crash_after:
                raise RuntimeError("the machine went down")


def report(when: str, private: hoarfrost.Private) -> None:
    print(f"{when}: at step {private.steps_taken}, charged for {private.charged}, epsilon {private.epsilon():.3f}")


with tempfile.TemporaryDirectory() as folder:
    ledger, checkpoint = Path(folder, "data.ledger"), Path(folder, "run.safetensors")
    hoarfrost.budget.Ledger.create(ledger, epsilon=2.0, delta=1e-5)  # the budget of the data set, for all runs on it
    lost = new_run(ledger)
    try:
        train(lost, checkpoint, crash_after=13)
    except RuntimeError:
        report("before the crash", lost)

    resumed = new_run(ledger)
    resumed.load(checkpoint)
    report("after loading", resumed)
    assert resumed.epsilon() == lost.epsilon()
    print("nothing was refunded")
    train(resumed, checkpoint)
    report("at the end", resumed)
