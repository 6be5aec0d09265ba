"""Attacks find what is there, and nothing where nothing is; what they find is told beside the bound."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from hoarfrost.errors import InvalidValue
from hoarfrost.measure import Logistic, Membership, Tradeoff, label_log_odds, lira, loss_threshold, nll
from tests.measure import slow


def normal(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def outputs(count: int, *, seed: int, sure: float = 0.0, classes: int = 4) -> tuple[Tensor, Tensor]:
    """Random logits and labels; the label's logit is larger by ``sure``."""
    labels = torch.randint(classes, (count,), generator=torch.Generator().manual_seed(1000 + seed))
    logits = normal(count, classes, seed=seed)
    return logits.scatter_add(1, labels[:, None], torch.full((count, 1), sure, dtype=torch.float64)), labels


def logistic(members: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor]) -> Membership:
    """Fitted on the first half of both, measured on the rest."""
    m, n = len(members[1]) // 2, len(others[1]) // 2
    fitting = [torch.cat([a[:m], b[:n]]) for a, b in zip(members, others, strict=True)]
    attack = Logistic.fit(*fitting, member=torch.arange(m + n) < m)
    kept = [tuple(each[half:] for each in part) for part, half in ((members, m), (others, n))]
    return Membership.of(*(attack(*part) for part in kept), (kept[0][1], kept[1][1]))


def test_the_loss_threshold_takes_small_losses_for_members() -> None:
    losses = torch.tensor([0.5, 3.0, math.inf, 0.0])
    assert loss_threshold(losses).argsort(descending=True).tolist() == [3, 0, 1, 2]
    with pytest.raises(InvalidValue, match="losses must not be NaN: the model has diverged"):
        loss_threshold(torch.tensor([1.0, math.nan]))
    for wrong in (torch.ones(2, 2), torch.ones(2, dtype=torch.int64)):
        with pytest.raises(InvalidValue, match="losses must be a tensor of real numbers"):
            loss_threshold(wrong)


def test_logistic_regression_finds_members_that_the_model_is_sure_of() -> None:
    found = logistic(outputs(2000, seed=1, sure=1.5), outputs(2000, seed=2))
    losses = [torch.tensor([nll(x[None], y[None]) for x, y in zip(*outputs(1000, seed=s, sure=sure), strict=True)])
              for s, sure in ((3, 1.5), (4, 0.0))]  # fmt: skip
    best = Membership.of(*map(loss_threshold, losses))
    assert found.auc.value > best.auc.value > 0.75  # it sees all that the loss tells, and the logits' sum in addition
    assert sorted(found.classes) == [0, 1, 2, 3]
    assert all(roc.auc.value > 0.7 for roc in found.classes.values())


def test_it_finds_nothing_where_members_are_like_others() -> None:
    found = logistic(outputs(3000, seed=5, sure=1.0), outputs(3000, seed=6, sure=1.0))
    assert found.auc.low < 0.5 < found.auc.high


