"""A lower bound on epsilon from a single training run, after Steinke, Nasr and Jagielski (2023).

Made-up examples, *canaries*, are put into the training set or left out, each by its own fair coin. Afterwards a guesser
looks at the trained model and says of some of them which way the coin fell. Were training (ε, δ)-private, hardly more
than a share e^ε/(1 + e^ε) of these guesses could be right: more right guesses than that refute the ε.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from scipy import special
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from hoarfrost import budget, data, validate
from hoarfrost.audit.result import Audit
from hoarfrost.errors import InvalidValue
from hoarfrost.noise import Keystream
from hoarfrost.sampling import Poisson
from hoarfrost.train.loop import TEST_BATCH, train
from hoarfrost.train.prepare import device_for, load, prepare, surroundings
from hoarfrost.train.reading import read_recipe
from hoarfrost.train.recipe import Recipe
from hoarfrost.train.resuming import admitted


def lower_bound(right: int, *, guesses: int, canaries: int, delta: float, confidence: float = 0.95) -> float:
    """The largest ε that so many right guesses refute; 0 if they refute none.

    With r guesses of which v are right, m canaries, p = e^ε/(1 + e^ε) and B ~ Binomial(r, p), (ε, δ)-private training
    lets a guesser be so lucky with a probability of at most β + 2mδα, where β = P[B ≥ v] and α is the largest of
    P[v > B ≥ v − i]/i over 1 ≤ i ≤ v. The ε is refuted where this is below 1 − confidence.

    Args:
        right: v, of the guesses that were made.
        guesses: r, a number that was fixed before the coins were known.
        canaries: m, those that the guesser abstained from included.
        delta: 0 for pure differential privacy.

    Guarantees:
        Of trainings that are (ε, δ)-private for adding or removing one example, at most a share 1 − confidence gets a
        bound above ε, whatever the guesser did.

    >>> round(lower_bound(190, guesses=200, canaries=1000, delta=1e-5), 2)
    2.39
    >>> lower_bound(100, guesses=200, canaries=1000, delta=1e-5)
    0.0
    """
    _check(guesses, canaries, delta, confidence)
    if not 0 <= right <= guesses:
        raise InvalidValue(f"right must lie from 0 to the {guesses} guesses, got {right}")
    if right == 0:
        return 0.0
    back = np.arange(1, right + 1)  # i

    def refuted(epsilon: float) -> bool:
        p = special.expit(epsilon)
        at_least = special.bdtrc(np.arange(-1, right), guesses, p)  # P[B ≥ k] for k from 0 to v
        luck = at_least[-1]
        near = (at_least[right - back] - luck) / back
        return bool(luck + 2 * canaries * delta * near.max() < 1 - confidence)

    # Where the sum is below 1 - confidence it grows with ε, so that the refuted ones are an interval from 0: for
    # i ≥ 2mδ it is a mixture of P[B ≥ v] and P[B ≥ v - i]; for smaller i all of {v - i, ..., v} must then lie in B's
    # upper tail, where B's probabilities fall.
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _check(guesses: int, canaries: int, delta: float, confidence: float) -> None:
    validate.whole(guesses=guesses, canaries=canaries)
    validate.probability(confidence=confidence)
    if delta != 0:
        validate.probability(delta=delta)
    if guesses > canaries:
        raise InvalidValue(f"{guesses} guesses about {canaries} canaries: at most one is made about each")


def default_guesses(canaries: int) -> int:
    """How many guesses to make about so many canaries: a tenth, but 200 if there are as many.

    The guesser is surest of the extremes, so few guesses are right more often; many guesses leave less to luck. For
    Gaussian scores at ε from 1 to 8, and for losses of small models, a tenth to a fifth is near the best. And 200 right
    guesses of 200 show an ε of about 4, which fewer could not.

    >>> default_guesses(50), default_guesses(1000), default_guesses(10_000)
    (50, 200, 1000)
    """
    return min(canaries, max(200, canaries // 10))


@dataclass(frozen=True, kw_only=True)
class OneRunAudit(Audit):
    """What the guesser achieved, and what it says about the claim.

    No alarm proves little: the bound may be low because the guesser is weak.

    >>> print(OneRunAudit.of_counts(190, guesses=200, canaries=1000, claimed=1.0, delta=1e-5))
    1000 canaries, 200 guesses, 190 of them right (95.0 %)
    epsilon is at least 2.39 at delta 1e-05, with 95 % confidence; claimed: 1
    ALARM: training leaks more than it claims, or this is one of the 5 % of audits that may be that unlucky
    """

    kind: ClassVar[str] = "one run"

    canaries: int
    guesses: int
    right: int
    lower: float  # epsilon is at least this
    highest: float  # what `lower` would be had every guess been right: a claim from here on is never refuted
    claimed: float  # epsilon, of this very training; infinite without noise
    delta: float
    confidence: float
    seeded: bool

    @classmethod
    def of(
        cls,
        scores: Tensor,
        inside: Tensor,
        *,
        claimed: float,
        delta: float,
        guesses: int | None = None,
        confidence: float = 0.95,
        seeded: bool = False,
    ) -> OneRunAudit:
        """Guesses from scores: half of the guesses are "in", for the highest, and half are "out", for the lowest.

        Args:
            scores: a number for each canary [m], the higher the more it looks trained on; computed from the trained
                model by a rule that was fixed beforehand.
            inside: whether it was trained on [m], by a fair coin of its own.
            guesses: by default `default_guesses`. Trying several and keeping the best bound would make the confidence a
                lie; to compare k of them, raise it to 1 − (1 − confidence)/k.

        Guarantees:
            The coins are looked at after all guesses are made.

        >>> inside = torch.rand(1000) < 0.5
        >>> OneRunAudit.of(inside + 0.01 * torch.randn(1000), inside, claimed=1.0, delta=1e-5).right
        200
        """
        if scores.shape != inside.shape or scores.dim() != 1 or inside.dtype != torch.bool:
            raise InvalidValue(
                "scores and inside must be two tensors [canaries], the latter of bools; got shapes "
                f"{tuple(scores.shape)} and {tuple(inside.shape)} of {inside.dtype}"
            )
        canaries = len(scores)
        number = default_guesses(canaries) if guesses is None else guesses
        _check(number, canaries, delta, confidence)
        # A model whose losses overflow leaves arbitrary guesses, which are as valid as any other.
        order = scores.nan_to_num().argsort(stable=True)
        outs, ins = order[: number // 2], order[canaries - (number - number // 2) :]
        right = int((~inside[outs]).sum()) + int(inside[ins].sum())
        return cls.of_counts(
            right, guesses=number, canaries=canaries, claimed=claimed, delta=delta, confidence=confidence, seeded=seeded
        )

    @classmethod
    def of_counts(
        cls,
        right: int,
        *,
        guesses: int,
        canaries: int,
        claimed: float,
        delta: float,
        confidence: float = 0.95,
        seeded: bool = False,
    ) -> OneRunAudit:
        """The audit in which so many guesses were right; see `lower_bound`."""
        validate.not_negative(claimed=claimed)
        lower, highest = (
            lower_bound(each, guesses=guesses, canaries=canaries, delta=delta, confidence=confidence)
            for each in (right, guesses)
        )
        alarm = (
            "training leaks more than it claims, or this is one of the "
            f"{100 * (1 - confidence):.3g} % of audits that may be that unlucky"
        )
        return cls(
            canaries=canaries, guesses=guesses, right=right, lower=lower, highest=highest, claimed=claimed, delta=delta,
            confidence=confidence, seeded=seeded, alarms=(alarm,) if lower > claimed else (),
        )  # fmt: skip

    def figures(self) -> tuple[str, ...]:
        """What was guessed and what it shows. The bound is rounded down."""
        claimed = "nothing (no noise)" if math.isinf(self.claimed) else f"{self.claimed:.4g}"
        out = [
            f"{self.canaries} canaries, {self.guesses} guesses, {self.right} of them right "
            f"({100 * self.right / self.guesses:.1f} %)",
            f"epsilon is at least {_down(self.lower)} at delta {self.delta:g}, with {100 * self.confidence:g} % "
            f"confidence; claimed: {claimed}",
        ]
        if self.highest <= self.claimed < math.inf:
            out.append(
                f"this audit could not have alarmed: had all guesses been right, it would show {_down(self.highest)}; "
                "make more of them, about more canaries"
            )
        if self.seeded:
            out.append("seeded: the same coins fall again, so that repeating it adds no evidence")
        return tuple(out)


def one_run(
    recipe: Recipe | str | Path,
    *,
    canaries: int = 1000,
    guesses: int | None = None,
    confidence: float = 0.95,
    device: str | torch.device | None = None,
    ledger: budget.Ledger | str | Path | None = None,
) -> OneRunAudit:
    """Trains as the recipe says, with canaries in the data, and says what the model gives away about them.

    About half of the canaries are in; they take the place of as many training examples, chosen at random. So the
    sampling rate, the number of steps and the noise are the recipe's own, and so is the claim: `Private.epsilon` of
    this training. A canary's score is its loss before training minus its loss afterwards.

    Args:
        recipe: a `Recipe`, the name of a built-in one, or the path of a TOML file. Its seed, if it has one, decides the
            coins too; otherwise the operating system does.
        canaries: fewer than twice the training examples. More of them show more, until the model cannot remember them.
        guesses: by default `default_guesses`, and not to be chosen by results.
        device: by default the GPU if there is one.
        ledger: where what is spent is written down, as for `make_private`.

    The model is not returned, and must not be: it was taught nonsense. The audit's training **spends budget** as any
    other does, and its figures are a release that costs the claimed epsilon: whoever publishes them, or acts on them,
    adds it to that of the real run, or audits the recipe on public data of the same shape.

    What it finds is gross: training without clipping and noise. A small model that cannot remember hundreds of canaries
    gives little away although the noise is missing; auditing single steps finds that.

    Guarantees:
        Canaries are made from the test set, which is public; nothing but the training set depends on the coins, and
        these are independent of sampling and noise. If training is as private as it claims, the audit alarms with a
        probability of at most 1 − confidence.

    >>> from hoarfrost.train import read_recipe
    >>> audit = one_run(read_recipe("digits", ["privacy.steps=3"]), canaries=100)
    >>> audit.canaries, audit.guesses, 0 < audit.claimed <= 3
    (100, 100, True)
    """
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(recipe)
    number = default_guesses(canaries) if guesses is None else guesses
    _check(number, canaries, recipe.privacy.delta, confidence)  # before anything is spent
    with surroundings(recipe):
        splits = load(recipe)
        size = len(splits.train)
        if canaries >= 2 * size:
            raise InvalidValue(
                f"half of {canaries} canaries would take the place of more training examples than the "
                f"{size} there are: choose fewer than {2 * size}"
            )
        birds = make_canaries(splits, canaries)
        inside = _coins(canaries, recipe.privacy.seed)
        asked = recipe.privacy
        rate = asked.sample_rate or Poisson.of_batch(asked.batch_size or 0, size).sample_rate
        asked = asked.model_copy(update={"batch_size": None, "sample_rate": rate})
        run = prepare(
            recipe.model_copy(update={"privacy": asked}),
            device_for(device),
            splits=replace(splits, train=_mixed(splits.train, birds, inside)),
        )
        private = run.private
        # The number of examples is taken to be public, but here it tells how many coins fell on "in". What noisy sums
        # are divided by is the only other place where it would show, and dividing by another constant costs nothing.
        private.optimizer.expected_batch = rate * size
        if ledger is not None:
            books = ledger if isinstance(ledger, budget.Ledger) else budget.Ledger(ledger)
            private.draw_on(admitted(run, books, what=f"audit of {recipe.name}"))
        before = _losses(private.model, birds, run.device)
        for _ in train(private, splits.test, device=run.device, scheduler=run.scheduler, evaluate_every=run.steps):
            pass
        if private.allowance is not None:
            private.allowance.close()
        return OneRunAudit.of(
            before - _losses(private.model, birds, run.device),
            inside,
            claimed=private.epsilon(),
            delta=private.delta,
            guesses=number,
            confidence=confidence,
            seeded=private.seeded,
        )


def make_canaries(splits: data.Splits, number: int) -> TensorDataset:
    """Examples that are easy to remember and that nothing but themselves teaches, with random labels.

    Every coordinate is a normal random number around the middle of its range in the test set, three times as wide as
    that range (the whole test set's, where it does not vary). Such examples are far from the data and from each other,
    so each pulls the model its own way; privacy is promised for them as for any other. Mislabelled examples, shuffled
    pixels and inputs within the range were tried, and are remembered less. Token ids are drawn from the test set's.

    >>> make_canaries(data.digits(), 3).tensors[0].shape
    torch.Size([3, 1, 8, 8])
    """
    examples = splits.test.tensors[0]
    size = (number, *splits.shape)
    labels = torch.randint(splits.classes, (number,))
    if not examples.is_floating_point():
        known = examples.unique()
        return TensorDataset(known[torch.randint(len(known), size)], labels)
    low, high = examples.amin(0), examples.amax(0)
    spread = torch.where(low == high, examples.max() - examples.min(), high - low)
    return TensorDataset((low + high) / 2 + 3 * spread * torch.randn(size), labels)


def _coins(number: int, seed: int | None) -> Tensor:
    """Fair coins [number]. A stream of their own keeps them independent of noise and sampling, under a seed too."""
    stream = Keystream("audit coins", seed)
    return torch.frombuffer(stream.read(number, stream.next_draw(), chunk=0), dtype=torch.uint8) % 2 == 1


def _mixed(examples: TensorDataset, birds: TensorDataset, inside: Tensor) -> TensorDataset:
    """The training set with canaries in it: as many examples in all, in expectation, as there were before."""
    kept = torch.randperm(len(examples))[len(birds) // 2 :]
    return TensorDataset(
        *(torch.cat([a[kept], b[inside]]) for a, b in zip(examples.tensors, birds.tensors, strict=True))
    )


@torch.no_grad()
def _losses(model: nn.Module, birds: TensorDataset, device: torch.device) -> Tensor:
    """Every canary's loss [m], on the CPU."""
    training = model.training
    model.eval()
    losses = [
        F.cross_entropy(model(x.to(device)), y.to(device), reduction="none").cpu()
        for x, y in DataLoader(birds, batch_size=TEST_BATCH)
    ]
    model.train(training)
    return torch.cat(losses)


def _down(epsilon: float) -> str:
    return f"{math.floor(100 * epsilon) / 100:.2f}"
