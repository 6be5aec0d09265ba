"""Wrong programs: loops that train on nothing, on something else or on an example twice; samplers and optimizers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.optim import lr_scheduler
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, WeightedRandomSampler

from hoarfrost.errors import Diverged, HoarfrostError
from tests.programs.corpus import Rows, refused, told, wrong
from tests.programs.examples import vectors
from tests.programs.loops import fit, two_layers
from tests.programs.running import MakePrivate


def begin(rows: Rows, make_private: MakePrivate, **options: Any) -> Any:
    model = two_layers()
    return make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, batch_size=4, **options)


# It trains on nothing, or on something else.


@wrong(vectors, told("inputs="))
def a_backward_pass_to_some_inputs_only(rows: Rows, make_private: MakePrivate) -> None:
    model, optimizer, loader = begin(rows, make_private)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward(inputs=list(model[2].parameters()))
        optimizer.step()


@wrong(vectors, told("assign=True"))
def weights_that_are_assigned(rows: Rows, make_private: MakePrivate) -> None:
    model, optimizer, loader = begin(rows, make_private)
    model.load_state_dict(two_layers().state_dict(), assign=True)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


@wrong(vectors, told("functional_call"))
def a_functional_call_with_other_weights(rows: Rows, make_private: MakePrivate) -> None:
    model, optimizer, loader = begin(rows, make_private)
    for x, y in loader:
        other = {name: p * 2 for name, p in model.named_parameters()}
        optimizer.zero_grad()
        F.cross_entropy(functional_call(model, other, (x,)), y).backward()
        optimizer.step()


@wrong(vectors, told("optimizer"))
def a_second_optimizer_for_other_layers(rows: Rows, make_private: MakePrivate) -> None:
    """The second one steps on gradients that never come."""
    model = two_layers()
    other = torch.optim.SGD(model[0].parameters(), lr=0.1)
    head = torch.optim.SGD(model[2].parameters(), lr=0.1)
    model, head, loader = make_private(model, head, rows, batch_size=4)
    for x, y in loader:
        head.zero_grad()
        other.zero_grad()
        F.cross_entropy(model(x), y).backward()
        head.step()
        other.step()


@wrong(vectors, told("DistributedDataParallel"))
def distributed_data_parallel_around_the_model(rows: Rows, make_private: MakePrivate) -> None:
    from torch import distributed

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        fit(nn.parallel.DistributedDataParallel(two_layers()), rows, make_private)
    finally:
        distributed.destroy_process_group()


@wrong(vectors, told('loss_reduction="sum"'))
def a_sum_loss_left_at_mean(rows: Rows, make_private: MakePrivate) -> None:
    fit(two_layers(), rows, make_private, nn.CrossEntropyLoss(reduction="sum"))


@wrong(vectors, told("part"))
def thirds_of_a_batch_whose_losses_are_divided_by_three(rows: Rows, make_private: MakePrivate) -> None:
    model, optimizer, loader = begin(rows, make_private)
    for x, y in loader:
        optimizer.zero_grad()
        for third, target in zip(x.chunk(3), y.chunk(3), strict=True):
            (F.cross_entropy(model(third), target) / 3).backward()
        optimizer.step()


@wrong(vectors, told("chunk"))
def a_scheduler_stepped_for_every_chunk(rows: Rows, make_private: MakePrivate) -> None:
    model, optimizer, loader = begin(rows, make_private, max_physical_batch=3)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        scheduler.step()


# An example more than once, or not drawn at all.


@wrong(vectors, refused("two Poisson batches", "max_physical_batch="))
def gradients_accumulated_over_batches(rows: Rows, make_private: MakePrivate) -> None:
    model, optimizer, loader = begin(rows, make_private)
    for _ in range(2):
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
    optimizer.step()


@wrong(vectors, refused("without a batch"))
def two_steps_for_one_batch(rows: Rows, make_private: MakePrivate) -> None:
    model, optimizer, loader = begin(rows, make_private)
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.step()


@wrong(vectors, refused("did not draw", "loader"))
def batches_from_a_loader_of_ones_own(rows: Rows, make_private: MakePrivate) -> None:
    model, optimizer, _ = begin(rows, make_private)
    for x, y in DataLoader(rows, batch_size=4):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


@wrong(vectors, refused("only once"))
def one_loss_differentiated_twice(rows: Rows, make_private: MakePrivate) -> None:
    model, optimizer, loader = begin(rows, make_private)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()


@wrong(vectors, refused("only once", "Add losses up"))
def two_losses_with_a_backward_pass_each(rows: Rows, make_private: MakePrivate) -> None:
    model, optimizer, loader = begin(rows, make_private)
    for x, y in loader:
        logits = model(x)
        F.cross_entropy(logits, y).backward(retain_graph=True)
        logits.square().mean().backward()
        optimizer.step()


@wrong(vectors, refused("two calls of the model", "forward of one module"))
def two_calls_of_the_model_in_one_loss(rows: Rows, make_private: MakePrivate) -> None:
    model, optimizer, loader = begin(rows, make_private)
    for x, y in loader:
        (F.cross_entropy(model(x), y) + F.mse_loss(model(x + 0.1), model(x).detach())).backward()
        optimizer.step()


@wrong(vectors, refused("torch.cat", "views="))
def the_batch_and_its_mirror_image_in_one_call(rows: Rows, make_private: MakePrivate) -> None:
    """torch.cat: twice as many rows as were drawn. `views=2` is the way."""
    model, optimizer, loader = begin(rows, make_private)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(torch.cat([x, x.flip(1)])), torch.cat([y, y])).backward()
        optimizer.step()


@wrong(vectors, refused("requires_grad_(False)"))
def a_generator_trained_through_a_private_discriminator(rows: Rows, make_private: MakePrivate) -> None:
    generator = nn.Linear(2, 6)
    model, optimizer, loader = begin(rows, make_private)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        F.cross_entropy(model(generator(torch.randn(len(x), 2))), y).backward()


@wrong(vectors, refused("already taken"))
def a_discriminator_stepped_on_fakes_and_then_on_the_batch(rows: Rows, make_private: MakePrivate) -> None:
    """As an example of Opacus has it: two steps for each batch."""
    model, optimizer, loader = begin(rows, make_private)
    for x, y in loader:
        for each in (torch.randn_like(x), x):
            optimizer.zero_grad()
            F.cross_entropy(model(each), y).backward()
            optimizer.step()


@wrong(vectors, refused("only once"))
def a_discriminator_with_a_backward_pass_for_each_half(rows: Rows, make_private: MakePrivate) -> None:
    model, optimizer, loader = begin(rows, make_private)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        F.cross_entropy(model(torch.randn_like(x)), y).backward()
        optimizer.step()


@wrong(vectors, refused("only once"))
def sharpness_aware_minimisation(rows: Rows, make_private: MakePrivate) -> None:
    """Climbs along the batch's own gradient before it descends: that gradient has no noise."""
    model, optimizer, loader = begin(rows, make_private)
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


