"""The one-run audit: a whole training with canaries in its data, and a lower bound on epsilon from guesses about them.

Made-up examples, *canaries*, are included in the training set or left out, each by its own fair coin flip. Afterwards
an attack on the trained model guesses for some of them whether they were included (`one_run_bound`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from hoarfrost import budget, data
from hoarfrost.audit.one_run_bound import OneRunAudit, check_counts, default_guesses
from hoarfrost.errors import InvalidValue
from hoarfrost.noise import Keystream
from hoarfrost.recipes import losses
from hoarfrost.recipes.loading import read_recipe
from hoarfrost.recipes.losses import Loss
from hoarfrost.recipes.schema import Recipe
from hoarfrost.recipes.sources import load
from hoarfrost.train.evaluation import TEST_BATCH
from hoarfrost.train.loop import train
from hoarfrost.train.prepare import Parts, device_for, surroundings
from hoarfrost.train.resuming import attach


def one_run(
    recipe: Recipe | str | Path,
    *,
    canaries: int = 1000,
    guesses: int | None = None,
    confidence: float = 0.95,
    device: str | torch.device | None = None,
    ledger: budget.Ledger | str | Path | None = None,
) -> OneRunAudit:
    """Trains as the recipe says, with canaries in the data, and bounds epsilon from below.

    About half of the canaries are included; they replace as many training examples, chosen at random (or people, with
    all their rows, if the unit is a person: a canary is then a person with one row). So the sampling rate, the number
    of steps and the noise are the recipe's own, and so is the claim: `Private.epsilon` of this training. A canary's
    score is its loss before training minus its loss afterwards.

    Args:
        recipe: a `Recipe`, the name of a built-in one, or the path of a TOML file. Its seed, if it has one, also
            decides the coin flips; otherwise the operating system does.
        canaries: fewer than twice the training examples. More give a better bound, as long as the model can
            memorise them.
        guesses: by default `default_guesses`. Do not choose it by looking at results.
        device: by default the GPU if there is one.
        ledger: charged for this training, as for `make_private`.

    The model is not returned: it was trained on made-up examples. The audit's training **spends budget** like any
    other, and its figures are a release that costs the claimed epsilon: if you publish them or act on them, add it to
    that of the real run, or audit the recipe on public data of the same shape.

    It detects gross faults only, such as training without clipping and noise. A small model that cannot memorise
    hundreds of canaries shows little even without noise; the step audit detects that.

    Guarantees:
        Canaries are made from the test set, which is public; only the training set depends on the coin flips,
        which are independent of sampling and noise. If training is as private as claimed, the audit alarms with
        probability at most 1 − confidence.

    >>> from hoarfrost.train import read_recipe
    >>> audit = one_run(read_recipe("digits", ["privacy.steps=3"]), canaries=100)
    >>> audit.canaries, audit.guesses, 0 < audit.epsilon_claimed <= 3
    (100, 100, True)
    """
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(recipe)
    refuse_texts(recipe)
    number = default_guesses(canaries) if guesses is None else guesses
    check_counts(number, canaries, recipe.privacy.delta, confidence)  # before anything is spent
    with surroundings(recipe):
        loss = losses.build(recipe.loss)
        splits = load(recipe.data, real_targets=loss.real_targets)
        size = len(splits.train) if splits.people is None else len(splits.people.unique())
        if canaries >= 2 * size:
            of = "training examples" if splits.people is None else "people"
            raise InvalidValue(
                f"half of {canaries} canaries would replace more than the {size} {of}: choose fewer than {2 * size}"
            )
        canary_set = make_canaries(splits, canaries)
        included = _coin_flips(canaries, recipe.privacy.seed)
        mixed = _with_canaries(splits, canary_set, included)
        parts = Parts.build(recipe, device_for(device), splits=mixed)
        # The number of examples is taken to be public, but here it reveals how many canaries are included. The plan,
        # with its sampling rate and its divisor of noisy sums, is therefore made for the number without canaries.
        run = parts.prepare(parts.solve(size=size))
        private = run.private
        if ledger is not None:
            opened = ledger if isinstance(ledger, budget.Ledger) else budget.Ledger(ledger)
            attach(run, opened, what=f"audit of {recipe.name}")
        before = _losses(private.model, canary_set, run.device, loss)
        for _ in train(
            private, splits.test, device=run.device, loss=loss, scheduler=run.scheduler, evaluate_every=run.steps
        ):
            pass
        private.account.close()
        return OneRunAudit.of(
            before - _losses(private.model, canary_set, run.device, loss),
            included,
            epsilon_claimed=private.epsilon(),
            delta=private.delta,
            guesses=number,
            confidence=confidence,
            seeded=private.seeded,
        )


def refuse_texts(recipe: Recipe) -> None:
    """Says so if there are no canaries for the recipe's data."""
    if recipe.data.text is not None:
        raise InvalidValue(
            "--one-run needs canaries, and there are none for data.text: leave it out. The other audits test the "
            "clipping, the noise and the sampling of this recipe"
        )


