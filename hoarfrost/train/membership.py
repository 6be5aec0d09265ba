"""Attacks on the membership of a run's training examples, with its own model and data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset

from hoarfrost import validate
from hoarfrost.budget import profile
from hoarfrost.budget.events import from_dict
from hoarfrost.data import Splits, Texts
from hoarfrost.data.splits import Examples
from hoarfrost.errors import InvalidValue
from hoarfrost.measure import Logistic, Membership, Tradeoff, label_log_odds, lira, loss_threshold
from hoarfrost.measure.tradeoff import EPSILONS
from hoarfrost.models import outputs_of
from hoarfrost.nested import map_tensors
from hoarfrost.train import fingerprint, shadows
from hoarfrost.train.evaluation import TEST_BATCH, TEST_TEXTS
from hoarfrost.train.folder import read_json
from hoarfrost.train.loading import Trained
from hoarfrost.train.prepare import device_for
from hoarfrost.untrusted import shown_path

ATTACKS = ("logistic", "threshold", "lira")


@dataclass(frozen=True)
class Examined:
    """As many members as non-members, and what the model says about them: members first."""

    members: Tensor  # places in the training set [n]
    non_members: Tensor  # places in the test set [n]
    outputs: Tensor  # [2n, ...], on the CPU
    targets: Tensor  # [2n]


def attack(
    run: str | Path,
    kind: str = "logistic",
    *,
    shadow_models: int = 8,
    examples: int | None = None,
    device: str | torch.device | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Membership:
    """Attacks a finished run: members are training examples, non-members are test examples, as many of each class.

    Args:
        run: a run folder. The data that its recipe names must still be there.
        kind: "logistic" (fitted on one half of both, measured on the other), "threshold" (of the loss) or "lira",
            which trains shadow models first: see `shadows.train_all`.
        shadow_models: how many for "lira"; an even number, at least 4.
        examples: at most so many members and as many non-members; by default as many as there are.
        device: by default the GPU if there is one.
        say: is told what takes long.

    The result was computed from private data without noise: it is not private, and neither are the shadow models, which
    stay in the run's not-private/ and are charged to no budget.

    >>> import tempfile
    >>> from hoarfrost.train import read_recipe, run
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = run(read_recipe("digits", ["privacy.steps=2"]), out=f"{folder}/run")
    ...     found = attack(f"{folder}/run", "threshold")
    >>> len(found.roc.members) == len(found.roc.non_members) > 250, found.red_flags
    (True, ())
    """
    if kind not in ATTACKS:
        raise InvalidValue(f"an attack is {', '.join(ATTACKS[:-1])} or {ATTACKS[-1]}, got {kind!r}")
    trained, where = Trained.load(run), device_for(device)
    data = fingerprint.digest(trained.splits.train, trained.splits.people)
    if (trained.folder / fingerprint.FILE).exists() and not fingerprint.same(trained.folder, data):
        raise InvalidValue(
            f"the training data of the recipe in {shown_path(trained.folder)} have changed since the run: who was a "
            "member is not known any more. Bring back the data that it was trained on"
        )
    if kind == "lira":
        shadows.check(trained, shadow_models)
    found = examine(trained, examples, where)
    scores, kept = _scores(trained, found, kind, shadow_models, where, say)
    inside = torch.arange(len(found.targets)) < len(found.members)
    classes = None
    if trained.splits.classes is not None:
        classes = found.targets[kept & inside], found.targets[kept & ~inside]
    claim, bound = allowed(trained.folder)
    return Membership.of(scores[kept & inside], scores[kept & ~inside], classes, bound=bound, claim=claim)


def allowed(folder: Path) -> tuple[tuple[float, float] | None, Tradeoff]:
    """The (ε, δ) that a run folder states, and the bound by the whole privacy profile of what it released."""
    stated = read_json(folder, "budget.json")
    try:
        events = [from_dict(each) for each in stated["releases"]]
        if stated["epsilon"] is None:
            return None, Tradeoff()
        claim = float(stated["epsilon"]), float(stated["delta"])
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidValue(f"{folder / 'budget.json'} is not as `hoarfrost train` writes it") from error
    return claim, Tradeoff([claim, *zip(EPSILONS, profile(events, EPSILONS), strict=True)])


def examine(trained: Trained, most: int | None, device: torch.device) -> Examined:
    """Chooses members and non-members, always the same ones, and runs the model on them."""
    members, non_members = choose(trained.splits, most)
    model = trained.model.to(device)
    parts = ((trained.splits.train, members), (trained.splits.test, non_members))
    outputs, targets = zip(*(_outputs(model, part, places, device) for part, places in parts), strict=True)
    return Examined(members, non_members, torch.cat(outputs), torch.cat(targets))


def choose(splits: Splits, most: int | None) -> tuple[Tensor, Tensor]:
    """Places in the training set and in the test set: as many of both, of each class, and at most ``most`` of each.

    Classes are balanced so that an attack cannot gain from training and test set having different shares of them.
    """
    if most is not None:
        validate.whole(examples=most)
    generator = torch.Generator().manual_seed(0)
    train, test = (_targets(part) for part in (splits.train, splits.test))
    orders = [torch.randperm(len(each), generator=generator) for each in (train, test)]
    if splits.classes is None:
        pairs = [(orders[0], orders[1])]
    else:
        kinds = sorted({*train.tolist()} & {*test.tolist()})
        pairs = [(orders[0][train[orders[0]] == kind], orders[1][test[orders[1]] == kind]) for kind in kinds]
    alike = [(ours[: len(others)], others[: len(ours)]) for ours, others in pairs]
    members, non_members = (torch.cat(each) for each in zip(*alike, strict=True))
    shuffled = torch.randperm(len(members), generator=generator)[:most]
    return members[shuffled], non_members[shuffled]


def _scores(
    trained: Trained, found: Examined, kind: str, models: int, device: torch.device, say: Callable[[str], None]
) -> tuple[Tensor, Tensor]:
    """A score for each example, and which of them the attack is measured on."""
    everybody, half = torch.ones(len(found.targets), dtype=torch.bool), len(found.members)
    if kind == "threshold":
        return loss_threshold(trained.loss.of_each(found.outputs, found.targets)), everybody
    logits = trained.loss.logits(found.outputs)
    if logits is None:
        raise InvalidValue("the logistic attack looks at logits, which a regression has none of: use threshold")
    if kind == "lira":
        pool = shadows.Pool(found.members, found.non_members)
        statistics, included = shadows.train_all(trained, pool, models, device=device, say=say)
        return lira(label_log_odds(logits, found.targets), statistics, included), everybody
    fitted_on = torch.arange(len(found.targets)) % half < half // 2
    inside = torch.arange(len(found.targets)) < half
    if half < 2:
        raise InvalidValue("the logistic attack needs two members and two non-members or more: it is fitted on half")
    fitted = Logistic.fit(logits[fitted_on], found.targets[fitted_on], inside[fitted_on])
    return fitted(logits, found.targets), ~fitted_on


def _targets(part: Examples) -> Tensor:
    return part.targets if isinstance(part, Texts) else part.tensors[1]


@torch.no_grad()
def _outputs(model: nn.Module, part: Examples, places: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """The model's outputs and the targets of some examples, in evaluation mode."""
    texts = isinstance(part, Texts)
    loader = DataLoader(
        Subset(part, places.tolist()),
        batch_size=TEST_TEXTS if texts else TEST_BATCH,
        collate_fn=part.collate if isinstance(part, Texts) else None,
    )
    model.eval()
    outputs, targets = [], []
    for x, y in loader:
        outputs.append(outputs_of(model, map_tensors(lambda t: t.to(device), x)).cpu())
        targets.append(y)
    return torch.cat(outputs), torch.cat(targets)
