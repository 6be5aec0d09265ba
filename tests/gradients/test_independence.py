"""check_independence sees examples that mix; make_compatible puts right what can be put right."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hoarfrost
from hoarfrost.errors import InvalidValue, NotPrivate
from tests.gradients.loss_table import MIXES, RIGHT, Program
from tests.support.engines import clipped_sums, engine_for, sums_so_far

SEEDS = [seed if seed < 2 else pytest.param(seed, marks=pytest.mark.slow) for seed in range(40)]


class Centred(nn.Module):
    """Mixes examples without a layer that is known for it."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def cross_entropy(output: Tensor, batch: Any) -> Tensor:
    return F.cross_entropy(output, batch[1])


def test_independent_models_and_losses_pass() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    batch = (torch.randn(6, 4), torch.randint(3, (6,)))
    hoarfrost.check_independence(model, batch, cross_entropy)
    hoarfrost.check_independence(
        model, batch, lambda o, b: F.cross_entropy(o, b[1], reduction="sum"), loss_reduction="sum"
    )
    hoarfrost.check_independence(model, batch, lambda o, b: F.cross_entropy(o, b[1], reduction="none"))


@pytest.mark.parametrize(
    ("layer", "name"),
    [(nn.BatchNorm1d(8), "BatchNorm1d"), (nn.BatchNorm1d(8, affine=False), "BatchNorm1d"), (Centred(), "Centred")],
    ids=str,
)
def test_the_first_module_that_mixes_is_named(layer: nn.Module, name: str) -> None:
    model = nn.Sequential(nn.Linear(4, 8), layer, nn.Linear(8, 3))
    with pytest.raises(NotPrivate, match=rf"1 \({name}\): changing one example"):
        hoarfrost.check_independence(model, torch.randn(6, 4))


def test_running_statistics_are_put_back() -> None:
    model = nn.BatchNorm1d(4)
    before = model.running_mean.clone()
    with pytest.raises(NotPrivate):
        hoarfrost.check_independence(model, torch.randn(6, 4))
    assert torch.equal(model.running_mean, before)


def checked(program: Program) -> None:
    hoarfrost.check_independence(program.model, program.batch, program.loss, **program.options)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", MIXES)
def test_what_mixes_is_seen(name: str, seed: int) -> None:
    torch.manual_seed(seed)
    program = MIXES[name]()
    with pytest.raises(NotPrivate):
        checked(program)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", RIGHT)
def test_what_does_not_mix_is_not_accused(name: str, seed: int) -> None:
    torch.manual_seed(seed)
    checked(RIGHT[name]())


NAMED = {
    "CrossEntropyLoss(weight=[1, 100])": r"^the loss: .* class weights .*optimizer\.backward\(losses\)",
    "mean over tokens that are not padding": "^the loss: .*ignore_index.*hoarfrost.losses",
    "[B, 1] against [B]": r"^the loss: .*\[B, 1\] against \[B\]",
    "contrastive": "^the loss: leaving out one example",
    "BatchNorm": r"^2 \(BatchNorm1d\): changing one example .*make_compatible",
    "[B, B] logits of the model": r"^the model \(TwoTowers\): changing one example",
    "a mean that is subtracted": r"^what reaches head \(Linear\): changing one example",
    "a backward hook over the batch": r"^the loss, or a backward hook of 1:",
    "a running mean": "keeps something of what it has seen",
}


@pytest.mark.parametrize("name", NAMED)
def test_what_mixes_is_named_with_what_to_write(name: str) -> None:
    torch.manual_seed(1)
    with pytest.raises(NotPrivate, match=NAMED[name]):
        checked(MIXES[name]())


def test_every_example_of_a_small_batch_is_tested() -> None:
    """Only the last one has a say in the others."""
    x = torch.randn(7, 4)

    def bent(output: Tensor, batch: Tensor) -> Tensor:
        known = (batch == x[-1].to(batch.dtype)).all(1).any()
        return output.sum(1).mean() * (2 if known and len(batch) > 1 else 1)

    with pytest.raises(NotPrivate, match="the loss"):
        hoarfrost.check_independence(nn.Linear(4, 3), x, bent)


def test_what_shows_only_in_a_smaller_batch_is_seen() -> None:
    def bent(output: Tensor, batch: Tensor) -> Tensor:
        return output.sum(1).mean() * (2 if len(batch) == 4 else 1)

    with pytest.raises(NotPrivate, match="the loss: leaving out one example"):
        hoarfrost.check_independence(nn.Linear(4, 3), torch.randn(5, 4), bent)


def test_where_all_labels_are_equal_another_one_is_tried() -> None:
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 100.0]))
    for label in (0, 1):
        batch = torch.randn(5, 4), torch.full((5,), label)
        with pytest.raises(NotPrivate, match="the loss: changing one example"):
            hoarfrost.check_independence(nn.Linear(4, 2), batch, lambda o, b: weighted(o, b[1]))


def test_padding_to_the_longest_shows_only_where_batches_are_collated_anew() -> None:
    torch.manual_seed(0)
    program = MIXES["padding to the longest, and a mean over all"]()
    dataset, collate = program.options["dataset"], program.options["collate"]
    hoarfrost.check_independence(program.model, collate(list(dataset)), program.loss)
    with pytest.raises(NotPrivate, match="the loss"):
        hoarfrost.check_independence(program.model, len(dataset), program.loss, dataset=dataset, collate=collate)


