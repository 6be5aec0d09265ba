"""The parts of a model between which DP-FROST chooses, and the head that it always trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hoarfrost.errors import InvalidValue
from hoarfrost.freezing.layers import matching
from hoarfrost.info import RunInfo

By = Literal["weight", "module", "block"]
SOME = 6  # names that a message shows


@dataclass(frozen=True)
class Partition:
    """Parameters that are chosen together, and how many numbers they have."""

    name: str
    parameters: tuple[str, ...]
    size: int


@dataclass(frozen=True)
class Layout:
    """What there is to choose between, and how much of it may be chosen.

    Args:
        head: parameters that are live in any case.
        candidates: partitions of which some, and not all, can be chosen.
        never: partitions that are larger than the room.
        room: how many numbers may be chosen.
        total: how many numbers the optimizer moves.
    """

    head: tuple[str, ...]
    candidates: tuple[Partition, ...]
    never: tuple[Partition, ...]
    room: int
    total: int


def layout_of(info: RunInfo, by: By | Sequence[str], head: Sequence[str] | None, ratio: float) -> Layout:
    """The head, and the partitions of everything else; refuses a ratio with which there is nothing to choose.

    Args:
        by: "weight": each weight with its bias. "module": what a module holds itself. "block": what is below the first
            number in its name (``encoder.layer.3``), or else below the module around it. Or patterns, of which each is
            a partition.
        head: patterns of its names; by default what `RunInfo.head` says.
        ratio: of all numbers, so many may be live, those of the head among them.

    >>> import torch
    >>> shapes = {"a.weight": (4, 3), "a.bias": (4,), "b.weight": (4, 4), "c.weight": (2, 4)}
    >>> info = RunInfo({name: torch.Size(shape) for name, shape in shapes.items()}, head=("c.weight",))
    >>> [(each.name, each.size) for each in layout_of(info, "weight", None, ratio=0.7).candidates]
    [('a', 16), ('b', 16)]
    """
    kept = head_of(info, head)
    rest = [name for name in info.shapes if name not in kept]
    if not rest:
        raise InvalidValue("everything is in the head: there is nothing left to choose from")
    found = _by_patterns(info, rest, by) if not isinstance(by, str) else _by_names(rest, by)
    partitions = [
        Partition(name, tuple(names), sum(info.shapes[each].numel() for each in names)) for name, names in found.items()
    ]
    total = sum(shape.numel() for shape in info.shapes.values())
    in_head = sum(info.shapes[name].numel() for name in kept)
    room = int(ratio * total) - in_head
    smallest = min(partitions, key=lambda each: each.size)
    if room < smallest.size:
        needed = (in_head + smallest.size) / total
        raise InvalidValue(
            f"ratio {ratio:g} admits no partition: of {total} numbers it allows {int(ratio * total)}, the head "
            f"takes {in_head} of them, and the smallest partition, {smallest.name}, has {smallest.size}. Take a ratio "
            f"above {needed:.3g}, or smaller partitions"
        )
    candidates = tuple(each for each in partitions if each.size <= room)
    if sum(each.size for each in candidates) <= room:
        names = ", ".join(repr(name) for each in candidates[:SOME] for name in each.parameters[:1])
        raise InvalidValue(
            f"ratio {ratio:g} leaves nothing to choose: all {len(candidates)} partitions that fit at all ({names}"
            f"{', ...' if len(candidates) > SOME else ''}) fit together. Take a smaller ratio, or say what is trained "
            "without asking the data: Layers(train=[...], step=0)"
        )
    never = tuple(each for each in partitions if each.size > room)
    return Layout(kept, candidates, never, room, total)


def head_of(info: RunInfo, patterns: Sequence[str] | None) -> tuple[str, ...]:
    """The parameters of the head."""
    if patterns is not None:
        chosen = {name for pattern in patterns for name in matching(pattern, info)}
        return tuple(name for name in info.shapes if name in chosen)
    if not info.head:
        names = list(info.shapes)
        raise InvalidValue(
            "which part of the model is its head cannot be told from its names. Say it, for it is always trained and "
            f"not measured: head=['classifier.*'], or head=[] if none is new. There are {', '.join(names[:SOME])}"
            f"{', ...' if len(names) > SOME else ''}"
        )
    return info.head


def _by_names(names: Sequence[str], by: str) -> dict[str, list[str]]:
    ways = {"weight": _weight, "module": _module, "block": _block}
    if by not in ways:
        raise InvalidValue(f"partitions are by {', '.join(map(repr, ways))}, or a list of patterns, got {by!r}")
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(ways[by](name), []).append(name)
    return found


def _by_patterns(info: RunInfo, names: Sequence[str], patterns: Sequence[str]) -> dict[str, list[str]]:
    if not patterns or not all(isinstance(each, str) for each in patterns):
        raise InvalidValue(f"partitions takes patterns of names, such as ['*.query', '*.LayerNorm'], got {patterns!r}")
    if len(set(patterns)) != len(patterns):
        raise InvalidValue(f"a pattern of partitions is said twice: {', '.join(map(repr, patterns))}")
    found = {pattern: [name for name in matching(pattern, info) if name in names] for pattern in patterns}
    for pattern, inside in found.items():
        if not inside:
            raise InvalidValue(f"the partition {pattern!r} holds nothing but the head, which is always trained")
    for name in names:
        holding = [pattern for pattern, inside in found.items() if name in inside]
        if len(holding) != 1:
            which = f"in the partitions {' and '.join(map(repr, holding))}" if holding else "in no partition"
            raise InvalidValue(
                f"{name} is {which}: every parameter that the optimizer moves belongs to exactly one, or to the head. "
                "Write patterns that say so, or leave it out of the optimizer"
            )
    return found


def _weight(name: str) -> str:
    """Where the weight and the bias of one matrix meet.

    >>> _weight("rnn.bias_ih_l0"), _weight("rnn.weight_ih_l0"), _weight("a.in_proj_weight"), _weight("a.scale")
    ('rnn.ih_l0', 'rnn.ih_l0', 'a.in_proj', 'a.scale')
    """
    module, _, last = name.rpartition(".")
    words = [word for word in last.split("_") if word not in ("weight", "bias")]
    return ".".join(filter(None, (module, "_".join(words)))) or name


def _module(name: str) -> str:
    return name.rpartition(".")[0] or name


def _block(name: str) -> str:
    """The block that a parameter is in.

    >>> _block("bert.encoder.layer.3.output.dense.weight"), _block("bert.pooler.dense.bias"), _block("conv.weight")
    ('bert.encoder.layer.3', 'bert.pooler', 'conv')
    """
    parts = name.split(".")[:-1]
    for place, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: place + 1])
    return ".".join(parts[:-1] or parts) or name
