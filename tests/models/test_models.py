"""The networks have the size and shape their papers give."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from hoarfrost import models

NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, Callable[[], Tensor], int]] = {
    # name: network, parameters, two examples, classes
    "tanh_cnn": (models.tanh_cnn, 550_570, lambda: torch.randn(2, 3, 32, 32), 10),
    "mnist_cnn": (models.mnist_cnn, 26_010, lambda: torch.randn(2, 1, 28, 28), 10),
    "mnist_cnn with tempered sigmoids": (
        lambda: models.mnist_cnn(activation=models.TemperedSigmoid),
        26_010,
        lambda: torch.randn(2, 1, 28, 28),
        10,
    ),
    "lenet": (models.lenet, 44_426, lambda: torch.randn(2, 1, 28, 28), 10),
    "resnet18": (models.resnet18_groupnorm, 11_173_962, lambda: torch.randn(2, 3, 32, 32), 10),
    "mlp": (lambda: models.mlp(784, 1024, 1024, 10), 1_863_690, lambda: torch.randn(2, 784), 10),
    "encoder": (models.encoder, 22_713_218, lambda: torch.randint(30522, (2, 64)), 2),
}


@cache
def built(name: str) -> nn.Module:
    return NETWORKS[name][0]()


each_network = pytest.mark.parametrize("name", NETWORKS)


@each_network
def test_the_number_of_parameters_is_the_documented_one(name: str) -> None:
    assert sum(p.numel() for p in built(name).parameters()) == NETWORKS[name][1]


@each_network
def test_every_example_gets_its_logits_and_every_parameter_a_gradient(name: str) -> None:
    model, (_, _, examples, classes) = built(name), NETWORKS[name]
    logits = model(examples())
    assert logits.shape == (2, classes)
    logits.square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@each_network
def test_an_example_s_logits_do_not_depend_on_its_neighbours(name: str) -> None:
    model, batch = built(name), NETWORKS[name][2]()
    with torch.no_grad():
        torch.testing.assert_close(model(batch)[:1], model(batch[:1]), rtol=1e-4, atol=1e-5)


@each_network
def test_no_network_carries_buffers(name: str) -> None:
    assert list(built(name).buffers()) == []


def test_the_encoder_takes_one_row_of_positions_for_all_or_one_for_each() -> None:
    model, tokens = built("encoder"), torch.randint(30522, (2, 16))
    positions = torch.arange(16)
    with torch.no_grad():
        default = model(tokens)
        torch.testing.assert_close(model(tokens, positions.expand(2, 16)), default)
        assert not torch.allclose(model(tokens, positions.flip(0)[None]), default)


def test_the_number_of_classes_can_be_chosen() -> None:
    assert models.tanh_cnn(classes=7)(torch.randn(1, 3, 32, 32)).shape == (1, 7)
    assert models.lenet(classes=7)(torch.randn(1, 1, 28, 28)).shape == (1, 7)
    assert models.mnist_cnn(classes=7)(torch.randn(1, 1, 28, 28)).shape == (1, 7)
    assert models.resnet18_groupnorm(classes=7)(torch.randn(1, 3, 32, 32)).shape == (1, 7)
    assert models.encoder(classes=7)(torch.zeros(1, 8, dtype=torch.long)).shape == (1, 7)