def make_canaries(splits: data.Splits, number: int) -> TensorDataset:
    """Examples that are easy to memorise and unlike all other examples, with random targets.

    Every coordinate is Gaussian around the middle of its range in the test set, with a standard deviation of three
    times that range (the whole test set's, where a coordinate is constant). Such examples are far from the data and
    from each other; the privacy guarantee covers them like any other. Mislabelled examples, shuffled pixels and inputs
    within the range were tried, and are memorised less. Token ids are drawn from those of the test set, and so are
    real-valued targets.

    >>> make_canaries(data.digits(), 3).tensors[0].shape
    torch.Size([3, 1, 8, 8])
    """
    examples, targets = _tensors(splits.test)
    size = (number, *splits.shape)
    if splits.classes is None:
        labels = targets[torch.randint(len(targets), (number,))]
    else:
        labels = torch.randint(splits.classes, (number,))
    if not examples.is_floating_point():
        tokens = examples.unique()
        return TensorDataset(tokens[torch.randint(len(tokens), size)], labels)
    low, high = examples.amin(0), examples.amax(0)
    spread = torch.where(low == high, examples.max() - examples.min(), high - low)
    return TensorDataset((low + high) / 2 + 3 * spread * torch.randn(size), labels)


def _coin_flips(number: int, seed: int | None) -> Tensor:
    """Fair coin flips [number], from a stream of their own: independent of noise and sampling, also under a seed."""
    stream = Keystream("audit coins", seed)
    return torch.frombuffer(stream.read(number, stream.next_draw(), chunk=0), dtype=torch.uint8) % 2 == 1


def _with_canaries(splits: data.Splits, canary_set: TensorDataset, included: Tensor) -> data.Splits:
    """The data set with canaries in what is trained on; its expected number of examples, or people, is the old one."""
    people = splits.people
    if people is None:
        kept = torch.randperm(len(splits.train))[len(canary_set) // 2 :]
    else:
        everybody = people.unique()
        staying = everybody[torch.randperm(len(everybody))[len(canary_set) // 2 :]]
        kept = torch.isin(people, staying).nonzero().squeeze(1)
        people = torch.cat([people[kept], int(everybody.max()) + 1 + torch.arange(int(included.sum()))])
    pairs = zip(_tensors(splits.train), canary_set.tensors, strict=True)
    return replace(splits, train=TensorDataset(*(torch.cat([a[kept], b[included]]) for a, b in pairs)), people=people)


def _tensors(examples: TensorDataset | data.Texts) -> tuple[Tensor, ...]:
    assert isinstance(examples, TensorDataset)  # texts are refused
    return examples.tensors


@torch.no_grad()
def _losses(model: nn.Module, canary_set: TensorDataset, device: torch.device, loss: Loss) -> Tensor:
    """Every canary's loss [m], on the CPU."""
    training = model.training
    model.eval()
    found = [loss.per_example(model(x.to(device)), y.to(device)).cpu() for x, y in DataLoader(canary_set, TEST_BATCH)]
    model.train(training)
    return torch.cat(found)
