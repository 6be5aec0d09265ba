"""Models, optimizers and schedules: what a recipe names is what is built."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from hoarfrost.data import Splits, digits
from hoarfrost.errors import InvalidValue
from hoarfrost.recipes import networks, optimizers, schedules
from hoarfrost.recipes.schedules import Cosine
from hoarfrost.recipes.schema import table
from tests.support.recipes import tiny


def splits(*shape: int, classes: int = 10) -> Splits:
    examples = TensorDataset(torch.zeros(2, *shape), torch.zeros(2, dtype=torch.long))
    return Splits(examples, examples, classes)


FITTING = [
    ({"name": "mlp", "hidden": []}, (7,)),
    ({"name": "mlp", "hidden": [5, 6]}, (3, 4)),
    ({"name": "cnn", "channels": [4]}, (3, 9, 8)),
    ({"name": "tanh_cnn"}, (3, 32, 32)),
    ({"name": "mnist_cnn"}, (1, 28, 28)),
]


@pytest.mark.parametrize(("wanted", "shape"), FITTING)
def test_a_model_fits_the_data(wanted: dict[str, object], shape: tuple[int, ...]) -> None:
    network = networks.build(tiny(model=wanted).model, splits(*shape, classes=4))
    assert network(torch.zeros(2, *shape)).shape == (2, 4)


MISFITS = [
    ({"name": "tanh_cnn"}, (1, 8, 8), r"tanh_cnn takes examples of shape \(3, 32, 32\), this data set has \(1, 8, 8\)"),
    ({"name": "cnn"}, (7,), "cnn takes images"),
    ({"name": "cnn", "channels": [4, 4, 4, 4]}, (1, 8, 8), "too often for 8x8 pixels"),
]


@pytest.mark.parametrize(("wanted", "shape", "message"), MISFITS)
def test_a_model_that_does_not_fit_is_refused_before_training(
    wanted: dict[str, object], shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(InvalidValue, match=message):
        networks.build(tiny(model=wanted).model, splits(*shape))


def test_token_ids_in_a_model_for_numbers_are_refused() -> None:
    tokens = TensorDataset(torch.zeros(2, 5, dtype=torch.long), torch.zeros(2, dtype=torch.long))
    with pytest.raises(
        InvalidValue, match=r"the model mlp cannot run on examples of shape \(5,\) and type torch.int64"
    ):
        networks.build(tiny().model, Splits(tokens, tokens, 2))


OPTIMIZERS = [
    ({"kind": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True}, torch.optim.SGD),
    ({"kind": "adam", "betas": [0.8, 0.9]}, torch.optim.Adam),
    ({"kind": "adamw", "weight_decay": 0.5}, torch.optim.AdamW),
    ({"kind": "rmsprop", "alpha": 0.5, "momentum": 0.1}, torch.optim.RMSprop),
]


@pytest.mark.parametrize(("wanted", "kind"), OPTIMIZERS)
def test_the_recipe_s_keys_are_the_optimizer_s_arguments(wanted: dict[str, object], kind: type) -> None:
    optimizer = optimizers.build(tiny(optimizer=wanted).optimizer, [nn.Parameter(torch.zeros(1))])
    assert type(optimizer) is kind
    for key, value in wanted.items():
        if key != "kind":
            assert optimizer.defaults[key] == (tuple(value) if isinstance(value, list) else value)


def test_warming_up_ends_at_the_full_learning_rate() -> None:
    cosine = Cosine(warmup=0.4, final=0.1)
    factors = [cosine.multiplier(step, 10, 0.1) for step in range(11)]
    assert factors[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert factors[-1] == pytest.approx(0.1)
    assert factors[4:] == sorted(factors[4:], reverse=True)


def test_the_learning_rate_follows_the_schedule_of_the_wrapped_optimizer() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    scheduler = schedules.build(table("schedule", "step")(every=1, factor=0.5), optimizer, steps=6, sample_rate=1 / 3)
    assert scheduler is not None
    rates = []
    for _ in range(6):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == [2.0, 2.0, 2.0, 1.0, 1.0, 1.0]


def test_the_digits_recipe_s_network_is_small() -> None:
    network = networks.build(table("model", "cnn")(channels=(16,)), digits())
    assert sum(p.numel() for p in network.parameters()) == 2730
