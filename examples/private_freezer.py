"""A freezer of your own that looks at the data, privately.

Of 20 features only the first four tell anything about the class. `Informative` finds them by one noisy sum, and freezes
the first layer's weights for all other features. The sum is planned before anything is read: it is part of epsilon, and
the noise of the steps is calibrated for the rest. The script prints the features that were trained and the statement.

    python examples/private_freezer.py
"""

import copy

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hoarfrost
from hoarfrost import freeze
from hoarfrost.budget import Gaussian, PlannedRelease
from hoarfrost.query import Query


class Informative(freeze.Freezer):
    """Trains the first layer for the four features that are most correlated with the class."""

    chosen: Tensor | None = None  # None until the first batch is drawn

    def releases(self, info: freeze.RunInfo) -> tuple[PlannedRelease, ...]:
        return (PlannedRelease(event=Gaussian(noise_multiplier=8.0), what="which features matter"),)

    def prepare(self, number: int, query: Query, info: freeze.RunInfo) -> None:
        # The function sees a batch of one example. The query clips its result to `bound`, adds up, and adds noise.
        sums = query.sum(lambda model, batch: batch[0][0] * (2 * batch[1][0] - 1), size=20, bound=5.0)
        self.chosen = sums.abs().topk(4).indices

    def live(self, step: int, info: freeze.RunInfo) -> freeze.Live:
        columns = torch.zeros(info.shapes["0.weight"], dtype=torch.bool)
        columns[:, slice(None) if self.chosen is None else self.chosen] = True
        return {name: columns if name == "0.weight" else True for name in info.shapes}

    def state(self) -> dict[str, Tensor]:  # in every checkpoint: a resumed run does not look (and pay) again
        return {} if self.chosen is None else {"chosen": self.chosen}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.chosen = state.get("chosen")

    def fresh(self) -> freeze.Freezer:  # every run chooses for itself
        return copy.copy(self)


torch.manual_seed(0)  # for the data and the initial weights only
y = torch.randint(2, (2000,))
x = torch.randn(2000, 20)
x[:, :4] += (2 * y - 1)[:, None]
dataset = TensorDataset(x, y)
model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
before = model[0].weight.detach().clone()
private = hoarfrost.make_private(
    model, optimizer, dataset, batch_size=200, epochs=4, epsilon=2.0, delta=1e-5, freeze=Informative()
)
model, optimizer, loader = private
for _ in range(4):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
trained = (model[0].weight != before).any(dim=0).nonzero().flatten()
print(f"features that were trained: {trained.tolist()}")
print(private.statement())
