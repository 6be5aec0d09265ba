"""What examples share while the model runs: layers on what is the same for all, and weights read outside of layers.

A lookup of positions, or a layer on a constant, is run on shared tensors (`hoarfrost.gradients.rules.shared`), which
are followed to where they meet examples. The probe shows which layers those are: no dimension of what they are handed
counts examples. A weight that something else than its own layer reads (a tied head that is written out) is lent: while
the whole model runs, its module has a shared tensor in its place, except while the module itself runs. Which ones are
read shows when all of them are lent, in the first runs of a probe.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from hoarfrost.gradients.rules.base import Recorder, not_attributable
from hoarfrost.gradients.rules.direct import Following
from hoarfrost.gradients.rules.fallback import WEIGHT_HOOKS
from hoarfrost.gradients.rules.meeting import Meeting
from hoarfrost.gradients.rules.shared import Made, Shared, Source, in_place_of
from hoarfrost.kept import plain

if TYPE_CHECKING:
    from hoarfrost.gradients.engine import Engine


def as_constants(recorder: Recorder, module: nn.Module, args: Any, kwargs: Any) -> Any:
    """Arguments that all examples share, known to be no examples."""
    meeting = Meeting(recorder, module)

    def constant(item: Any) -> Any:
        fits = isinstance(item, Tensor) and type(item) is not Shared and not item.requires_grad
        return Shared.of(Made(item), meeting) if fits else item

    return tree_map(constant, (args, kwargs))


def run_shared(recorder: Recorder, module: nn.Module, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What ``module`` makes of inputs that all examples share, followed."""
    meeting = Meeting(recorder, module)

    def constant(item: Any) -> Any:
        if not isinstance(item, Tensor) or type(item) is Shared:
            return item
        if item.requires_grad:
            raise not_attributable(recorder.name_of(module), module, item, recorder.rows)
        return Shared.of(Made(item), meeting)

    args, kwargs = tree_map(constant, (args, kwargs))
    own: dict[nn.Module, dict[str, Tensor]] = {}
    for path, inner in module.named_modules():
        prefix = f"{path}." if path else ""
        shared = {key: _share(p, prefix + key, meeting)[0] for key, p in inner._parameters.items() if p is not None}
        if shared:
            own[inner] = shared
    with recorder.paused(), in_place_of(own), Following(meeting):
        return original(*args, **kwargs)


class Held:
    """The tensors that a model holds when it is made private: no example is in them."""

    def __init__(self, model: nn.Module) -> None:
        self._tensors = {id(t): t for module in model.modules() for t in _tensors_in(list(vars(module).values()), 3)}

    def has(self, t: Tensor) -> bool:
        """Whether it is one of them, or a view of one's values: no gradient passes through it."""
        if id(t) in self._tensors:
            return not t.requires_grad
        # A new parameter made from one's values (as transposed ones are in PEFT) is nothing that is trained.
        if not t.is_leaf or (t.requires_grad and type(t) is not nn.Parameter):
            return False
        if not plain(t) or (t.dim() and t.stride(0) == 0):  # repeated for each example, maybe
            return False
        place = t.untyped_storage().data_ptr()
        return place != 0 and place in {
            each.untyped_storage().data_ptr() for each in self._tensors.values() if plain(each)
        }


def _tensors_in(item: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(item, Tensor):
        yield item
    elif isinstance(item, dict | list | tuple) and depth:
        for each in item.values() if isinstance(item, dict) else item:
            yield from _tensors_in(each, depth - 1)


class Lending:
    """Lends weights to whatever reads them outside of the module that holds them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.read: dict[nn.Module, set[str]] = {}  # parameters that are read so, as far as known
        self._before: dict[nn.Module, Mapping[str, Any]] = {}  # what modules hold, while some of it is lent

    def lent(self, *, everything: bool = False) -> AbstractContextManager[None]:
        """While the model runs, shared tensors stand in for the weights that are read, or for all.

        Args:
            everything: notes which of them are read.
        """
        names = self._all() if everything else self.read
        return self._lent(names) if names else nullcontext()

    @contextmanager
    def _lent(self, names: Mapping[nn.Module, Collection[str]]) -> Iterator[None]:
        sources: list[tuple[nn.Module, str, Source | None]] = []
        shared: dict[nn.Module, dict[str, Tensor]] = {}
        meeting = Meeting(self.engine, self.engine.model, constants=False)
        for module, keys in names.items():
            for key in keys:
                p = module._parameters[key]
                assert p is not None
                stand_in, source = _share(p, f"{self.engine.name_of(module)}.{key}", meeting)
                shared.setdefault(module, {})[key] = stand_in
                sources.append((module, key, source))
        self._before = {module: module._parameters for module in shared}
        try:
            with in_place_of(shared):
                yield
        finally:
            self._before = {}
        for module, key, source in sources:
            if source is not None and source.used:
                self.read.setdefault(module, set()).add(key)

    @contextmanager
    def returned(self, holders: tuple[nn.Module, ...]) -> Iterator[None]:
        """While a module runs, it (and what it alone uses) has its own parameters again."""
        with in_place_of({module: self._before[module] for module in holders if module in self._before}):
            yield

    @property
    def under_way(self) -> bool:
        """Whether something is lent."""
        return bool(self._before)

    def _all(self) -> dict[nn.Module, set[str]]:
        found: dict[nn.Module, set[str]] = {}
        for module in self.engine.model.modules():
            if any(isinstance(hook, WEIGHT_HOOKS) for hook in module._forward_pre_hooks.values()):
                continue  # which read the module's own
            names = {key for key, p in module._parameters.items() if p is not None and p.requires_grad}
            if names:
                found[module] = names
        return found


def _share(p: nn.Parameter, name: str, meeting: Meeting) -> tuple[Tensor, Source | None]:
    source = Source(p, name, p) if p.requires_grad else None
    made = Made(p.detach()) if source is None else Made(source.stand_in, (source,))
    return Shared.of(made, meeting), source
