"""make_private(): the one place where the parts meet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import LBFGS, Optimizer
from torch.utils.data import DataLoader, Dataset

from hoarfrost import budget, validate
from hoarfrost.clipping import Clipper, Local
from hoarfrost.errors import BudgetSpent, InvalidValue, NotPrivate
from hoarfrost.gradients import Engine, Reduction
from hoarfrost.noise import Noise
from hoarfrost.optim import PrivateOptimizer
from hoarfrost.sampling import PoissonLoader


@dataclass
class Private:
    """What `make_private` returns: unpacks into model, optimizer and loader, and knows what was spent."""

    model: nn.Module
    optimizer: PrivateOptimizer
    loader: PoissonLoader
    delta: float
    accountant: budget.Accountant
    steps: int | None  # planned in all; None without a limit
    steps_taken: int = 0

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.optimizer, self.loader))

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise over the sensitivity."""
        return self.optimizer.noise_multiplier

    @property
    def sample_rate(self) -> float:
        """The probability with which each example takes part in a step."""
        return self.loader.poisson.sample_rate

    @property
    def expected_batch(self) -> float:
        """What every clipped sum is divided by: a public constant."""
        return self.loader.poisson.expected_batch

    @property
    def seeded(self) -> bool:
        """Whether noise and sampling can be drawn again by whoever knows the seed: then nothing may be released."""
        return self.optimizer.noise.seeded

    def events(self) -> tuple[budget.Gaussian, ...]:
        """The releases made so far."""
        return (self.loader.poisson.event(self.noise_multiplier, self.steps_taken),)

    def epsilon(self) -> float:
        """What was spent so far, at `delta`: 0 before the first step, infinite without noise.

        Guarantees:
            An upper bound for everything the optimizer has released, for data sets that differ in one example that is
            in one and not in the other.
        """
        return budget.epsilon(self.events(), self.delta, self.accountant)

    def statement(self) -> budget.Statement:
        """The sentence to put beside the model: epsilon, delta, how they were computed, and what was released."""
        return budget.Statement.of(self.events(), self.delta, self.accountant, seeded=self.seeded)

    def _charge(self) -> None:
        if self.steps is not None and self.steps_taken >= self.steps:
            raise BudgetSpent(
                f"all {self.steps} steps that this run was planned for are taken; plan more with steps= or epochs= in "
                "make_private, which calibrates the noise for them."
            )
        self.steps_taken += 1


def make_private(
    model: nn.Module,
    optimizer: Optimizer,
    data: Dataset[Any] | DataLoader[Any],
    *,
    delta: float,
    batch_size: float | None = None,
    sample_rate: float | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    clip: Clipper = Local(1.0),  # noqa: B008 - frozen
    loss_reduction: Reduction = "mean",
    max_physical_batch: int | None = None,
    views: int = 1,
    batch_first: bool = True,
    accountant: budget.Accountant = "pld",
    seed: int | None = None,
) -> Private:
    """Makes a model, its optimizer and its data private; the training loop stays plain PyTorch.

    Args:
        data: a map-style data set, or a DataLoader, whose collate function and workers are kept and whose fixed
            batches become Poisson batches of the same expected size.
        delta: the probability with which the epsilon may fail to hold; well below 1/len(data).
        batch_size, sample_rate: one of them: the expected number of examples in a step, or each example's chance.
        epochs, steps: how long to train; needed to calibrate for ``epsilon``. A pass over the loader is an epoch.
        epsilon, noise_multiplier: one of them. Noise of 0 is allowed, and then epsilon is infinite.
        clip: the clipping style.
        loss_reduction: "mean" if the loss divides by the number of examples, "sum" if it does not.
        max_physical_batch: at most so many rows at a time; larger batches come in chunks, and `optimizer.step()` waits
            for the last one.
        views: so many draws of each example (with the data set's random augmentation), averaged before clipping.
        batch_first: False if examples lie along the second dimension of the model's inputs.
        seed: for experiments: the noise can then be subtracted by anyone who knows the seed.

    Guarantees:
        After t optimizer steps the weights are (epsilon(t), delta)-differentially private for adding or removing one
        example, where `Private.epsilon` says epsilon(t), if the loss treats examples independently
        (`check_independence`) and evaluation on private data is not released. A calibrated run refuses steps beyond
        those it was calibrated for.

    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.randn(500, 3), torch.randint(2, (500,)))
    >>> model = nn.Linear(3, 2)
    >>> private = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), data,
    ...                        batch_size=50, epochs=1, epsilon=3.0, delta=1e-3)
    >>> model, optimizer, loader = private
    >>> for x, y in loader:
    ...     optimizer.zero_grad()
    ...     nn.functional.cross_entropy(model(x), y).backward()
    ...     optimizer.step()
    >>> 2.9 < private.epsilon() <= 3.0
    True
    """
    validate.probability(delta=delta)
    validate.whole(views=views)
    if loss_reduction not in ("mean", "sum"):
        raise InvalidValue(f'loss_reduction must be "mean" or "sum", got {loss_reduction!r}')
    if (epsilon is None) == (noise_multiplier is None):
        raise InvalidValue("give either epsilon= or noise_multiplier=")
    if epochs is not None and steps is not None:
        raise InvalidValue("give either epochs= or steps=, not both")
    if epsilon is not None and epochs is None and steps is None:
        raise InvalidValue("epsilon= needs to know how long the run is: give epochs= or steps=")
    parameters = _trained(model, optimizer)

    loader = PoissonLoader(
        data, batch_size=batch_size, sample_rate=sample_rate, max_physical_batch=max_physical_batch, views=views,
        batch_first=batch_first, seed=seed,
    )  # fmt: skip
    if epochs is not None:
        validate.positive(epochs=epochs)
        steps = max(1, loader.poisson.epoch_boundary(epochs))
    if steps is not None:
        validate.whole(steps=steps)
    loader.steps = steps
    if noise_multiplier is None:
        assert epsilon is not None
        assert steps is not None
        noise_multiplier = budget.noise_multiplier(epsilon, delta, loader.poisson.sample_rate, steps, accountant)
    validate.not_negative(noise_multiplier=noise_multiplier)
    validate.finite(noise_multiplier=noise_multiplier)

    engine = Engine(model, parameters, clip, loss_reduction=loss_reduction, views=views, batch_first=batch_first)
    loader.on_chunk = engine.batch.receive
    private_optimizer = PrivateOptimizer(
        optimizer, engine, Noise(seed), parameters=parameters, noise_multiplier=noise_multiplier,
        expected_batch=loader.poisson.expected_batch, charge=lambda: private._charge(),
    )  # fmt: skip
    private = Private(model, private_optimizer, loader, delta, accountant, steps)
    return private


def _trained(model: nn.Module, optimizer: Optimizer) -> dict[str, nn.Parameter]:
    """The model's parameters that the optimizer moves, by name."""
    if isinstance(optimizer, PrivateOptimizer):
        raise NotPrivate("this optimizer is private already: hand make_private the plain torch optimizer")
    if isinstance(optimizer, LBFGS):
        raise NotPrivate("LBFGS evaluates the loss several times a step, each of them a release; use SGD or Adam")
    moved = [p for group in optimizer.param_groups for p in group["params"]]
    names = {p: name for name, p in model.named_parameters()}
    strangers = sum(p not in names for p in moved)
    if strangers:
        raise NotPrivate(
            f"the optimizer moves {strangers} parameter(s) that are not in the model, which would be trained without "
            "privacy. Build it from model.parameters(), with every trained module inside the model."
        )
    if not moved:
        raise InvalidValue("the optimizer has no parameters to train")
    return {names[p]: p for p in moved}
