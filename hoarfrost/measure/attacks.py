"""Attacks on membership: a score for each example, larger where it looks trained on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from hoarfrost.errors import InvalidValue, MissingExtra
from hoarfrost.measure.scores import checked


def loss_threshold(losses: Tensor) -> Tensor:
    """The loss threshold: an example with a small loss is taken for a member. There is nothing to fit.

    Args:
        losses: each example's loss [N].

    >>> loss_threshold(torch.tensor([0.1, 2.0])).tolist()
    [-0.10000000149011612, -2.0]
    """
    if not isinstance(losses, Tensor) or losses.ndim != 1 or not losses.is_floating_point():
        raise InvalidValue("losses must be a tensor of real numbers [N], one for each example")
    if losses.isnan().any():
        raise InvalidValue("losses must not be NaN: the model has diverged, or overflowed")
    return -losses.detach()


class Logistic:
    """Logistic regression on logits and labels, as in "On the Convergence and Calibration of Deep Learning with
    Differential Privacy".

    The paper does not say how they become features. Here they are the logits, the one-hot label, and the
    cross-entropy of the two, each standardised: without the last one, no linear rule could see how logits and label
    fit together.

    >>> logits, labels = torch.randn(200, 3), torch.randint(3, (200,))
    >>> attack = Logistic.fit(logits, labels, member=torch.arange(200) < 100)
    >>> attack(logits, labels).shape
    torch.Size([200])
    """

    def __init__(self, fitted: Any, classes: int) -> None:
        self._fitted, self._classes = fitted, classes

    @classmethod
    def fit(cls, logits: Tensor, labels: Tensor, member: Tensor) -> Logistic:
        """Fits the attack on examples of which it is known whether they were trained on.

        Args:
            logits: [N, K], or [N] for two classes.
            labels: [N].
            member: [N], True for those that were trained on. Both kinds must be among them.
        """
        try:
            from sklearn.linear_model import LogisticRegression
            from sklearn.pipeline import make_pipeline
            from sklearn.preprocessing import StandardScaler
        except ImportError as error:
            raise MissingExtra(
                "the logistic attack needs scikit-learn, which is not installed: pip install 'hoarfrost[data]'"
            ) from error
        logits, labels = checked(logits, labels)
        if not isinstance(member, Tensor) or member.dtype != torch.bool or member.shape != labels.shape:
            raise InvalidValue("member must be a tensor of bools, one for each example")
        if member.all() or not member.any():
            raise InvalidValue("the attack is fitted on members and on non-members, and got one of the two alone")
        fitted = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        fitted.fit(_features(logits, labels), member.cpu().numpy())
        return cls(fitted, logits.shape[1])

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The log odds of having been trained on [N]."""
        logits, labels = checked(logits, labels)
        if logits.shape[1] != self._classes:
            raise InvalidValue(f"the attack was fitted on {self._classes} classes, got {logits.shape[1]}")
        return torch.from_numpy(self._fitted.decision_function(_features(logits, labels)))


def _features(logits: Tensor, labels: Tensor) -> Any:
    loss = -logits.log_softmax(1).gather(1, labels[:, None])
    return torch.cat([logits, one_hot(labels, logits.shape[1]).to(logits), loss], 1).cpu().numpy()


def label_log_odds(logits: Tensor, labels: Tensor) -> Tensor:
    """log(p / (1 − p)) of the label's probability p [N]: what LiRA compares, since it is nearly Gaussian.

    >>> label_log_odds(torch.tensor([[3.0, 0.0], [3.0, 0.0]]), torch.tensor([0, 1])).tolist()
    [3.0, -3.0]
    """
    logits, labels = checked(logits, labels)
    label = labels[:, None]
    # Not log p - log(1 - p), which is infinite where p rounds to 1.
    others = logits.scatter(1, label, -torch.inf).logsumexp(1)
    return logits.gather(1, label).squeeze(1) - others


def lira(target: Tensor, shadows: Tensor, included: Tensor, *, online: bool = True) -> Tensor:
    """The likelihood-ratio attack (Carlini et al., 2022), with variances that all examples share.

    Each example's statistic under the attacked model is compared with a Gaussian around its mean under the shadow
    models that were trained with it, and one around its mean under those that were trained without it. A few shadow
    models cannot tell each example's own variance, so that one variance within examples is taken for the former and
    one for the latter.

    Args:
        target: the statistic under the attacked model [N], such as `label_log_odds`.
        shadows: the statistic under each shadow model [S, N].
        included: whether the shadow model was trained on the example [S, N]. Every example needs as many shadow models
            with it as any other, or else the attack tells examples apart by how well their means are known.
        online: False asks only how far the statistic is above that of models without the example.

    >>> target, shadows = torch.tensor([2.0, 0.0]), torch.tensor([[2.1, 2.0], [1.9, 1.8], [0.1, 0.2], [-0.1, 0.0]])
    >>> included = torch.tensor([[True, True], [True, True], [False, False], [False, False]])
    >>> scores = lira(target, shadows, included)
    >>> bool(scores[0] > 0 > scores[1])
    True
    """
    _check_shadows(target, shadows, included)
    # A statistic of ±infinity would make means infinite: as far as any finite number that leaves room for squares.
    target, shadows = (each.detach().double().clamp(-1e30, 1e30) for each in (target, shadows))
    out_mean, out_variance = _shared(shadows, ~included)
    if not online:
        return (target - out_mean) / out_variance.sqrt()
    in_mean, in_variance = _shared(shadows, included)

    def log_density(mean: Tensor, variance: Tensor) -> Tensor:
        return -((target - mean) ** 2) / (2 * variance) - variance.log() / 2

    return log_density(in_mean, in_variance) - log_density(out_mean, out_variance)


def _shared(shadows: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The mean for each example over the chosen shadow models [N], and the variance around it over all examples."""
    count = chosen.sum(0)
    mean = torch.where(chosen, shadows, 0.0).sum(0) / count
    off = torch.where(chosen, shadows - mean, 0.0).square().sum() / (count.sum() - shadows.shape[1])
    # The mean of c models is itself off by a c-th of the variance. Models that all agree: any difference is large.
    return mean, (off * (1 + 1 / int(count[0]))).clamp(min=1e-12)


def _check_shadows(target: Tensor, shadows: Tensor, included: Tensor) -> None:
    if target.ndim != 1 or shadows.ndim != 2 or shadows.shape[1:] != target.shape or included.shape != shadows.shape:
        raise InvalidValue(
            "target must have the shape [examples], shadows and included [models, examples], got "
            f"{list(target.shape)}, {list(shadows.shape)} and {list(included.shape)}"
        )
    if included.dtype != torch.bool:
        raise InvalidValue("included must be a tensor of bools: which shadow model was trained on which example")
    if len(target) == 0:
        raise InvalidValue("there are no examples to attack")
    if target.isnan().any() or shadows.isnan().any():
        raise InvalidValue("statistics must not be NaN: a model has diverged, or overflowed")
    counts = included.sum(0)
    if not (counts == counts[0]).all() or not 2 <= int(counts[0]) <= len(shadows) - 2:
        raise InvalidValue(
            "every example needs the same number of shadow models that were trained on it, at least 2, and at least 2 "
            "that were not"
        )