def test_logistic_regression_needs_both_kinds_and_the_same_classes() -> None:
    logits, labels = outputs(10, seed=7)
    for member in (torch.ones(10), torch.ones(9, dtype=torch.bool)):
        with pytest.raises(InvalidValue, match="member must be a tensor of bools"):
            Logistic.fit(logits, labels, member)
    for everybody in (torch.ones(10, dtype=torch.bool), torch.zeros(10, dtype=torch.bool)):
        with pytest.raises(InvalidValue, match="on members and on non-members"):
            Logistic.fit(logits, labels, everybody)
    attack = Logistic.fit(logits, labels, torch.arange(10) < 5)
    with pytest.raises(InvalidValue, match="fitted on 4 classes, got 5"):
        attack(torch.zeros(3, 5), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(InvalidValue, match="logits must be finite"):
        attack(torch.full((3, 4), math.nan), torch.zeros(3, dtype=torch.int64))


def test_two_classes_may_have_one_logit() -> None:
    one, labels = normal(30, seed=8), torch.arange(30) % 2
    attack = Logistic.fit(one, labels, torch.arange(30) < 15)
    assert torch.equal(attack(one, labels), attack(torch.stack([torch.zeros_like(one), one], 1), labels))


def test_log_odds_are_finite_where_probabilities_round_to_one() -> None:
    logits = torch.tensor([[100.0, 0.0, 0.0], [0.0, 0.5, -0.5], [800.0, 0.0, 0.0]])
    labels = torch.tensor([0, 2, 1])
    assert label_log_odds(logits, labels)[0] == pytest.approx(100 - math.log(2))
    p = slow.probabilities(logits[1].tolist())[2]
    assert label_log_odds(logits, labels)[1] == pytest.approx(math.log(p / (1 - p)))
    assert label_log_odds(logits, labels)[2] == -800


def shadow_models(models: int, examples: int, seed: int) -> Tensor:
    """Which was trained on which: every second one is the other's complement."""
    half = torch.rand(models // 2, examples, generator=torch.Generator().manual_seed(seed)) < 0.5
    return torch.cat([half, ~half])


@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize(("models", "examples"), [(4, 7), (8, 3), (6, 1)])
def test_lira_is_the_slow_one(models: int, examples: int, online: bool) -> None:
    target, shadows = normal(examples, seed=9), normal(models, examples, seed=10)
    included = shadow_models(models, examples, 11)
    expected = slow.lira(target.tolist(), shadows.tolist(), included.tolist(), online)
    assert lira(target, shadows, included, online=online).tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("online", [True, False])
def test_lira_finds_examples_by_how_they_differ_from_themselves(online: bool) -> None:
    """Each example's own difficulty hides membership from a threshold, and not from LiRA."""
    count, difficulty = 1000, normal(2000, seed=12, scale=5.0)
    member = torch.arange(2 * count) < count
    included = shadow_models(8, 2 * count, 13)
    shadows = difficulty + 1.0 * included + normal(8, 2 * count, seed=14, scale=0.5)
    target = difficulty + 1.0 * member + normal(2 * count, seed=15, scale=0.5)
    scores = lira(target, shadows, included, online=online)
    assert Membership.of(scores[member], scores[~member]).auc.low > 0.8
    assert Membership.of(target[member], target[~member]).auc.high < 0.65
    blind = difficulty + normal(2 * count, seed=16, scale=0.5)  # a model that was trained on none of them
    scores = lira(blind, shadows, included, online=online)
    found = Membership.of(scores[member], scores[~member])
    assert found.auc.low < 0.5 < found.auc.high


def test_shadow_models_that_agree_give_finite_scores() -> None:
    included = shadow_models(4, 3, 17)
    scores = lira(torch.tensor([0.0, 1.0, math.inf]), torch.zeros(4, 3), included)
    assert scores.isfinite().all()
    assert scores.tolist() == [0, 0, 0]  # with the example and without it the shadow models say the same


@pytest.mark.parametrize(
    ("target", "shadows", "included", "message"),
    [
        (torch.zeros(2), torch.zeros(4, 3), torch.zeros(4, 3, dtype=torch.bool), "target must have the shape"),
        (torch.zeros(3), torch.zeros(4, 3), torch.zeros(4, 3), "included must be a tensor of bools"),
        (torch.zeros(0), torch.zeros(4, 0), torch.zeros(4, 0, dtype=torch.bool), "there are no examples"),
        (torch.full((3,), math.nan), torch.zeros(4, 3), shadow_models(4, 3, 0), "must not be NaN"),
        (torch.zeros(3), torch.zeros(2, 3), shadow_models(2, 3, 0), "at least 2, and at least 2"),
        (torch.zeros(3), torch.zeros(6, 3), torch.rand(6, 3).argsort(0) < torch.tensor([2, 3, 3]), "the same number"),
    ],
)
def test_what_lira_cannot_use_is_refused(target: Tensor, shadows: Tensor, included: Tensor, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        lira(target, shadows, included)


def test_classes_need_both_kinds() -> None:
    members, others = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 2.5])
    found = Membership.of(members, others, (torch.tensor([0, 0, 1]), torch.tensor([0, 2])))
    assert list(found.classes) == [0]
    assert found.classes[0].auc.value == slow.auc([1.0, 2.0], [0.0])
    assert found.class_rows()[0]["members"] == 2
    with pytest.raises(InvalidValue, match="labels of non_members must be integers, one for each score"):
        Membership.of(members, others, (torch.tensor([0, 0, 1]), torch.tensor([0])))


def test_an_attack_that_beats_the_bound_is_a_red_flag() -> None:
    members, others = normal(2000, seed=18) + 2, normal(2000, seed=19)
    claims = {claim: Tradeoff([(claim, 1e-5)]) for claim in (0.5, 2.0, 8.0)}
    flags = {claim: Membership.of(members, others, bound=bound).red_flags for claim, bound in claims.items()}
    assert len(flags[0.5]) == 3  # the area, and both rates
    assert "AUC 0.9" in flags[0.5][0]
    assert "where at most 0.622 is possible" in flags[0.5][0]
    assert "TPR" in flags[0.5][1]
    assert flags[8.0] == ()
    assert Membership.of(members, others).red_flags == ()  # nothing is claimed


def test_what_chance_can_explain_is_no_red_flag() -> None:
    """Three members of three found: at ε 1 that happens."""
    bound = Tradeoff([(1.0, 1e-5)])
    assert Membership.of(torch.ones(3), torch.zeros(3), bound=bound).red_flags == ()
    assert len(Membership.of(torch.ones(30), torch.zeros(30), bound=bound).red_flags) > 0


def test_a_mechanism_at_its_bound_is_seldom_flagged() -> None:
    """Randomised response at ε 1 leaks all that it claims."""
    epsilon, flagged = 1.0, 0
    for seed in range(200):
        draws = torch.rand(2, 1000, generator=torch.Generator().manual_seed(seed))
        truth = draws < math.exp(epsilon) / (1 + math.exp(epsilon))
        scores = truth[0].double(), (~truth[1]).double()
        found = Membership.of(*scores, bound=Tradeoff([(epsilon, 0.0)]))
        flagged += bool(found.red_flags)
    assert flagged < 0.125 * 200


def test_rows_have_the_same_columns() -> None:
    members, others, labels = normal(20, seed=20), normal(30, seed=21), torch.arange(20) % 2
    found = Membership.of(members, others, (labels, torch.arange(30) % 2), bound=Tradeoff([(1.0, 1e-5)]))
    rows = found.class_rows()
    assert set(rows[0]) == set(rows[1]) < set(found.row())
    assert found.row()["auc_bound"] == pytest.approx(0.731, abs=1e-3)
    assert found.row()["tpr_bound_at_0.01"] == pytest.approx(math.e * 0.01 + 1e-5)
