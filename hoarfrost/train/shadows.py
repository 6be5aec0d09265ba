"""Shadow models: the run's own recipe trained again, on data of which the attacked examples are a random half."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor
from torch.utils.data import TensorDataset

from hoarfrost import validate
from hoarfrost.data import Splits
from hoarfrost.errors import InvalidValue
from hoarfrost.files import replace_file
from hoarfrost.measure import label_log_odds
from hoarfrost.models import outputs_of
from hoarfrost.recipes.loading import to_toml
from hoarfrost.recipes.schema import Recipe
from hoarfrost.train import fingerprint
from hoarfrost.train.evaluation import TEST_BATCH
from hoarfrost.train.folder import read_json
from hoarfrost.train.formatting import duration
from hoarfrost.train.loading import Trained, as_calibrated
from hoarfrost.train.loop import train
from hoarfrost.train.prepare import Parts, surroundings
from hoarfrost.untrusted import shown_path

FOLDER = "not-private/shadows"


@dataclass(frozen=True)
class Pool:
    """The attacked examples: places in the training set [n], and as many in the test set."""

    members: Tensor
    non_members: Tensor

    def included(self, number: int) -> Tensor:
        """Whether a shadow model is trained on each [2n]: a random half of them, and the next model on the others.

        >>> pool = Pool(torch.arange(3), torch.arange(3))
        >>> bool((pool.included(0) ^ pool.included(1)).all()), int(pool.included(0).sum())
        (True, 3)
        """
        size = 2 * len(self.members)
        half = torch.randperm(size, generator=torch.Generator().manual_seed(number // 2)) < size // 2
        return half if number % 2 == 0 else ~half


def train_all(
    trained: Trained, pool: Pool, count: int, *, device: torch.device, say: Callable[[str], None]
) -> tuple[Tensor, Tensor]:
    """Trains shadow models, or reads what was kept of those that were trained before.

    Each has the run's recipe, noise and number of examples: all training examples that are not attacked, and a random
    half of the attacked members and non-members together. So members and non-members each have half of the shadow
    models with them and half without, and nothing but the attacked model itself tells them apart.

    Returns:
        `label_log_odds` of the attacked examples under each model [S, 2n], and whether it was trained on them [S, 2n].
    """
    folder = trained.folder / FOLDER / _key(trained, pool)
    paths = [folder / f"shadow-{number:03}.safetensors" for number in range(count)]
    missing = [number for number, path in enumerate(paths) if not path.exists()]
    if missing:
        seconds = read_json(trained.folder, "run.json").get("seconds")
        each = float(seconds) if isinstance(seconds, int | float) else 0.0
        say(
            f"{len(missing)} of {count} shadow models are still to be trained, each as long as the run itself "
            f"({duration(each)}): about {duration(len(missing) * each)}. What they say is kept in "
            f"{shown_path(folder)}; if this is broken off, the next call goes on from there"
        )
        folder.mkdir(parents=True, exist_ok=True)
    for number in missing:
        content = save({"statistic": _train_one(trained, pool, number, device)})
        replace_file(paths[number], lambda draft, content=content: draft.write_bytes(content))  # type: ignore[misc]
        say(f"shadow model {number + 1} of {count} is trained")
    size = 2 * len(pool.members)
    return torch.stack([_read(path, size) for path in paths]), torch.stack([pool.included(i) for i in range(count)])


def check(trained: Trained, count: int) -> None:
    """Refuses what there are no shadow models for, before anything is run."""
    validate.whole(shadows=count)
    if count < 4 or count % 2:
        raise InvalidValue(
            f"LiRA needs an even number of shadow models, at least 4 (of each example two with it and two without it), "
            f"got {count}"
        )
    if trained.recipe.data.text is not None:
        raise InvalidValue("there are no shadow models for texts: use --attack logistic or threshold")
    if trained.splits.people is not None:
        raise InvalidValue(
            "there are no shadow models for data of people with several rows: use --attack logistic or threshold"
        )
    if trained.loss.real_targets:
        raise InvalidValue("LiRA looks at logits, which a regression has none of: use --attack threshold")
    status = read_json(trained.folder, "run.json").get("status")
    if status != "completed":
        raise InvalidValue(
            f"the run in {shown_path(trained.folder)} is not completed, and shadow models would train longer than it "
            "did: finish it with `hoarfrost train --resume`, or use --attack logistic or threshold"
        )


def mixed(splits: Splits, pool: Pool, included: Tensor) -> TensorDataset:
    """What a shadow model is trained on: as many examples as the run was."""
    assert isinstance(splits.train, TensorDataset)  # texts are refused
    assert isinstance(splits.test, TensorDataset)
    rest = torch.ones(len(splits.train), dtype=torch.bool)
    rest[pool.members] = False
    half = len(pool.members)
    places = pool.members[included[:half]], pool.non_members[included[half:]]
    return TensorDataset(
        *(
            torch.cat([inside[rest], inside[places[0]], outside[places[1]]])
            for inside, outside in zip(splits.train.tensors, splits.test.tensors, strict=True)
        )
    )


def _train_one(trained: Trained, pool: Pool, number: int, device: torch.device) -> Tensor:
    recipe = _reseeded(trained.recipe, number)
    with surroundings(recipe):
        splits = replace(trained.splits, train=mixed(trained.splits, pool, pool.included(number)))
        parts = Parts.build(recipe, device, splits=splits)
        run = parts.prepare(parts.solve(**as_calibrated(trained.folder)))
        for _ in train(
            run.private, splits.test, device=device, loss=run.loss, scheduler=run.scheduler, evaluate_every=run.steps
        ):
            pass
        return _statistic(run.private.model, trained, pool, device)


@torch.no_grad()
def _statistic(model: torch.nn.Module, trained: Trained, pool: Pool, device: torch.device) -> Tensor:
    model.eval()
    found = []
    for part, places in ((trained.splits.train, pool.members), (trained.splits.test, pool.non_members)):
        assert isinstance(part, TensorDataset)
        x, y = part.tensors
        for some in places.split(TEST_BATCH):
            logits = trained.loss.logits(outputs_of(model, x[some].to(device)))
            assert logits is not None  # regressions are refused
            found.append(label_log_odds(logits, y[some]).cpu())
    return torch.cat(found)


def _reseeded(recipe: Recipe, number: int) -> Recipe:
    """With another seed if it has one: the run's own would draw the run's own noise."""
    seed = recipe.privacy.seed
    if seed is None:
        return recipe
    return recipe.model_copy(update={"privacy": recipe.privacy.model_copy(update={"seed": seed + 1 + number})})


def _key(trained: Trained, pool: Pool) -> str:
    """Of what the shadow models depend on: the recipe, the noise, the data and the attacked examples."""
    total = hashlib.sha256(to_toml(trained.recipe).encode())
    total.update(repr(as_calibrated(trained.folder)).encode())
    total.update(fingerprint.digest(trained.splits.train))
    total.update(fingerprint.digest(trained.splits.test))
    total.update(fingerprint.digest(TensorDataset(pool.members, pool.non_members)))
    return total.hexdigest()[:16]


def _read(path: Path, size: int) -> Tensor:
    try:
        found = load_file(path)["statistic"]
    except (SafetensorError, OSError, KeyError) as error:
        raise InvalidValue(f"{shown_path(path)} cannot be read; remove it, and the model is trained again") from error
    if found.shape != (size,):
        raise InvalidValue(f"{shown_path(path)} is of other examples; remove it, and the model is trained again")
    return found
