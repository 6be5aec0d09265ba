"""The step audit: canaries in, releases out, and how well anyone could have told who was there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isinf
from typing import ClassVar

import torch
from torch.optim import SGD

from hoarfrost import budget, validate
from hoarfrost.audit import gaussianity
from hoarfrost.audit.canaries import Freezing
from hoarfrost.audit.harness import OptimizerFactory, StepHarness
from hoarfrost.audit.result import ALPHA, Audit
from hoarfrost.audit.statistics import gaussian_epsilon, mu_lower, rate_upper
from hoarfrost.clipping import Clipper, Local


@dataclass(frozen=True, kw_only=True)
class StepAudit(Audit):
    """What was measured of a step beside what is claimed of it. Lower bounds hold with 99.9999 % confidence."""

    kind: ClassVar[str] = "step"

    clip: str
    optimizer: str
    freeze: str
    noise_multiplier: float
    sample_rate: float
    steps: int
    delta: float
    samples: int  # in each of the two worlds, with the canary and without
    missed: int  # canaries that were there and not recognised
    imagined: int  # canaries that were not there and "recognised"
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
            f"{self.samples} samples a world",
            f"one step: μ {self.mu_claimed:.3f} claimed, at least {self.mu_lower:.3f} measured; "
            f"ε {self.epsilon_claimed:.3f} claimed, at least {self.epsilon_lower:.3f} measured (δ {self.delta:g})",
            f"{run}: not private, for what else was released"
            if isinf(self.run_epsilon_claimed)
            else f"{run}: ε {self.run_epsilon_claimed:.3f} claimed, at least {self.run_epsilon_lower:.3f} measured",
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
    beside: tuple[budget.Event, ...] = (),
    canaries: int = 512,
    rounds: int = 100,
    seed: int | None = None,
    device: torch.device | str = "cpu",
) -> StepAudit:
    """Attacks the real private step with canaries, and checks the noise that it adds.

    In each of the ``rounds``, ``canaries`` examples take part whose gradients point in as many known directions, and as
    many directions are left empty. Whoever sees the release says "there" where it exceeds half the sensitivity. How
    often that is right bounds μ, and with it epsilon, from below.

    Args:
        noise_multiplier: σ, which claims μ = 1/σ for the step.
        clip, optimizer, freeze: what is audited. ``optimizer`` makes one from parameters.
        delta, sample_rate, steps: of the run that the composed epsilon is about.
        beside: what that run releases beside its steps.
        canaries, rounds: their product is the number of samples in each world.
        seed: repeats the noise, for experiments.

    Guarantees:
        An alarm is raised for a right step with probability below 1e-5. A pass says that this step, on a model whose
        gradients are known, hides an example as well as claimed up to the stated confidence; that its noise has the
        stated size on every live coordinate, is Gaussian and not repeated; that frozen coordinates stay as they are;
        and that the weights are what the plain optimizer makes of the audited release. It does not say that
        per-example gradients of another model are right, nor how far a hostile example moves the sum (`sensitivity`),
        nor how batches are drawn (`sampling`). The bound alone does not notice clipping after summation, which shortens
        canaries that are there together: `sensitivity` is made for that.

    >>> result = step(noise_multiplier=1.0, canaries=64, rounds=20, seed=1)
    >>> result.passed, 0 < result.mu_lower < result.mu_claimed
    (True, True)
    """
    validate.positive(noise_multiplier=noise_multiplier)
    validate.finite(noise_multiplier=noise_multiplier)
    validate.probability(delta=delta)
    validate.rate(sample_rate=sample_rate)
    validate.whole(steps=steps, canaries=canaries, rounds=rounds)
    rig = StepHarness(
        clip,
        optimizer,
        freeze,
        noise_multiplier=noise_multiplier,
        delta=delta,
        canaries=canaries,
        seed=seed,
        device=device,
    )
    seen = [rig.take_step() for _ in range(rounds)]
    samples, missed, imagined = (sum(getattr(s, count) for s in seen) for count in ("canaries", "missed", "imagined"))
    # Half of the confidence for each rate: both bounds hold at once with 1 - ALPHA.
    fpr, fnr = rate_upper(imagined, samples, ALPHA / 2), rate_upper(missed, samples, ALPHA / 2)
    mu, claimed = mu_lower(fpr, fnr), 1 / noise_multiplier
    result = {
        "mu_claimed": claimed,
        "mu_lower": mu,
        "epsilon_claimed": gaussian_epsilon(claimed, delta),
        "epsilon_lower": gaussian_epsilon(mu, delta),
        "run_epsilon_claimed": _composed(claimed, delta, sample_rate, steps, beside),
        "run_epsilon_lower": _composed(mu, delta, sample_rate, steps, beside),
    }
    noise = torch.stack([s.noise for s in seen]).double().cpu().numpy()
    live = torch.stack([s.live for s in seen]).cpu().numpy()
    alarms = [
        *_exceeded(result),
        *gaussianity.faults(noise, live, rig.coordinates),
        *dict.fromkeys(fault for s in seen for fault in s.faults),
    ]
    return StepAudit(
        alarms=tuple(alarms), clip=str(clip), optimizer=rig.optimizer_name, freeze=freeze.name,
        noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps, delta=delta,
        samples=samples, missed=missed, imagined=imagined, **result,
    )  # fmt: skip


def _exceeded(result: dict[str, float]) -> Iterator[str]:
    if result["mu_lower"] > result["mu_claimed"]:
        yield (
            f"canaries are found more often than the noise allows: μ is at least {result['mu_lower']:.3f} where "
            f"{result['mu_claimed']:.3f} is claimed, ε at least {result['epsilon_lower']:.3f} where "
            f"{result['epsilon_claimed']:.3f} is"
        )


def _composed(mu: float, delta: float, sample_rate: float, steps: int, beside: tuple[budget.Event, ...]) -> float:
    """The run's epsilon, if every step is as private as a Gaussian mechanism of this μ."""
    if not beside and (mu == 0 or (sample_rate == 1 and steps == 1)):
        return gaussian_epsilon(mu, delta)
    own = (budget.Gaussian(noise_multiplier=1 / mu, sample_rate=sample_rate, steps=steps),) if mu > 0 else ()
    return budget.epsilon((*own, *beside), delta)
