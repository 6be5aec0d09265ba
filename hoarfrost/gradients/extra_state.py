"""What a state_dict holds besides parameters and buffers: the extra state of modules, and what they write there."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from hoarfrost.kept import matches, refusal, same

WAYS = ("state_dict", "_save_to_state_dict", "get_extra_state")


class ExtraState:
    """Sees to it that what modules put into a state_dict by ways of their own stays as it is now.

    These are modules with `get_extra_state`, or with a `state_dict` of their own (persistent states of torchmetrics,
    say). Most models have none.

    Args:
        allowed: patterns of names that were declared to be public.

    >>> class Counting(nn.Linear):
    ...     seen = 0
    ...     def get_extra_state(self):
    ...         return self.seen
    >>> model = nn.Sequential(Counting(2, 2))
    >>> extra = ExtraState(model)
    >>> extra.check()
    >>> model[0].seen = 3
    >>> extra.check()
    Traceback (most recent call last):
        ...
    hoarfrost.errors.NotPrivate: the extra state 0._extra_state changes after the first batch was handed over, ...
    """

    def __init__(self, model: nn.Module, allowed: Sequence[str] = ()) -> None:
        self._allowed = allowed
        self._modules = [(name, module) for name, module in model.named_modules() if _has_some(module)]
        self._before = [copy.deepcopy(_beyond(module)) for _, module in self._modules]

    def follow(self, module: nn.Module) -> None:
        """What ``module`` holds now has come from a state_dict."""
        for number, (_, each) in enumerate(self._modules):
            if each is module:
                self._before[number] = copy.deepcopy(_beyond(module))

    def check(self) -> None:
        """Refuses what is another one than before, by name."""
        for (name, module), before in zip(self._modules, self._before, strict=True):
            now = _beyond(module)
            for key in before.keys() | now.keys():
                full = f"{name}.{key}" if name else key
                if matches(full, self._allowed):
                    continue
                if key not in now or key not in before or not _alike(before[key], now[key]):
                    what = "disappears" if key not in now else "appears" if key not in before else "changes"
                    raise refusal("extra state", full, what)


def _has_some(module: nn.Module) -> bool:
    own, plain = type(module), nn.Module
    return any(getattr(own, way) is not getattr(plain, way) for way in WAYS)


def _beyond(module: nn.Module) -> dict[str, Any]:
    """What the module's state_dict has besides what is registered."""
    registered = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    registered |= {name for name, _ in module.named_buffers(remove_duplicate=False)}
    return {name: value for name, value in module.state_dict().items() if name not in registered}


def _alike(a: Any, b: Any) -> bool:
    """Whether both are the same, to the bit where they are tensors; what cannot be compared is not."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and same(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_alike(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_alike, a, b))
    try:
        return bool(a == b)
    except Exception:  # arrays of another library, say, whose comparison has many answers
        return False
