"""check_independence sees examples that mix; make_compatible puts right what can be put right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hoarfrost
from hoarfrost.errors import InvalidValue, NotPrivate
from tests.support.engines import clipped_sums, engine_for, sums_so_far


class Centred(nn.Module):
    """Mixes examples without a layer that is known for it."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 9)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.embedding(words))


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


def test_a_contrastive_loss_mixes() -> None:
    def contrastive(output: Tensor, batch: Any) -> Tensor:
        return F.cross_entropy(output @ output.T, torch.arange(len(output)))

    with pytest.raises(NotPrivate, match="the loss: changing one example"):
        hoarfrost.check_independence(nn.Linear(4, 3), torch.randn(6, 4), contrastive)


def test_ignored_targets_in_the_mean_s_denominator_mix() -> None:
    """A mean over the tokens that are not ignored divides every example by how many tokens the others have."""
    words = torch.randint(9, (5, 6))
    targets = words.clone()
    targets[0, 1:] = -100
    targets[2, 4:] = -100

    def over_tokens(output: Tensor, batch: Any) -> Tensor:
        return F.cross_entropy(output.flatten(0, 1), batch[1].flatten())

    def over_examples(output: Tensor, batch: Any) -> Tensor:
        return F.cross_entropy(output.mT, batch[1], reduction="none").sum(1).mean()

    with pytest.raises(NotPrivate, match="ignore_index"):
        hoarfrost.check_independence(LanguageModel(), (words, targets), over_tokens)
    hoarfrost.check_independence(LanguageModel(), (words, targets), over_examples)


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