@wrong(vectors, refused("ended by a later one"))
def two_iterations_at_once(rows: Rows, make_private: MakePrivate) -> None:
    model, optimizer, loader = begin(rows, make_private)
    for x, y in loader:
        for _other, _ in loader:
            pass
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


@wrong(vectors, refused("weight_decay"))
def an_l2_penalty_in_the_loss(rows: Rows, make_private: MakePrivate) -> None:
    model, optimizer, loader = begin(rows, make_private)
    for x, y in loader:
        optimizer.zero_grad()
        penalty = sum(p.square().sum() for p in model.parameters())
        (F.cross_entropy(model(x), y) + 1e-3 * penalty).backward()
        optimizer.step()


# Optimizers and samplers.


@wrong(vectors, refused("LBFGS", "SGD or Adam"))
def lbfgs(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    make_private(model, torch.optim.LBFGS(model.parameters()), rows)


@wrong(vectors, refused("not in the model"))
def an_optimizer_for_parameters_outside_of_the_model(rows: Rows, make_private: MakePrivate) -> None:
    """A learned temperature that lives beside the model."""
    model, temperature = two_layers(), nn.Parameter(torch.ones(()))
    make_private(model, torch.optim.SGD([*model.parameters(), temperature], lr=0.1), rows)


@wrong(vectors, refused("add_param_group", "requires_grad_()"))
def layers_thawed_by_adding_a_group(rows: Rows, make_private: MakePrivate) -> None:
    model = two_layers()
    private = make_private(model, torch.optim.SGD(model[2].parameters(), lr=0.1), rows)
    private.optimizer.add_param_group({"params": model[0].parameters()})


@wrong(vectors, refused("private already"))
def an_optimizer_made_private_twice(rows: Rows, make_private: MakePrivate) -> None:
    private = begin(rows, make_private)
    make_private(private.model, private.optimizer, rows)


@wrong(vectors, refused("WeightedRandomSampler", "shuffle=True"))
def a_weighted_sampler(rows: Rows, make_private: MakePrivate) -> None:
    fit(two_layers(), DataLoader(rows, batch_size=4, sampler=WeightedRandomSampler([1.0] * len(rows), 8)), make_private)


@wrong(vectors, refused("batch_sampler"))
def a_batch_sampler(rows: Rows, make_private: MakePrivate) -> None:
    sampler = BatchSampler(SequentialSampler(rows), 4, drop_last=False)
    fit(two_layers(), DataLoader(rows, batch_sampler=sampler), make_private)


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(vectors())


@wrong(vectors, refused("Stream", "map-style"))
def a_stream_of_examples(rows: Rows, make_private: MakePrivate) -> None:
    fit(two_layers(), DataLoader(Stream(), batch_size=4), make_private)


@wrong(vectors, refused("loader", "data set", error=HoarfrostError))
def the_private_loader_handed_to_make_private(rows: Rows, make_private: MakePrivate) -> None:
    private = begin(rows, make_private)
    fit(two_layers(), private.loader, make_private)


@wrong(vectors, refused("learning rate", error=Diverged))
def weights_that_have_blown_up(rows: Rows, make_private: MakePrivate) -> None:
    model, optimizer, loader = begin(rows, make_private)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            model[0].weight.data.mul_(torch.inf)
