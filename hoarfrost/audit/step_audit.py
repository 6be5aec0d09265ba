"""The step audit: canaries go in, and how well they are detected in the release bounds epsilon from below."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isinf
from typing import ClassVar

import numpy as np
import torch
from torch.optim import SGD

from hoarfrost import budget, validate
from hoarfrost.audit import gaussianity
from hoarfrost.audit.canaries import Freezing
from hoarfrost.audit.harness import OptimizerFactory, StepHarness, StepObservation
from hoarfrost.audit.result import ALPHA, Audit
from hoarfrost.audit.statistics import gaussian_epsilon, mu_lower, rate_upper
from hoarfrost.clipping import Clipper, Local


@dataclass(frozen=True, kw_only=True)
class StepAudit(Audit):
    """Measured and claimed privacy of a step. Lower bounds hold with 99.9999 % confidence."""

    kind: ClassVar[str] = "step"

    clip: str
    optimizer: str
    freeze: str
    noise_multiplier: float
    sample_rate: float
    steps: int
    delta: float
    samples: int  # with a canary; and as many without
    false_negatives: int  # samples with a canary that was not detected
    false_positives: int  # samples without a canary in which one was detected
    mu_claimed: float
    mu_lower: float
    epsilon_claimed: float  # of one step on all examples
    epsilon_lower: float
    run_epsilon_claimed: float  # of all steps, each on a Poisson sample
    run_epsilon_lower: float

    def figures(self) -> tuple[str, ...]:
        run = f"{self.steps} step{'s' * (self.steps > 1)} at sampling rate {self.sample_rate:g}"
        return (
            f"step audit: {self.optimizer}, {self.clip}, {self.freeze}, noise multiplier {self.noise_multiplier:.6g}, "
            f"{self.samples} samples with a canary and as many without",
            f"one step: μ {self.mu_claimed:.3f} claimed, lower bound {self.mu_lower:.3f}; "
            f"ε {self.epsilon_claimed:.3f} claimed, lower bound {self.epsilon_lower:.3f} (δ {self.delta:g})",
            f"{run}: not private, because of what else was released"
            if isinf(self.run_epsilon_claimed)
            else f"{run}: ε {self.run_epsilon_claimed:.3f} claimed, lower bound {self.run_epsilon_lower:.3f}",
        )


def step(
    *,
    noise_multiplier: float,
    clip: Clipper = Local(1.0),  # noqa: B008 - frozen
    optimizer: OptimizerFactory = SGD,
    freeze: Freezing = Freezing(),  # noqa: B008 - has no state
    delta: float = 1e-5,
    sample_rate: float = 1.0,
    steps: int = 1,
    other_releases: tuple[budget.Event, ...] = (),
    canaries: int = 512,
    rounds: int = 100,
    seed: int | None = None,
    device: torch.device | str = "cpu",
) -> StepAudit:
    """Attacks the real private step with canaries, and checks the noise that it adds.

    In each of the ``rounds``, ``canaries`` examples take part, each with a gradient in a known direction of its own; as
    many other directions are left empty. A canary is detected where the release exceeds half the sensitivity. The
    false positive and false negative rates give a lower bound on μ, and with it on epsilon.

    Args:
        noise_multiplier: σ, which claims μ = 1/σ for the step.
        clip, optimizer, freeze: what is audited. ``optimizer`` makes one from parameters.
        delta, sample_rate, steps: of the run that the composed epsilon is about.
        other_releases: what that run releases besides its steps.
        canaries, rounds: their product is the number of samples with a canary, and of those without.
        seed: repeats the noise, for experiments.

    Guarantees:
        A correct step raises an alarm with probability below 1e-5. A pass says that this step, on a model whose
        gradients are known, shows no more than the claimed epsilon at the stated confidence; that its noise has the
        stated size on every live coordinate and on every statistic of the clipping, is Gaussian and is not repeated;
        that frozen coordinates do not change;
        and that the weights are those of the plain optimizer with the audited release. It does not say that per-example
        gradients of another model are correct, nor how far a hostile example moves the sum (`sensitivity`), nor how
        batches are drawn (`sampling`). The bound alone does not detect clipping after summation, which shrinks canaries
        that are in the same batch: `sensitivity` does. Statistics are one number each for a whole batch: what they add
        to the bound is what one canary in each round shows.

    >>> result = step(noise_multiplier=1.0, canaries=64, rounds=20, seed=1)
    >>> result.passed, 0 < result.mu_lower < result.mu_claimed
    (True, True)
    """
    validate.positive(noise_multiplier=noise_multiplier)
    validate.finite(noise_multiplier=noise_multiplier)
    validate.probability(delta=delta)
    validate.rate(sample_rate=sample_rate)
    validate.whole(steps=steps, canaries=canaries, rounds=rounds)
    harness = StepHarness(
        clip,
        optimizer,
        freeze,
        noise_multiplier=noise_multiplier,
        delta=delta,
        canaries=canaries,
        seed=seed,
        device=device,
    )
    observed = [harness.take_step() for _ in range(rounds)]
    samples = sum(each.canaries for each in observed)
    false_negatives = sum(each.false_negatives for each in observed)
    false_positives = sum(each.false_positives for each in observed)
    # Half of the confidence for each rate: both bounds hold at once with 1 - ALPHA.
    fpr, fnr = rate_upper(false_positives, samples, ALPHA / 2), rate_upper(false_negatives, samples, ALPHA / 2)
    mu, claimed = mu_lower(fpr, fnr), 1 / noise_multiplier
    result = {
        "mu_claimed": claimed,
        "mu_lower": mu,
        "epsilon_claimed": gaussian_epsilon(claimed, delta),
        "epsilon_lower": gaussian_epsilon(mu, delta),
        "run_epsilon_claimed": _composed(claimed, delta, sample_rate, steps, other_releases),
        "run_epsilon_lower": _composed(mu, delta, sample_rate, steps, other_releases),
    }
    alarms = [
        *_exceeded(result),
        *_wrong_noise(observed, harness.coordinates),
        *dict.fromkeys(fault for each in observed for fault in each.faults),
    ]
    return StepAudit(
        alarms=tuple(alarms), clip=str(clip), optimizer=harness.optimizer_name, freeze=freeze.name,
        noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps, delta=delta,
        samples=samples, false_negatives=false_negatives, false_positives=false_positives, **result,
    )  # fmt: skip


def _wrong_noise(observed: list[StepObservation], coordinates: list[str]) -> Iterator[str]:
    """Statistics are further coordinates of the release; a style that changes has some in some of the steps."""
    names = list(dict.fromkeys(name for each in observed for name in each.statistics))
    counts = np.array([[each.statistics.get(name, 0.0) for name in names] for each in observed])
    counted = np.array([[name in each.statistics for name in names] for each in observed], dtype=bool)
    noise = torch.stack([each.noise for each in observed]).double().cpu().numpy()
    live = torch.stack([each.live for each in observed]).cpu().numpy()
    noise, live = np.concatenate([noise, counts], 1), np.concatenate([live, counted], 1)
    yield from gaussianity.faults(noise, live, [*coordinates, *names])


def _exceeded(result: dict[str, float]) -> Iterator[str]:
    if result["mu_lower"] > result["mu_claimed"]:
        yield (
            "canaries are detected more often than the claim allows: the lower bound on ε is "
            f"{result['epsilon_lower']:.3f}, claimed is {result['epsilon_claimed']:.3f} "
            f"(μ: {result['mu_lower']:.3f} and {result['mu_claimed']:.3f})"
        )


def _composed(
    mu: float, delta: float, sample_rate: float, steps: int, other_releases: tuple[budget.Event, ...]
) -> float:
    """The run's epsilon if every step is a Gaussian mechanism of this μ."""
    if not other_releases and (mu == 0 or (sample_rate == 1 and steps == 1)):
        return gaussian_epsilon(mu, delta)
    own = (budget.Gaussian(noise_multiplier=1 / mu, sample_rate=sample_rate, steps=steps),) if mu > 0 else ()
    return budget.epsilon((*own, *other_releases), delta)
