"""A plain PyTorch training loop, made private by one call.

The loop itself does not change. The script makes 2000 points in two classes, trains a small network on them for five
epochs, and prints epsilon after every epoch, the accuracy on other points, and the statement to publish with the
weights.

    python examples/plain_loop.py
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import hoarfrost


def make_points(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points inside a circle (class 1) and outside of it (class 0)."""
    x = torch.randn(count, 2)
    return x, (x.norm(dim=1) < 1.2).long()


torch.manual_seed(0)  # for the points and the initial weights only; noise and batches do not depend on it
dataset = TensorDataset(*make_points(2000))
model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

private = hoarfrost.make_private(
    model,
    optimizer,
    dataset,
    batch_size=200,  # the expected size: batches are Poisson samples, so every batch has another size
    epochs=5,
    epsilon=3.0,  # the noise is calibrated so that all five epochs together cost at most this
    delta=1e-5,  # well below 1/2000
    clip=hoarfrost.clip.Local(1.0),
)
model, optimizer, loader = private

for epoch in range(5):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: epsilon {private.epsilon():.2f}")

# Measured on points that were not trained on: accuracy on the training data would be a release without noise.
x, y = make_points(1000)
with torch.no_grad():
    print(f"accuracy on new points: {(model(x).argmax(1) == y).float().mean():.2f}")
print()
print(private.statement())