def test_a_data_set_is_collated_as_a_loader_would() -> None:
    data = TensorDataset(torch.randn(20, 4), torch.randint(3, (20,)))
    hoarfrost.check_independence(nn.Linear(4, 3), [3, 1, 19, 7], lambda o, b: F.cross_entropy(o, b[1]), dataset=data)
    with pytest.raises(InvalidValue, match="list of indices"):
        hoarfrost.check_independence(nn.Linear(4, 3), data[:4], cross_entropy, dataset=data)
    with pytest.raises(InvalidValue, match="needs loss="):
        hoarfrost.check_independence(nn.Linear(4, 3), 4, dataset=data)


def test_names_and_lengths_in_lists_go_with_their_examples() -> None:
    def by_name(output: Tensor, batch: Any) -> Tensor:
        assert len(output) == len(batch[1])
        return torch.stack([o.square().sum() * len(name) for o, name in zip(output, batch[1], strict=True)]).mean()

    hoarfrost.check_independence(nn.Linear(4, 3), (torch.randn(4, 4), ["a", "bb", "ccc", "d"]), by_name)


def test_nothing_is_left_behind() -> None:
    """Weights, buffers, gradients, hooks, modes and all random states are as they were."""

    class Busy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.drop = nn.Linear(4, 3), nn.Dropout(0.5)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.seen += 1
            with torch.no_grad():
                self.inner.bias += 1
            return self.drop(self.inner(x))

        def __deepcopy__(self, memo: Any) -> Any:
            raise RuntimeError("cannot be copied")

    model = Busy()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    hoarfrost.check_independence(model, torch.randn(5, 4))
    assert states[1] == random.getstate()
    assert (states[2] == np.random.get_state()[1]).all()
    for name, t in model.state_dict().items():
        assert torch.equal(t, before[name]), name
    assert model.training
    assert model.inner.weight.grad is None
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    torch.set_rng_state(states[0])
    first = torch.randn(3)
    torch.set_rng_state(states[0])
    hoarfrost.check_independence(model, torch.ones(5, 4))
    assert torch.equal(torch.randn(3), first)


def test_random_numbers_of_others_than_torch_are_not_taken_for_mixing() -> None:
    def noisy(output: Tensor, batch: Any) -> Tensor:
        return (output * torch.tensor(np.random.randn(*output.shape))).sum(1).mean()

    with pytest.raises(InvalidValue, match="draw them with torch"):
        hoarfrost.check_independence(nn.Linear(4, 3), torch.randn(5, 4), noisy)


def test_a_loss_of_another_shape_is_refused() -> None:
    with pytest.raises(InvalidValue, match="a single number, or one for each of the 5 rows"):
        hoarfrost.check_independence(nn.Linear(4, 3), torch.randn(5, 4), lambda output, batch: output)


def test_it_works_on_a_private_model_and_leaves_nothing_in_it() -> None:
    model = nn.Linear(4, 3)
    engine = engine_for(model)
    x = torch.randn(6, 4)
    hoarfrost.check_independence(model, x, lambda output, batch: output.square().mean(1).mean())
    assert not sums_so_far(engine)
    assert clipped_sums(engine, x, lambda output: output.sum())


def test_dictionaries_are_keyword_arguments() -> None:
    class Keyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, *, numbers: Tensor, scale: Tensor) -> Tensor:
            return self.inner(numbers) * scale[:, None]

    hoarfrost.check_independence(Keyword(), {"numbers": torch.randn(5, 4), "scale": torch.randn(5)})


def test_two_examples_are_too_few() -> None:
    with pytest.raises(InvalidValue, match="at least 3"):
        hoarfrost.check_independence(nn.Linear(4, 3), torch.randn(2, 4))


def test_make_compatible_swaps_what_mixes_and_says_so() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48), nn.InstanceNorm2d(48, affine=True, track_running_stats=True),
        nn.Sequential(nn.BatchNorm2d(48, affine=False)), nn.Flatten(), nn.LazyLinear(2),
    )  # fmt: skip
    model(torch.randn(2, 3, 6, 6))
    with torch.no_grad():
        model[1].weight.uniform_()
    scale = model[1].weight.clone()
    changes: list[str] = []
    assert hoarfrost.make_compatible(model, tell=changes.append) is model
    assert changes == [
        "1: BatchNorm2d(48) → GroupNorm(24, 48)",
        "2: InstanceNorm2d(48) → InstanceNorm2d without running statistics",
        "3.0: BatchNorm2d(48) → GroupNorm(24, 48)",
    ]
    assert torch.equal(model[1].weight, scale)
    assert model[3][0].weight is None
    hoarfrost.check_independence(model, torch.randn(4, 3, 6, 6))
    assert clipped_sums(engine_for(model), torch.randn(4, 3, 6, 6), lambda output: output.sum())
    assert hoarfrost.make_compatible(model, tell=changes.append) is model
    assert len(changes) == 3, "nothing is left to be swapped"


def test_a_model_that_is_a_batch_norm_itself_is_replaced() -> None:
    changes: list[str] = []
    model = hoarfrost.make_compatible(nn.BatchNorm1d(7), tell=changes.append)
    assert isinstance(model, nn.GroupNorm)
    assert changes == ["the model: BatchNorm1d(7) → GroupNorm(1, 7)"]


def test_the_guide_counts_the_programs() -> None:
    page = (Path(__file__).parents[2] / "docs/losses.md").read_text().replace("\n", " ")
    assert f"{len(MIXES)} programs that mix and {len(RIGHT)} that do not, on {len(SEEDS)} random batches" in page
