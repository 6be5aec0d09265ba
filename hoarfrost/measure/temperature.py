"""Temperature scaling: one number that makes a classifier as sure as it should be."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from hoarfrost import validate
from hoarfrost.measure.scores import checked, nll_of

LOWEST, HIGHEST = 1e-3, 1e3


@dataclass(frozen=True)
class Temperature:
    """Logits are divided by ``value``: above 1 the model is less sure, below 1 surer. It predicts the same classes.

    >>> import torch
    >>> Temperature(2.0)(torch.tensor([4.0, -1.0])).tolist()
    [2.0, -0.5]

    Guarantees:
        Scaling is post-processing: with a temperature that does not depend on private data, it costs no privacy.
    """

    value: float

    def __post_init__(self) -> None:
        validate.positive(value=self.value)
        validate.finite(value=self.value)

    def __call__(self, logits: Tensor) -> Tensor:
        """The scaled logits."""
        return logits / self.value

    @classmethod
    def fit(cls, logits: Tensor, labels: Tensor) -> Temperature:
        """The temperature with the least NLL on held-out data that are *public*. See `nll` for the arguments.

        The search goes from 0.001 to 1000. A temperature near an end says that these data do not determine it: all
        examples are predicted right, or the logits are worth less than guessing.

        Guarantees:
            The NLL on these examples is never above that of the logits as they are. There is no noise: fitting on
            private data would be a release that nobody charges for. Use data that are public, or held out with
            consent, and not the training data, on which a model is surer than it should be.

        >>> import torch
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
        >>> temperature = Temperature.fit(logits, torch.tensor([0, 0, 0, 0]))  # right in 75 % of the cases
        >>> temperature(logits).softmax(dim=1).max(dim=1).values.round(decimals=3).tolist()
        [0.75, 0.75, 0.75, 0.75]
        """
        from scipy.optimize import minimize_scalar

        wide, target = checked(logits, labels)

        def loss(log_temperature: float) -> float:
            value = nll_of(wide / math.exp(log_temperature), target)
            return math.inf if math.isnan(value) else value  # NaN: logits that overflow when divided

        # In the logarithm, where halving and doubling are steps of the same length. The NLL has one valley there.
        bounds = (math.log(LOWEST), math.log(HIGHEST))
        found = float(minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-7}).x)
        best = min((found, 0.0, *bounds), key=loss)  # the search stops short of its ends; 0: as the logits are
        return cls(math.exp(best))
