"""The figures of a test set, against scikit-learn, torchmetrics and plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.metrics import r2_score, roc_auc_score
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from torchmetrics.classification import BinaryAUROC
from torchmetrics.regression import MeanSquaredError, R2Score

from hoarfrost.errors import InvalidValue
from hoarfrost.measure import Calibration
from hoarfrost.recipes.losses import Binary, CrossEntropy, Huber, Loss, SquaredError
from hoarfrost.train.evaluation import Average, auroc, evaluate, mse, r2

CPU = torch.device("cpu")


def evaluated(loss: Loss, outputs: Tensor, targets: Tensor) -> dict[str, float]:
    return dict(evaluate(nn.Identity(), TensorDataset(outputs, targets), CPU, loss).figures)


@pytest.mark.parametrize("places", [0, 1, 3, 12])
def test_auroc_is_that_of_scikit_learn_and_torchmetrics_ties_or_not(places: int) -> None:
    torch.manual_seed(places)
    labels = (torch.rand(200) < 0.3).long()
    scores = ((torch.randn(200) + labels) * 10**places).round() / 10**places  # with few places, many ties
    assert auroc(scores, labels) == pytest.approx(roc_auc_score(labels.numpy(), scores.numpy()))
    assert auroc(scores, labels) == pytest.approx(float(BinaryAUROC()(scores.sigmoid(), labels)), abs=1e-6)


def test_auroc_of_a_loop_over_pairs() -> None:
    scores, labels = torch.tensor([0.5, 0.5, 0.5, -1.0, 3.0, 0.5]), torch.tensor([1, 0, 1, 0, 0, 1])
    pairs = [(p, n) for p in scores[labels == 1].tolist() for n in scores[labels == 0].tolist()]
    assert auroc(scores, labels) == pytest.approx(sum((p > n) + 0.5 * (p == n) for p, n in pairs) / len(pairs))


def test_regression_figures_are_those_of_scikit_learn_and_torchmetrics() -> None:
    torch.manual_seed(0)
    targets = torch.randn(300) * 7 + 1000  # far from zero, where sums of squares would lose digits
    predicted = targets + torch.randn(300)
    assert r2(predicted, targets) == pytest.approx(r2_score(targets.numpy(), predicted.numpy()), rel=1e-5)
    assert r2(predicted, targets) == pytest.approx(float(R2Score()(predicted.double(), targets.double())), rel=1e-4)
    assert mse(predicted, targets) == pytest.approx(float(MeanSquaredError()(predicted, targets)), rel=1e-5)


def test_what_cannot_be_computed_is_nan() -> None:
    assert math.isnan(auroc(torch.randn(3), torch.ones(3)))
    assert math.isnan(auroc(torch.tensor([1.0, math.nan]), torch.tensor([0, 1])))
    assert math.isnan(r2(torch.randn(3), torch.ones(3)))
    found = evaluated(CrossEntropy(), torch.full((3, 2), math.nan), torch.tensor([0, 1, 1]))
    assert math.isnan(found["nll"])
    assert math.isnan(found["ece"])
    assert 0 <= found["accuracy"] <= 1


def test_every_task_has_its_figures_over_more_than_one_batch() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(1500, 3), torch.randint(3, (1500,))
    found = evaluated(CrossEntropy(), logits, labels)
    assert list(found) == ["loss", "accuracy", "nll", "brier", "ece", "mce"]
    expected = Calibration.of(logits.double(), labels)
    assert (found["ece"], found["mce"], found["brier"]) == (expected.ece, expected.mce, expected.brier)
    assert found["nll"] == pytest.approx(found["loss"], rel=1e-5)
    assert found["accuracy"] == pytest.approx(expected.accuracy)

    targets = torch.randn(1500)
    found = evaluated(Huber(), logits[:, :1], targets)
    assert list(found) == ["loss", "mse", "r2"]
    assert found["mse"] == pytest.approx(float(((logits[:, 0] - targets) ** 2).mean()), rel=1e-5)
    assert found["loss"] == pytest.approx(nn.functional.huber_loss(logits[:, 0], targets).item(), rel=1e-5)
    assert evaluated(SquaredError(), logits[:, :1], targets)["loss"] == pytest.approx(found["mse"], rel=1e-5)


def test_one_logit_is_judged_as_two_classes() -> None:
    torch.manual_seed(0)
    outputs, labels = torch.randn(40, 1), torch.randint(2, (40,))
    found = evaluated(Binary(positive_weight=3.0), outputs, labels)
    assert list(found) == ["loss", "accuracy", "nll", "brier", "ece", "mce", "auroc"]
    share = outputs.squeeze(1).sigmoid()
    assert found["accuracy"] == pytest.approx(((share > 0.5).long() == labels).float().mean().item())
    assert found["nll"] == pytest.approx(nn.functional.binary_cross_entropy(share, labels.float()).item(), rel=1e-5)
    assert found["auroc"] == pytest.approx(roc_auc_score(labels.numpy(), share.numpy()))
    assert found["loss"] > found["nll"]  # which has no weights


def test_a_single_class_has_no_calibration_and_is_no_error() -> None:
    found = evaluate(nn.Identity(), TensorDataset(torch.zeros(3, 1), torch.zeros(3, dtype=torch.long)), CPU)
    assert found.calibration is None
    assert found.figures["accuracy"] == 1


def test_without_classes_there_is_no_accuracy() -> None:
    average = Average.on(CPU)
    average.add(torch.tensor(2.0), None, torch.zeros(3))
    average.add(torch.tensor(6.0), None, torch.zeros(1))
    assert (average.loss, average.accuracy) == (3.0, None)


def test_a_metric_that_there_is_not_is_named() -> None:
    class Own(SquaredError):
        metrics = ("mse", "mape")

    with pytest.raises(InvalidValue, match="Own names a metric that there is not: mape"):
        evaluated(Own(), torch.zeros(3, 1), torch.zeros(3))
