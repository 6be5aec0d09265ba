"""A person's gradient is the mean over the rows that they bring, clipped once: against a loop over people and rows."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from hoarfrost.clipping import Local
from hoarfrost.errors import NotPrivate
from hoarfrost.gradients import Engine, apart
from hoarfrost.groups import Groups
from hoarfrost.masks import resolve_mask
from hoarfrost.sampling import Chunk
from tests import oracle
from tests.gradients.settings import TABLE, Setting, copied, projected


def total_loss(model: nn.Module, batch: object) -> Tensor:
    return projected(model(batch)).sum()


def sizes_for(rows: int) -> list[int]:
    """So many rows in uneven groups: 1, 3, 2, 1, 3, 2, ..."""
    sizes: list[int] = []
    while sum(sizes) < rows:
        sizes.append(min((1, 3, 2)[len(sizes) % 3], rows - sum(sizes)))
    return sizes


def hand_over(engine: Engine, sizes: list[int], most: int, *, first: bool = True, last: bool = True) -> None:
    groups = Groups(most, sizes)
    engine.sums.tickets.hand_over(Chunk(examples=len(sizes), first=first, last=last, groups=groups))


def engine_of(model: nn.Module, clip_norm: float, reduction: str = "sum", dim: int = 0) -> Engine:
    live = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return Engine(model, live, Local(clip_norm), loss_reduction=reduction, batch_first=dim == 0)


@pytest.mark.parametrize("setting", TABLE, ids=lambda s: s.name)
@pytest.mark.parametrize("frozen", [False, True], ids=["", "some frozen"])
def test_clipped_sums_of_people_equal_the_oracle(setting: Setting, frozen: bool) -> None:
    torch.manual_seed(3)
    plain = setting.model()
    batch = setting.inputs()
    sizes = sizes_for(oracle._rows(batch, setting.dim))
    per_person = oracle.people(plain, batch, total_loss, sizes, dim=setting.dim)
    masks = {name: torch.rand(p.shape) < 0.6 for name, p in plain.named_parameters() if p.requires_grad}
    for mask in masks.values():
        mask.view(-1)[:2] = True
    if frozen:
        per_person = oracle.masked(per_person, masks)
    clip_norm = oracle.halving_norm(per_person)
    expected = oracle.clipped_sum(per_person, clip_norm)
    for reduction in ("sum",) if frozen else ("sum", "mean"):
        model = copied(plain, setting)
        engine = engine_of(model, clip_norm, reduction, setting.dim)
        if frozen:
            engine.masks = {name: resolve_mask(mask, model.get_parameter(name)) for name, mask in masks.items()}
        hand_over(engine, sizes, most=5)
        losses = projected(model(batch))
        (losses.sum() if reduction == "sum" else losses.mean()).backward()
        found = engine.release().sums
        for name, want in expected.items():
            got = found.get(name, torch.zeros_like(want))
            torch.testing.assert_close(
                got, want.to(got.dtype), rtol=2e-4, atol=1e-5 * clip_norm, msg=lambda m, n=name: f"{n}: {m}"
            )


def test_a_hostile_person_moves_the_sum_by_the_bound_however_many_rows_they_bring() -> None:
    torch.manual_seed(0)
    model, others = nn.Linear(4, 3), torch.randn(5, 4)

    def summed(x: Tensor, sizes: list[int]) -> Tensor:
        engine = engine_of(copy.deepcopy(model), 1.0)
        hand_over(engine, sizes, most=7)
        engine.model(x).square().sum().backward()
        return torch.cat([t.flatten() for _, t in sorted(engine.release().sums.items())])

    before = summed(others, [2, 3])
    for rows in range(1, 8):
        after = summed(torch.cat([others, 1e3 * torch.ones(rows, 4)]), [2, 3, rows])
        assert 0.999 < (after - before).norm() <= 1.0001
    broken = torch.full((3, 4), torch.nan)
    broken[1:] = 1.0
    torch.testing.assert_close(summed(torch.cat([others, broken]), [2, 3, 3]), before)


def test_what_a_person_brings_does_not_change_how_others_are_computed() -> None:
    """Methods are chosen by shapes: those depend on the public limit alone, to the last bit of other people's norms."""
    torch.manual_seed(0)
    x, model = torch.randn(4, 6, 5), nn.Linear(5, 40)
    shapes = []

    for sizes in ([1, 1], [1, 3]):
        groups = Groups(8, sizes)
        shapes.append(groups.split(model(x[: sum(sizes)])).shape)
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("norm", [nn.LayerNorm(3, eps=0.0), nn.GroupNorm(1, 3, eps=0.0)], ids=["layer", "group"])
def test_rows_that_nobody_brings_divide_by_nothing(norm: nn.Module) -> None:
    """A rule that divides by what it saw must not meet made-up zeros, or people with few rows would be left out."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 3), norm, nn.Linear(3, 2))
    x, sizes = torch.randn(6, 4), [1, 3, 2]
    per_person = oracle.people(plain, x, total_loss, sizes)
    expected = oracle.clipped_sum(per_person, clip_norm := oracle.halving_norm(per_person))
    engine = engine_of(copy.deepcopy(plain), clip_norm)
    hand_over(engine, sizes, most=4)
    projected(engine.model(x)).sum().backward()
    assert engine.dropped == 0
    for name, found in engine.release().sums.items():
        torch.testing.assert_close(found, expected[name], rtol=1e-4, atol=1e-5 * clip_norm)


def test_a_backward_pass_over_part_of_a_batch_is_refused() -> None:
    model = nn.Linear(4, 3)
    engine = engine_of(model, 1.0)
    x = torch.randn(6, 4)
    hand_over(engine, [2, 3, 1], most=3)
    with pytest.raises(NotPrivate, match="whose its rows are cannot be known"):
        model(x[:3]).sum().backward()


def test_runs_on_two_batches_may_overlap() -> None:
    """What a tap knows of whose rows it saw is that of its own run, not of the last one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    plain = copy.deepcopy(model)
    one, other = torch.randn(5, 4), torch.randn(5, 4)
    per_person = oracle.people(plain, one, total_loss, [4, 1])
    norm = oracle.halving_norm(per_person)
    engine = engine_of(model, norm)
    hand_over(engine, [4, 1], most=4)
    losses = projected(model(one)).sum()
    with torch.enable_grad():
        hand_over(engine, [1, 4], most=4)
        model(other)
    losses.backward()
    want = oracle.clipped_sum(per_person, norm)
    assert engine.sums.total is not None
    for name, found in engine.sums.total.sums.items():
        torch.testing.assert_close(found, want[name], rtol=1e-4, atol=1e-5 * norm)


def test_losses_of_an_earlier_run_are_not_looked_at_as_the_last_ones() -> None:
    """As many rows of other people: what is right must not be refused for it."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    engine, sizes = engine_of(model, 1.0), [4, 1, 3, 2]
    for _ in range(apart.BATCHES):
        hand_over(engine, sizes, most=4)
        losses = projected(model(torch.randn(10, 4)))
        engine.apart.check(engine, losses)
    engine.apart = apart.Apart()
    for _ in range(apart.BATCHES):
        hand_over(engine, sizes, most=4)
        losses = projected(model(torch.randn(10, 4)))
        hand_over(engine, sizes[::-1], most=4)
        model(torch.randn(10, 4))
        engine.apart.check(engine, losses)
    hand_over(engine, sizes, most=4)
    losses = projected(model(torch.randn(10, 4)))
    with pytest.raises(NotPrivate, match="an example's loss depends on other examples"):
        apart.Apart().check(engine, losses * losses.sum())


def test_an_empty_batch_of_people_adds_nothing() -> None:
    model = nn.Linear(4, 3)
    engine = engine_of(model, 1.0)
    hand_over(engine, [], most=3)
    model(torch.zeros(0, 4)).sum().backward()
    assert engine.release().sums == {}
