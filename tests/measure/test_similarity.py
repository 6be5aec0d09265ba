"""PWCCA and CKA of layers: as their definitions say, on odd shapes, and recorded without changing a run."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import hoarfrost
from hoarfrost.errors import InvalidValue
from hoarfrost.measure import Convergence, activations, cka, pwcca
from hoarfrost.measure.similarity import _basis
from tests.measure import slow_models as slow


def drawn(points: int, width: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(width, width, generator=generator, dtype=torch.float64)
    return torch.randn(points, width, generator=generator, dtype=torch.float64) @ mixing + 3


def related(points: int, first: int, second: int, noise: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(9)
    x = drawn(points, first, 1)
    y = x @ torch.randn(first, second, generator=generator, dtype=torch.float64)
    return x, y + noise * drawn(points, second, 2)


PAIRS = {
    "unrelated": (drawn(40, 5, 1), drawn(40, 7, 2)),
    "related": related(60, 6, 4, 1.0),
    "nearly the same": related(60, 6, 6, 1e-3),
    "one neuron": (drawn(20, 1, 1), drawn(20, 3, 2)),
    "few points": (drawn(8, 3, 1), drawn(8, 4, 2)),
    "scales apart": (1e4 * drawn(40, 5, 1), 1e-4 * related(40, 5, 3, 2.0)[1]),
}


@pytest.mark.parametrize("name", PAIRS)
def test_both_are_what_their_definitions_say(name: str) -> None:
    for x, y in (PAIRS[name], PAIRS[name][::-1]):
        assert pwcca(x, y) == pytest.approx(slow.pwcca(x.numpy(), y.numpy()), rel=1e-6)
        assert cka(x, y) == pytest.approx(slow.cka(x.numpy(), y.numpy()), rel=1e-9)


@pytest.mark.parametrize("name", PAIRS)
def test_the_correlations_are_the_cosines_between_the_subspaces(name: str) -> None:
    x, y = (t - t.mean(0) for t in PAIRS[name])
    found = torch.linalg.svdvals(_basis(x).T @ _basis(y))
    expected = np.cos(scipy.linalg.subspace_angles(x.numpy(), y.numpy()))
    np.testing.assert_allclose(np.sort(found.numpy()), np.sort(expected), atol=1e-9)


def test_cka_of_more_neurons_than_points() -> None:
    x, y = drawn(6, 30, 1), drawn(6, 4, 2)
    assert cka(x, y) == pytest.approx(slow.cka(x.numpy(), y.numpy()), rel=1e-9)


def test_what_they_do_not_mind() -> None:
    x, y = PAIRS["related"]
    rotation = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64)).Q
    for similarity in (pwcca, cka):
        assert similarity(x, x) == pytest.approx(1)
        assert similarity(x, 7 * x - 3) == pytest.approx(1)
        assert similarity(x, y + 100) == pytest.approx(similarity(x, y), rel=1e-6)
        assert similarity(x, -2 * y) == pytest.approx(similarity(x, y), rel=1e-6)
    assert cka(x @ rotation, y) == pytest.approx(cka(x, y))
    assert pwcca(x, y @ torch.randn(4, 4, dtype=torch.float64)) == pytest.approx(pwcca(x, y))  # any invertible matrix


def test_neurons_that_repeat_or_rest_add_no_dimensions() -> None:
    x, y = PAIRS["related"]
    repeated = torch.cat([y, y[:, :1] + y[:, 1:2], torch.full((60, 1), 1e3)], dim=1)
    assert pwcca(x, repeated) == pytest.approx(pwcca(x, y), rel=1e-6)
    assert pwcca(torch.cat([x, torch.zeros(60, 2)], dim=1), y) == pytest.approx(pwcca(x, y), rel=1e-6)


@pytest.mark.parametrize("similarity", [pwcca, cka])
def test_constant_layers_have_a_value(similarity: object) -> None:
    assert callable(similarity)
    constant, other = torch.full((10, 3), 0.1), torch.randn(10, 2)
    assert similarity(constant, constant + 1) == 1
    assert similarity(constant, other) == 0
    assert similarity(other, constant) == 0


def test_what_cannot_be_compared_is_refused() -> None:
    x = drawn(8, 4, 1)
    with pytest.raises(InvalidValue, match="with 4 and 4 dimensions needs more than 8 data points, got 8"):
        pwcca(x, drawn(8, 4, 2))
    for similarity in (pwcca, cka):
        with pytest.raises(InvalidValue, match="same data points, got 8 for the first, 7 for the second"):
            similarity(x, x[:7])
        with pytest.raises(InvalidValue, match="1 data points are too few"):
            similarity(x[:1], x[:1])
        with pytest.raises(InvalidValue, match="the second activations hold NaN"):
            similarity(x, x / 0)
        with pytest.raises(InvalidValue, match=r"must have the shape \[points, neurons\], got \[8, 2, 2\]"):
            similarity(x, x.view(8, 2, 2))


def network(width: int = 6, classes: int = 3) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, width, 3), nn.GroupNorm(2, width), nn.Tanh(), nn.Dropout(0.5), nn.Flatten(),
        nn.Linear(4 * width, 5), nn.Tanh(), nn.Linear(5, classes),
    )  # fmt: skip


def images(count: int = 40) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(count, 1, 4, 4, generator=generator), torch.arange(count) % 3
    return [(x[:7], y[:7]), (x[:0], y[:0]), (x[7:], y[7:])]


def test_what_a_layer_answers_at_each_place_is_a_point() -> None:
    model, batches = network().eval(), images()
    found = activations(model, batches)
    x = torch.cat([x for x, _ in batches])
    assert list(found.of) == ["0", "1", "5", "7"]
    assert found.places == {"0": 4, "1": 4, "5": 1, "7": 1}
    expected = [model[0](one[None])[0, :, row, column] for one in x for row in range(2) for column in range(2)]
    assert found.of["0"].allclose(torch.stack(expected), atol=1e-6)
    assert found.of["7"].allclose(model(x), atol=1e-6)
    tokens = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2))
    ids = torch.randint(9, (5, 3))
    assert activations(tokens, [(ids, torch.zeros(5))]).of["1"].equal(tokens(ids).flatten(0, 1))
    other = activations(model, batches, layers=["2"]).of["2"]
    assert other.allclose(model[:3](x).movedim(1, -1).flatten(0, 2), atol=1e-6)


def test_of_many_places_the_same_ones_are_chosen() -> None:
    batches = images()
    found = [activations(network(), batches, points=80).of["0"] for _ in range(2)]
    assert [len(each) for each in found] == [80, 80]
    model = network()
    every = activations(model, batches).of["0"].view(40, 4, -1)
    some = activations(model, batches, points=80).of["0"].view(40, 2, -1)
    where = [[int((every[i] == row).all(1).nonzero()) for row in some[i]] for i in range(40)]
    assert all(each == where[0] for each in where[:7])
    assert all(each == where[7] for each in where[7:])
    assert all(len(set(each)) == 2 for each in where)
    wide = [(x, y) for x, y in [(torch.randn(1, 1, 40, 40), torch.zeros(1))] * 2]
    one, other = activations(nn.Conv2d(1, 2, 3), wide, layers=[""], points=20).of[""].view(2, 10, 2)
    assert not one.allclose(other)  # of the same image, in two batches
    assert activations(model, batches, points=1).of["0"].shape == (40, 6)


def test_layers_are_compared_by_name_whatever_their_order_and_width() -> None:
    model, batches = network(), images()
    found = activations(model, batches)
    wider = activations(network(width=8), batches)
    scores = found.against(wider)
    assert list(scores) == ["0", "1", "5", "7"]
    assert scores["5"] == pwcca(found.of["5"], wider.of["5"])
    other_order = activations(model, batches)
    object.__setattr__(other_order, "of", dict(reversed(other_order.of.items())))
    assert found.against(other_order) == pytest.approx(dict.fromkeys(["0", "1", "5", "7"], 1.0))
    with pytest.raises(InvalidValue, match="by name, and the reference has no layer 1: name those"):
        found.against(activations(nn.Sequential(nn.Conv2d(1, 6, 3), nn.Flatten(), nn.Linear(24, 3)), batches))
    with pytest.raises(InvalidValue, match="only the reference has a layer 7"):
        activations(model, batches, layers=["0", "1", "5"]).against(found)
    smaller = nn.Sequential(nn.Conv2d(1, 6, 4), *list(network())[1:5], nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    with pytest.raises(InvalidValue, match="layer 0 has 4 places in each example, and the reference's has 1"):
        found.against(activations(smaller, batches))


def test_what_cannot_be_recorded_is_refused() -> None:
    with pytest.raises(InvalidValue, match="the model has no layer 9; there are 0, 1"):
        activations(network(), images(), layers=["9"])
    with pytest.raises(InvalidValue, match="no examples"):
        activations(network(), images()[1:2])
    with pytest.raises(InvalidValue, match="no layer of the model holds parameters"):
        activations(nn.ReLU(), images())
    with pytest.raises(InvalidValue, match="nothing was recorded"):
        Convergence(network(), images()).scores()

    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.used(x)
            return found

    batches = [(torch.ones(2, 2), torch.ones(2))]
    assert list(activations(Lazy(), batches).of) == ["used"]
    with pytest.raises(InvalidValue, match="does not use its layer unused"):
        activations(Lazy(), batches, layers=["unused"])


def trained(recorded: bool) -> tuple[dict[str, Tensor], Convergence]:
    """A private run on a seed, recorded or not."""
    torch.manual_seed(0)
    model = network()
    data = TensorDataset(torch.randn(60, 1, 4, 4), torch.randint(3, (60,)))
    shuffled: DataLoader[object] = DataLoader(TensorDataset(*images(40)[2]), batch_size=16, shuffle=True)
    private = hoarfrost.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.5), data, batch_size=20, epochs=3, noise_multiplier=1.0,
        delta=1e-4, seed=3,
    )  # fmt: skip
    before = torch.random.get_rng_state()
    record = Convergence(private.model, shuffled)  # type: ignore[arg-type]
    assert torch.random.get_rng_state().equal(before)
    for _ in range(3):
        for x, y in private.loader:
            if recorded:
                record(private.steps_taken)
            private.optimizer.zero_grad()
            F.cross_entropy(private.model(x), y).backward()
            if recorded:
                record(private.steps_taken + 1000)
            private.optimizer.step()
    assert private.model.training
    return {name: value.clone() for name, value in private.model.state_dict().items()}, record


def test_a_recorded_run_is_the_same_run() -> None:
    plain, _ = trained(recorded=False)
    watched, record = trained(recorded=True)
    assert all(value.equal(watched[name]) for name, value in plain.items())
    assert len(record.records) == 18
    scores = record.scores()
    assert scores[1008] == pytest.approx(dict.fromkeys(["0", "1", "5", "7"], 1.0))
    assert scores[0]["5"] < 0.999
    against_itself = record.scores(cka, reference=record.records[0])
    assert against_itself[0] == pytest.approx(dict.fromkeys(["0", "1", "5", "7"], 1.0))


def test_a_loader_that_shuffles_is_gone_through_once() -> None:
    shuffled: DataLoader[object] = DataLoader(TensorDataset(*images()[2]), batch_size=4, shuffle=True)
    record = Convergence(network(), shuffled)  # type: ignore[arg-type]
    record(0)
    torch.rand(1)  # or the loader would shuffle as before
    record(1)
    assert record.records[0].of["0"].equal(record.records[1].of["0"])


def test_modes_and_state_stay_as_they_are() -> None:
    model = nn.Sequential(nn.Linear(16, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    model.train()
    model[1].eval()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError):
        activations(model, [(torch.ones(3, 2), torch.zeros(3))])
    activations(model, [(torch.randn(3, 16), torch.zeros(3))])
    assert [module.training for module in model] == [True, False, True]
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())
