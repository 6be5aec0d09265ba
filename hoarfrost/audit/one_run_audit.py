"""The one-run audit: a whole training with canaries in its data, and what the model then gives away about them.

Made-up examples, *canaries*, are put into the training set or left out, each by its own fair coin. Afterwards a guesser
looks at the trained model and says of some of them which way the coin fell (`guesses`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from hoarfrost import budget, data
from hoarfrost.audit.one_run_bound import OneRunAudit, check_counts, default_guesses
from hoarfrost.errors import InvalidValue
from hoarfrost.noise import Keystream
from hoarfrost.sampling import Poisson
from hoarfrost.train.loop import TEST_BATCH, train
from hoarfrost.train.prepare import device_for, prepare, surroundings
from hoarfrost.train.reading import read_recipe
from hoarfrost.train.recipe import Recipe
from hoarfrost.train.resuming import admitted
from hoarfrost.train.sources import load


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
    check_counts(number, canaries, recipe.privacy.delta, confidence)  # before anything is spent
    with surroundings(recipe):
        splits = load(recipe.data)
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
            private.draw_on(admitted(run, books, what=f"audit of {recipe.name}"), new=True)
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
