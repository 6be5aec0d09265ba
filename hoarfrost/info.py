"""What clipping styles and freezers may know of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from hoarfrost import epochs


@dataclass(frozen=True)
class RunInfo:
    """The shape of the model and the plan of the run. No data, and no gradients.

    Args:
        shapes: of the parameters that the optimizer moves, by name.
        layers: the parameters of each layer, in the order in which the model uses the layers.
        steps: that the run is planned for; None without a limit.
        sample_rate: the probability with which each example takes part in a step.
        steps_within: how many steps the weights will have behind them when so much epsilon is spent.
        ordered: False before the model has run: then the layers are in the order in which it lists them.
        noise_multiplier: of every step.
        expected_batch: what clipped sums are divided by.
        head: the parameters that turn what the model has computed into its output (`head_of`); none if that is not
            clear.
        pretrained: whether the model says that its weights were loaded (`says_pretrained`); None if it does not say.
    """

    shapes: Mapping[str, torch.Size]
    layers: tuple[tuple[str, ...], ...] = ()
    steps: int | None = None
    sample_rate: float = 1.0
    steps_within: Callable[[float], int] = int
    ordered: bool = True
    noise_multiplier: float = 1.0
    expected_batch: float = 1.0
    head: tuple[str, ...] = ()
    pretrained: bool | None = None

    def epoch_of(self, step: int) -> int:
        """The epoch that a step belongs to, both counted from 0."""
        return epochs.epoch_of(step, self.sample_rate)

    def first_step(self, epoch: int) -> int:
        """The step that an epoch begins with."""
        return epochs.first_step(epoch, self.sample_rate)


def layers_of(
    model: nn.Module, used: Sequence[nn.Module], parameters: Mapping[str, nn.Parameter]
) -> tuple[tuple[str, ...], ...]:
    """The parameters of each layer, by name, in the order in which the model uses the layers."""
    names = {p: name for name, p in parameters.items()}
    layers: list[tuple[str, ...]] = []
    placed: set[str] = set()
    for module in _in_order(model, used):
        layer = tuple(names[p] for p in module.parameters(recurse=False) if p in names and names[p] not in placed)
        placed.update(layer)
        layers += [layer] if layer else []
    return tuple(layers)


def head_of(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> tuple[str, ...]:
    """The parameters of a model's head, by name.

    Of a model that says which part of it is the trunk (those of transformers do) all others; nothing if there are none,
    as in language models whose last matrix is that of the first layer. Of any other model the last module's that has
    parameters, as the model lists them; nothing if it is the only one.

    >>> model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2))
    >>> head_of(model, dict(model.named_parameters()))
    ('2.weight', '2.bias')
    """
    trunk = getattr(model, "base_model_prefix", None)
    if isinstance(trunk, str) and trunk:
        # Wrapped for adapters, its names have something in front.
        inside = [name for name in parameters if f".{trunk}." in f".{name}"]
        return tuple(name for name in parameters if name not in inside) if inside else ()
    modules = list(dict.fromkeys(name.rpartition(".")[0] for name in parameters))
    last = tuple(name for name in parameters if name.rpartition(".")[0] == modules[-1])
    return last if len(modules) > 1 else ()


def says_pretrained(model: nn.Module) -> bool | None:
    """Whether a model of transformers was made with ``from_pretrained``, as far as its config says it."""
    origin = getattr(getattr(model, "config", None), "name_or_path", None)
    return bool(origin) if isinstance(origin, str) else None


def _in_order(model: nn.Module, used: Sequence[nn.Module]) -> list[nn.Module]:
    """All modules as the model uses them.

    One that is never called itself (an attention's output projection, say) comes with the nearest one around it that
    is; failing that, last, in the model's own order.
    """
    groups: dict[nn.Module, list[nn.Module]] = {module: [module] for module in used}
    rest: list[nn.Module] = []

    def place(module: nn.Module, around: list[nn.Module]) -> None:
        if module not in groups:
            around.append(module)
        else:
            around = groups[module]
        for child in module.children():
            place(child, around)

    place(model, rest)
    return [module for group in (*groups.values(), rest) for module in group]
