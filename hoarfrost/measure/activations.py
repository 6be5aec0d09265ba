"""What layers answer to the same examples, recorded as often as wanted during a run, and compared with a reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hoarfrost import validate
from hoarfrost.errors import InvalidValue
from hoarfrost.measure.loss_at import Batches
from hoarfrost.measure.similarity import cka, pwcca
from hoarfrost.models import outputs_of
from hoarfrost.nested import map_tensors

MOST_POINTS = 10_000  # of a layer: data points, which are examples or places in them
# What has its channels in the second dimension, however many there are after it.
CHANNELS_SECOND = (
    nn.modules.conv._ConvNd, nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm, nn.GroupNorm,
    nn.modules.pooling._MaxPoolNd, nn.modules.pooling._AvgPoolNd,
)  # fmt: skip
Similarity = Callable[[Tensor, Tensor], float]


@dataclass(frozen=True, kw_only=True)
class Activations:
    """What the layers of a model answered.

    Args:
        of: by the layer's name, [points, neurons]. In images and texts every place of an example is a point of its own.
        places: how many places of an example each layer has; where there are many, some are chosen.
    """

    of: Mapping[str, Tensor]
    places: Mapping[str, int]

    def against(self, reference: Activations, similarity: Similarity = pwcca) -> dict[str, float]:
        """The similarity of each layer with the layer of the same name, in this model's order.

        Layers may differ in width, and the reference may list them in another order. Names that only one of them has
        are refused.
        """
        odd = sorted(set(self.of) ^ set(reference.of))
        if odd:
            who = "the reference has no" if odd[0] in self.of else "only the reference has a"
            raise InvalidValue(f"layers are compared by name, and {who} layer {odd[0]}: name those that both have")
        for name, places in self.places.items():
            if places != reference.places[name]:
                raise InvalidValue(
                    f"layer {name} has {places} places in each example, and the reference's has "
                    f"{reference.places[name]}: they cannot be compared place by place. Leave it out"
                )
        return {name: similarity(found, reference.of[name]) for name, found in self.of.items()}


@torch.no_grad()
def activations(
    model: nn.Module, batches: Batches, *, layers: Sequence[str] | None = None, points: int = MOST_POINTS, seed: int = 0
) -> Activations:
    """What layers of a model answer to some examples, in evaluation mode.

    Args:
        batches: pairs of inputs and targets, of which the targets are not used. Always the same ones, in one order.
        layers: names of modules; by default all that hold parameters themselves, in the order in which they are used.
        points: the most of them in a layer. If examples have more places than that allows, as many are chosen at random
            in each example, the same ones whenever the examples and the seed are the same.

    >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 2))
    >>> found = activations(model, [(torch.randn(6, 1, 4, 4), torch.zeros(6))])
    >>> {name: list(each.shape) for name, each in found.of.items()}
    {'0': [24, 4], '3': [6, 2]}

    Guarantees:
        None: on private examples this is not private. Neither weights nor buffers change, and no random number of
        torch's own generators is drawn.
    """
    validate.whole(points=points)
    kept = _fetched(batches)
    count = sum(len(y) for _, y in kept)
    if count == 0:
        raise InvalidValue("there are no examples to compute activations of")
    recorder = _Recorder(model, _named(model, layers), max(1, points // count), seed)
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        device = next((p.device for p in model.parameters()), None)
        for number, (x, _) in enumerate(kept):
            recorder.batch = number
            outputs_of(model, map_tensors(lambda t: t.to(device), x))
    finally:
        recorder.close()
        for module, training in modes.items():
            module.training = training
    unused = [name for name in layers or () if name not in recorder.found]
    if unused:
        raise InvalidValue(f"the model does not use its layer {unused[0]}: leave it out")
    return Activations(of={name: torch.cat(parts) for name, parts in recorder.found.items()}, places=recorder.places)


@dataclass
class Convergence:
    """Records the activations of a model during its training, to see which layer is the first to be what it ends as.

    Call it with the number of the step, before training and then as often as wanted. It keeps what the layers answer,
    on the processor: points × neurons × 4 bytes for each layer and record.

    Args:
        model: that is trained. It may be private: it is run as it is, in evaluation mode, outside of any step.
        batches: **public** examples, or those of the test set.
        layers, points: as for `activations`.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    >>> record = Convergence(model, [(torch.randn(20, 2), torch.zeros(20))])
    >>> record(0)
    >>> {step: sorted(scores) for step, scores in record.scores().items()}
    {0: ['0', '2']}

    Guarantees:
        It changes nothing in the model and draws none of torch's random numbers: a run that is recorded is the same
        run. What it keeps of private examples is not private.
    """

    model: nn.Module
    batches: Batches
    layers: Sequence[str] | None = None
    points: int = MOST_POINTS
    records: dict[int, Activations] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.batches = _fetched(self.batches)  # now, and never again: a loader may shuffle

    def __call__(self, step: int) -> None:
        """Records the model as it is now."""
        found = activations(self.model, self.batches, layers=self.layers, points=self.points)
        self.records[step] = Activations(of={n: each.cpu() for n, each in found.of.items()}, places=found.places)

    def scores(
        self, similarity: Similarity = pwcca, reference: Activations | None = None
    ) -> dict[int, dict[str, float]]:
        """For each step, how alike each layer is to the reference: by default the last record.

        The papers draw distances, 1 - similarity: 0 is converged.
        """
        if not self.records:
            raise InvalidValue("nothing was recorded: call it with the number of the step")
        reference = reference or self.records[max(self.records)]
        return {step: found.against(reference, similarity) for step, found in self.records.items()}


BY_NAME: Mapping[str, Similarity] = {"PWCCA": pwcca, "CKA": cka}


class _Recorder:
    """Collects what comes out of modules, until it is closed."""

    def __init__(self, model: nn.Module, layers: Mapping[str, nn.Module], places: int, seed: int) -> None:
        self.found: dict[str, list[Tensor]] = {}
        self.places: dict[str, int] = {}
        self.batch = 0
        self._most, self._seed = places, seed
        self._handles = [module.register_forward_hook(self._hook(name)) for name, module in layers.items()]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def note(module: nn.Module, _: Any, output: Any) -> None:
            answered = output[0] if isinstance(output, tuple) else output
            neurons_last = answered.movedim(1, -1) if _channels_second(module, answered) else answered
            by_place = neurons_last.detach().flatten(1, -2) if answered.dim() > 2 else answered.detach()[:, None]
            places = by_place.shape[1]
            if self.places.setdefault(name, places) != places:
                raise InvalidValue(
                    f"layer {name} has {self.places[name]} places in some examples and {places} in others"
                )
            rows = by_place[:, self._chosen(places)].flatten(0, 1).float()
            self.found.setdefault(name, []).append(rows)

        return note

    def _chosen(self, places: int) -> Tensor:
        """The places that are looked at in this batch, if there are more than may be."""
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self.batch)
        return torch.randperm(places, generator=generator)[: self._most].sort().values


def _channels_second(module: nn.Module, answered: Tensor) -> bool:
    return answered.dim() > 2 and (isinstance(module, CHANNELS_SECOND) or answered.dim() > 3)


def _fetched(batches: Batches) -> list[tuple[Any, Tensor]]:
    """The batches that hold something. A DataLoader draws a random number whenever it is gone through."""
    if isinstance(batches, list):
        return [(x, y) for x, y in batches if len(y)]
    with torch.random.fork_rng(devices=[]):
        return [(x, y) for x, y in batches if len(y)]


def _named(model: nn.Module, layers: Sequence[str] | None) -> dict[str, nn.Module]:
    """The modules of those names."""
    every = dict(model.named_modules())
    if layers is None:
        found = {name: m for name, m in every.items() if next(m.parameters(recurse=False), None) is not None}
        if not found:
            raise InvalidValue("no layer of the model holds parameters: say which layers to look at")
        return found
    for name in layers:
        if name not in every:
            raise InvalidValue(f"the model has no layer {name}; there are {', '.join(each for each in every if each)}")
    return {name: every[name] for name in layers}


def steps_of(scores: Mapping[int, Mapping[str, float]]) -> Iterator[tuple[str, list[float]]]:
    """For each layer, its scores in the order of the steps.

    >>> dict(steps_of({5: {"a": 1.0}, 0: {"a": 0.5}}))
    {'a': [0.5, 1.0]}
    """
    for layer in scores[min(scores)]:
        yield layer, [scores[step][layer] for step in sorted(scores)]
