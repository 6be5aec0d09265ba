"""Right programs: how batches come to the loop, how gradients are clipped, and what precision and memory they take."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.data import DataLoader, Dataset, Subset, default_collate

import hoarfrost
from tests.programs.corpus import Rows, right
from tests.programs.examples import images, sequences, vectors
from tests.programs.loops import EPOCHS, epochs, fit, two_layers
from tests.programs.running import MakePrivate


@right(vectors)
def a_data_loader_that_shuffles(rows: Rows, make_private: MakePrivate) -> None:
    fit(two_layers(), DataLoader(rows, batch_size=4, shuffle=True, drop_last=True), make_private)


@right(vectors)
def workers_that_stay(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    data = DataLoader(rows, batch_size=4, num_workers=1, persistent_workers=True)
    epochs(model, make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), data))


@right(vectors)
def a_part_of_a_data_set(rows: Rows, make_private: MakePrivate) -> None:
    everything = [*rows, *vectors(3)]
    fit(two_layers(), Subset(everything, range(len(rows))), make_private)


@right(vectors)
def gradient_accumulation(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = make_private(model, optimizer, rows, batch_size=8, max_physical_batch=3)
    epochs(model, private)
    assert private.steps_taken == EPOCHS


class Augmented(Dataset):
    """Every example in another form each time it is asked for; here in turn, so that the oracle sees the same."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.asked = rows, [0] * len(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        self.asked[index] += 1
        x, y = self.rows[index]
        return (x.flip(-1) if self.asked[index] % 2 else x), y


@right(vectors)
def two_augmented_views_of_every_example(rows: Rows, make_private: MakePrivate) -> None:
    fit(two_layers(), Augmented(rows), make_private, views=2)


@right(vectors)
def two_views_in_chunks_with_a_sum_loss(rows: Rows, make_private: MakePrivate) -> None:
    loss = nn.CrossEntropyLoss(reduction="sum")
    fit(two_layers(), Augmented(rows), make_private, loss, views=2, max_physical_batch=6, loss_reduction="sum")


@right(vectors)
def the_views_of_an_example_are_mixed_up_with_each_other(rows: Rows, make_private: MakePrivate) -> None:
    """Mix-up within an example: no example has a say in another's."""
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, Augmented(rows), batch_size=4, views=2)
    for x, y in loader:
        optimizer.zero_grad()
        own = x.view(-1, 2, 6)
        mixed = (0.7 * own + 0.3 * own.flip(1)).flatten(0, 1)
        F.cross_entropy(model(mixed), y).backward()
        optimizer.step()


@right(vectors, oracle=False)
def clipping_layer_by_layer(rows: Rows, make_private: MakePrivate) -> None:
    fit(two_layers(), rows, make_private, clip=hoarfrost.clip.PerLayer(hoarfrost.clip.Local(0.1)))


@right(vectors, oracle=False)
def automatic_clipping(rows: Rows, make_private: MakePrivate) -> None:
    fit(two_layers(), rows, make_private, clip=hoarfrost.clip.Automatic(1.0))


# Precision and memory.


@right(vectors, tolerance=0.03)
def autocast_to_bfloat16(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4, loss_reduction="sum")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y, reduction="sum")
        loss.backward()
        optimizer.step()


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lower, self.upper, self.head = nn.Linear(6, 8), two_layers(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.upper, self.lower(x), use_reentrant=False))


@right(vectors)
def activation_checkpointing(rows: Rows, make_private: MakePrivate) -> None:
    fit(Checkpointed(), rows, make_private)


@right(vectors)
def reentrant_checkpointing_of_the_whole_model(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(checkpoint(model, x.requires_grad_(), use_reentrant=True), y).backward()
        optimizer.step()


class InSegments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint_sequential(self.layers, 2, x, use_reentrant=False)


@right(vectors)
def sequential_checkpointing(rows: Rows, make_private: MakePrivate) -> None:
    fit(InSegments(), rows, make_private)


@right(vectors)
def data_parallel_without_a_gpu(rows: Rows, make_private: MakePrivate) -> None:
    fit(nn.DataParallel(two_layers()), rows, make_private)


@right(images)
def saved_tensors_on_the_cpu(rows: Rows, make_private: MakePrivate) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autograd.graph.save_on_cpu():
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()


# More about batches.


@right(vectors)
def batches_fetched_ahead(rows: Rows, make_private: MakePrivate) -> None:
    def ahead(loader: Any) -> Any:
        """Always one batch further than the loop, as many wrappers are."""
        batches = iter(loader)
        coming = next(batches, None)
        while coming is not None:
            batch, coming = coming, next(batches, None)
            yield batch

    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4)
    for _ in range(EPOCHS):
        for x, y in ahead(loader):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


@right(vectors)
def batches_that_are_copied(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4)
    for x, y in loader:
        x, y = x.clone(), y.clone()  # as a copy to another device is
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


Batch = namedtuple("Batch", "x y")


@right(vectors)
def batches_with_names(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, [Batch(*row) for row in rows], batch_size=4)
    for batch in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(batch.x), batch.y).backward()
        optimizer.step()


def bytes_and_names(rows: list[Any]) -> tuple[Tensor, Tensor, list[str]]:
    x, y = default_collate(rows)
    return (x.nan_to_num(0).clamp(-2, 2) * 60 + 128).to(torch.uint8), y, [f"{k}.png" for k in range(len(rows))]


@right(images)
def pictures_of_bytes_and_file_names(rows: Rows, make_private: MakePrivate) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = DataLoader(rows, batch_size=4, collate_fn=bytes_and_names)
    model, optimizer, loader = make_private(model, optimizer, data)
    for x, y, _names in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x.float() / 255), y).backward()
        optimizer.step()


@right(vectors, random=True)
def noise_on_the_inputs(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x + 0.1 * torch.randn_like(x)), y).backward()
        optimizer.step()


@right(images, random=True)
def pictures_turned_over_by_a_coin(rows: Rows, make_private: MakePrivate) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4)
    for x, y in loader:
        optimizer.zero_grad()
        turned = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x, x.flip(-1))
        F.cross_entropy(model(turned), y).backward()
        optimizer.step()


class TimeFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][-1])


def time_first(rows: list[Any]) -> tuple[Tensor, Tensor]:
    return torch.stack([x for x, _ in rows], 1), torch.stack([y for _, y in rows])


@right(sequences)
def examples_along_the_second_dimension(rows: Rows, make_private: MakePrivate) -> None:
    fit(TimeFirst(), DataLoader(rows, batch_size=4, collate_fn=time_first), make_private, batch_first=False)


@right(vectors)
def a_batch_differentiated_in_halves(rows: Rows, make_private: MakePrivate) -> None:
    """Two backward passes over the two halves of one batch, each example once; the losses are added up."""
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = make_private(model, optimizer, rows, batch_size=4, loss_reduction="sum")
    for x, y in loader:
        optimizer.zero_grad()
        for half in (slice(0, 3), slice(3, None)):
            if len(y[half]):
                F.cross_entropy(model(x[half]), y[half], reduction="sum").backward()
        optimizer.step()


@right(vectors)
def a_run_that_is_broken_off_and_goes_on(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = make_private(model, optimizer, rows, batch_size=4, steps=3)
    while private.steps_taken < 3:
        for x, y in private.loader:
            private.optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            private.optimizer.step()
            break


@right(vectors, oracle=False)
def half_of_all_coordinates_frozen_at_random(rows: Rows, make_private: MakePrivate) -> None:
    fit(two_layers(), rows, make_private, freeze=hoarfrost.freeze.Random(rate=0.5))
