"""A data set of your own, read from a CSV file.

The script writes two tables of made-up people to a temporary folder, reads them with a Dataset class, and trains a
private logistic regression on the first. It prints the number of rows, delta, epsilon, and the accuracy on the second.

    python examples/csv_dataset.py
"""

import csv
import random
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import hoarfrost

# Standardisation by public constants: rough values that are known without this table. The table's own mean and standard
# deviation are computed from private rows: to use them would release something that no accountant counts.
MEAN, STD = torch.tensor([45.0, 35.0]), torch.tensor([18.0, 12.0])


class People(Dataset):
    """One row is one person, so that one person is the unit of privacy."""

    def __init__(self, path: Path) -> None:
        with open(path, newline="") as file:
            rows = [(float(row["age"]), float(row["hours"]), int(row["commutes"])) for row in csv.DictReader(file)]
        self.x = (torch.tensor([row[:2] for row in rows]) - MEAN) / STD
        self.y = torch.tensor([row[2] for row in rows])

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


def made_up_people(path: Path, count: int) -> People:
    """Writes a table in which those who work many hours commute more often, and reads it."""
    hours = [random.gauss(38, 10) for _ in range(count)]
    rows = [f"{random.randint(18, 90)},{h:.1f},{int(h + random.gauss(0, 5) > 38)}\n" for h in hours]
    path.write_text("age,hours,commutes\n" + "".join(rows))
    return People(path)


with tempfile.TemporaryDirectory() as folder:
    train, test = made_up_people(Path(folder, "train.csv"), 4000), made_up_people(Path(folder, "test.csv"), 500)
model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
delta = 0.1 / len(train)  # below 1/N: at delta = 1/N, to publish one row in full would count as private
private = hoarfrost.make_private(model, optimizer, train, batch_size=400, epochs=4, epsilon=1.0, delta=delta)
model, optimizer, loader = private
for _ in range(4):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
accuracy = (model(test.x).argmax(1) == test.y).float().mean()
print(f"{len(train)} rows, delta {delta:g}, epsilon {private.epsilon():.2f}, accuracy on other rows {accuracy:.2f}")
