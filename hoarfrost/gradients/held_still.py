"""Random numbers that are the same in every run, and a model that is as it was after each.

Runs on batches of different sizes draw different random numbers, and what is compared between them would differ by that
alone. Here every random number of torch is a constant, the same for each example wherever it stands; dropout then keeps
everything. Numbers of other generators are seeded, and all generators are put back.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hoarfrost.gradients.probe import cuda_devices, seed_all

NORMAL, UNIFORM = 0.7, 0.37  # the normal number, and the uniform one


class ConstantRandomness(TorchDispatchMode):
    """Draws of torch come out as a constant: of mean + 0.7 deviations, say."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        drawn = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return drawn
        name = func.overloadpacket.__name__
        if name == "native_dropout":
            return args[0].clone(), torch.ones_like(drawn[1])
        if name == "rrelu_with_noise":  # (x, slopes that the backward pass reads, lowest, highest slope, training)
            slope = (args[2] + args[3]) / 2
            return args[0] * args[1].copy_(torch.where(args[0] > 0, 1.0, float(slope)))
        constant = _CONSTANTS.get(name)
        if constant is not None and isinstance(drawn, Tensor):
            fill = constant(args, kwargs or {}, drawn)
            drawn.copy_(fill) if isinstance(fill, Tensor) else drawn.fill_(fill)
        return drawn


def _argument(number: int, name: str, default: float) -> Callable[[Any, Any], Any]:
    def get(args: Any, kwargs: Any) -> Any:
        found = kwargs.get(name, args[number] if len(args) > number else default)
        return default if found is None else found

    return get


def _normal(first: int) -> Callable[[Any, Any, Tensor], Any]:
    mean, std = _argument(first, "mean", 0.0), _argument(first + 1, "std", 1.0)
    return lambda args, kwargs, _: mean(args, kwargs) + NORMAL * std(args, kwargs)


def _between(args: Any, kwargs: Any, _: Tensor) -> Any:
    low, high = _argument(1, "from", 0.0)(args, kwargs), _argument(2, "to", 1.0)(args, kwargs)
    return low + UNIFORM * (high - low)


def _integer(args: Any, kwargs: Any, drawn: Tensor) -> int:
    ends = [each for each in args if isinstance(each, int)]
    low, high = ends[:2] if len(ends) > 1 else [0, *(ends or [2])]
    return int(low + UNIFORM * (high - low))


def _share(args: Any, kwargs: Any, _: Tensor) -> Any:
    default = args[0] if args[0].is_floating_point() else 0.5  # torch.bernoulli(shares) has them in place of a tensor
    return kwargs.get("p", args[1] if len(args) > 1 else default)


def _likeliest(args: Any, kwargs: Any, drawn: Tensor) -> Tensor:
    return args[0].topk(drawn.shape[-1], -1).indices if drawn.shape[-1] <= args[0].shape[-1] else drawn


_CONSTANTS: dict[str, Callable[[Any, Any, Tensor], Any]] = {
    "randn": lambda *_: NORMAL, "randn_like": lambda *_: NORMAL, "normal_": _normal(1), "normal": _normal(0),
    "rand": lambda *_: UNIFORM, "rand_like": lambda *_: UNIFORM, "uniform_": _between,
    "bernoulli_": lambda args, kwargs, _: kwargs.get("p", args[1] if len(args) > 1 else 0.5), "bernoulli": _share,
    "randint": _integer, "randint_like": _integer, "random_": _integer, "multinomial": _likeliest,
    "randperm": lambda args, kwargs, drawn: torch.arange(len(drawn) - 1, -1, -1, device=drawn.device),
    "exponential_": lambda args, kwargs, _: NORMAL / _argument(1, "lambd", 1.0)(args, kwargs),
    "log_normal_": lambda *_: 1.0, "cauchy_": lambda *_: NORMAL, "geometric_": lambda *_: 1.0,
    "poisson": lambda args, *_: args[0], "binomial": lambda args, *_: args[0] * args[1],
}  # fmt: skip


@contextmanager
def held_still(model: nn.Module) -> Iterator[Callable[[int], None]]:
    """Random numbers are constants in this block, and all that the model holds is afterwards as it was.

    Yields a function that begins another run: what the one before changed is put back, and generators that torch knows
    nothing of get this seed.
    """
    devices = cuda_devices(model)
    kept = {name: t.detach().clone() for name, t in _tensors(model)}
    numpy = sys.modules.get("numpy")
    states = random.getstate(), numpy.random.get_state() if numpy else None

    def begin(seed: int) -> None:
        _put_back(model, kept)
        seed_all(seed, devices)
        random.seed(seed)
        if numpy:
            numpy.random.seed(seed)

    with torch.random.fork_rng(devices=devices):
        try:
            with ConstantRandomness(), torch.enable_grad():
                yield begin
        finally:
            _put_back(model, kept)
            random.setstate(states[0])
            if numpy:
                numpy.random.set_state(states[1])


def _tensors(model: nn.Module) -> Iterable[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


@torch.no_grad()
def _put_back(model: nn.Module, kept: dict[str, Tensor]) -> None:
    for name, t in _tensors(model):
        if name in kept and t.shape == kept[name].shape and not torch.equal(t, kept[name]):
            t.copy_(kept[name])
