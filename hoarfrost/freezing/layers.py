"""Freezing whole layers from some step on: DP-SGD-LF, after "Improving utility ... via layer freezing"."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase

from hoarfrost import validate
from hoarfrost.errors import InvalidValue
from hoarfrost.freezing.base import Freezer
from hoarfrost.info import RunInfo
from hoarfrost.masks import Live
from hoarfrost.registry import Natural, Patterns, Positive, Share, component

LAST_STEPS = 20  # the paper's default: the layers are frozen for so many steps at the end


@component(
    "freeze",
    "layers",
    at_most_one=(("first", "names", "train"), ("step", "fraction", "epoch", "epsilon")),
    examples=lambda: [(Layers(first=1, step=0), 2 / 3)],
)
@dataclass(frozen=True, repr=False)
class Layers(Freezer):
    """The first layers, or those that are named, are frozen from some step on.

    Args:
        first: how many layers are frozen, in the order in which the model uses them; by default the first half (rounded
            down). A share below 1 is taken of their number, and rounded.
        names: instead of ``first``: patterns of parameter or module names (``"stem.*"``, ``"blocks.[01].*"``,
            ``"conv1"``).
        train: instead of ``first``: the patterns of what stays live; everything else is frozen.
        step: the freezing begins after so many steps; by default 20 steps before the end.
        fraction: instead of ``step``: it begins after that share of the run.
        epoch: instead of ``step``: it begins with that epoch, counted from 0.
        epsilon: instead of ``step``: it begins when so much is spent.

    >>> info = RunInfo({"a.weight": (2, 2), "b.weight": (2, 2)}, (("a.weight",), ("b.weight",)), 100, 0.1, lambda e: 40)
    >>> dict(Layers().live(79, info)), dict(Layers().live(80, info))
    ({'a.weight': True, 'b.weight': True}, {'a.weight': False, 'b.weight': True})
    >>> Layers(train=["b"], epsilon=2.0).begins(info)
    40
    """

    first: Positive | None = None
    names: Patterns | None = None
    train: Patterns | None = None
    step: Natural | None = None
    fraction: Share | None = None
    epoch: Natural | None = None
    epsilon: Positive | None = None

    def __post_init__(self) -> None:
        if sum(given is not None for given in (self.first, self.names, self.train)) > 1:
            raise InvalidValue("give one of first=, names= and train=")
        if sum(given is not None for given in (self.step, self.fraction, self.epoch, self.epsilon)) > 1:
            raise InvalidValue("give one of step=, fraction=, epoch= and epsilon=")
        if self.first is not None:
            validate.positive(first=self.first)
            validate.finite(first=self.first)
            if self.first >= 1 and self.first != int(self.first):
                raise InvalidValue(f"first is a number of layers, or a share below 1, got {self.first}")
        if self.fraction is not None:
            validate.not_negative(fraction=self.fraction)
            if self.fraction >= 1:
                raise InvalidValue(f"fraction must lie from 0 to below 1, got {self.fraction}")
        for name in ("names", "train"):
            patterns = getattr(self, name)
            if isinstance(patterns, str):
                object.__setattr__(self, name, (patterns,))
            elif patterns is not None and (not patterns or not all(isinstance(each, str) for each in patterns)):
                raise InvalidValue(f"{name} takes patterns of names, such as {name}=['stem.*'], got {patterns!r}")
        if self.epsilon is not None:
            validate.positive(epsilon=self.epsilon)
        validate.count(**{n: v for n, v in (("step", self.step), ("epoch", self.epoch)) if v is not None})

    def __repr__(self) -> str:
        given = [
            f"{field.name}={value!r}" for field in fields(self) if (value := getattr(self, field.name)) is not None
        ]
        return f"Layers({', '.join(given)})"

    def begins(self, info: RunInfo) -> int:
        """The first step in which the layers are frozen."""
        if self.step is not None:
            return self.step
        if self.epoch is not None:
            return info.first_step(self.epoch)
        if self.epsilon is not None:
            return info.steps_within(self.epsilon)
        if info.steps is None:
            raise InvalidValue("freezing towards the end of a run needs to know how long it is: give epochs= or steps=")
        if self.fraction is not None:
            return round(self.fraction * info.steps)
        return max(0, info.steps - LAST_STEPS)

    def frozen(self, info: RunInfo) -> frozenset[str]:
        """The parameters that are frozen, once it begins."""
        if self.names is not None:
            return frozenset(name for pattern in self.names for name in matching(pattern, info))
        if self.train is not None:
            return frozenset(info.shapes) - {name for pattern in self.train for name in matching(pattern, info)}
        if not info.ordered:
            raise InvalidValue(
                "which layers come first is not known before the model has run on a batch. Run it on empty batches, "
                "too, or name the layers: Layers(names=[...])"
            )
        layers = len(info.layers)
        number = layers // 2 if self.first is None else self.first
        chosen = round(number * layers) if isinstance(number, float) and number < 1 else int(number)
        if chosen >= layers:
            raise InvalidValue(f"the model has {layers} layers: freezing the first {chosen} would leave none to train")
        return frozenset(name for layer in info.layers[:chosen] for name in layer)

    def check(self, info: RunInfo) -> None:
        begins, frozen = self.begins(info), self.frozen(replace(info, ordered=True))  # how many, in any order
        if len(frozen) == len(info.shapes):
            raise InvalidValue("freezing these layers leaves nothing to train")
        if not frozen:
            raise InvalidValue(f"{self!r} freezes nothing: the model has {len(info.layers)} layer(s)")
        if info.steps is not None and begins >= info.steps:
            raise InvalidValue(f"{self!r} would freeze after {begins} steps, and the run has {info.steps}: never")

    def key(self, step: int, info: RunInfo) -> Hashable:
        return step >= self.begins(info)

    def live(self, step: int, info: RunInfo) -> Live:
        frozen = self.frozen(info) if step >= self.begins(info) else frozenset()
        return {name: name not in frozen for name in info.shapes}


def matching(pattern: str, info: RunInfo) -> list[str]:
    """Parameters whose name, or the name of a module they are in, matches."""
    found = []
    for name in info.shapes:
        parts = name.split(".")
        prefixes = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
        if any(fnmatchcase(prefix, pattern) for prefix in prefixes):
            found.append(name)
    if not found:
        raise InvalidValue(f"no parameter or module is named {pattern!r}; there are {', '.join(info.shapes)}")
    return found
