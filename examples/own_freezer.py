"""A freezer of your own that follows a schedule.

A freezer needs one method, `live(step, info)`: it says which coordinates are trained in a step. This one freezes
the body of a model in the first two epochs, so that a new head is trained first. It depends on nothing
but the step, so it costs no privacy. The script prints what has moved in every epoch, and the statement.

    python examples/own_freezer.py
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import hoarfrost
from hoarfrost import freeze


class HeadFirst(freeze.Freezer):
    """Trains only the parameters under `head` in the first epochs, and everything after that."""

    def __init__(self, head: str, epochs: int) -> None:
        self.head, self.epochs = head, epochs

    def __repr__(self) -> str:  # stored in checkpoints, to recognise the same freezer after a restart
        return f"HeadFirst({self.head!r}, {self.epochs})"

    def live(self, step: int, info: freeze.RunInfo) -> freeze.Live:
        everything = info.epoch_of(step) >= self.epochs
        return {name: everything or name.startswith(f"{self.head}.") for name in info.shapes}


torch.manual_seed(0)  # for the data and the initial weights only
x = torch.randn(2000, 10)
y = (x[:, 0] > 0).long()
model = nn.Sequential()
model.add_module("body", nn.Sequential(nn.Linear(10, 32), nn.ReLU()))
model.add_module("head", nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, weight_decay=1e-3)
freezer = HeadFirst("head", epochs=2)
private = hoarfrost.make_private(
    model, optimizer, TensorDataset(x, y), batch_size=200, epochs=4, epsilon=2.0, delta=1e-5, freeze=freezer
)
model, optimizer, loader = private

for epoch in range(4):
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    # Frozen coordinates do not move by one bit, although momentum and weight decay would move them.
    moved = [name for name, p in model.named_parameters() if not torch.equal(p, before[name])]
    print(f"epoch {epoch + 1}: moved {', '.join(moved)}")
print(private.statement())
