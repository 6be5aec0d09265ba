"""Any other module that holds parameters: torch.func runs it example by example."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from hoarfrost.errors import NotPrivate
from hoarfrost.gradients.contributions import Dense
from hoarfrost.gradients.rules.base import Forward, Recorder, Rule, not_attributable
from hoarfrost.gradients.rules.direct import DirectParametersRule

WEIGHT_HOOKS = (BasePruningMethod, WeightNorm)  # hooks before `forward` that make a weight out of parameters


class FallbackRule(Rule):
    """Each example gets parameters of its own: what arrives at them in the backward pass is its gradient.

    Correct for anything that treats the examples of its inputs alike and independently; it writes every gradient out,
    [B, *shape], so it costs memory. The module's inner modules run inside it, without rules of their own.
    """

    def for_call(self, module: nn.Module, args: Any, kwargs: Any) -> Rule:
        # A module that is handed other modules uses parameters that it does not hold.
        handed = any(isinstance(item, nn.Module) for item in (*args, *kwargs.values()))
        return DirectParametersRule() if handed and not is_parametrized(module) else self

    def recorded(self, module: nn.Module) -> Iterable[nn.Parameter]:
        return module.parameters()

    def check(self, module: nn.Module, name: str) -> None:
        for inner in module.modules():
            if isinstance(inner, _SpectralNorm) and inner.training and inner._u.numel():
                raise NotPrivate(
                    f"{name}.parametrizations has a spectral_norm in training mode, which moves its buffers _u and _v "
                    "at every call. Let them stay, after a few calls of the layer on made-up inputs: put the "
                    "parametrization into evaluation mode, layer.parametrizations.eval(), after every model.train()"
                )

    def forward(self, recorder: Recorder, module: nn.Module, original: Forward, args: Any, kwargs: Any) -> Any:
        flat, structure = tree_flatten((args, kwargs))
        dims_of = recorder.example_dims(module)
        tensors = [i for i, item in enumerate(flat) if isinstance(item, Tensor)]
        dims: list[int | None] = [None] * len(flat)
        for order, i in enumerate(tensors):
            dims[i] = dims_of(order, flat[i])
        name = recorder.name_of(module)
        if tensors and all(dims[i] is None for i in tensors):
            raise not_attributable(name, module, flat[tensors[0]], recorder.rows)

        groups, own = recorder.groups, dict[str, Tensor]()
        for key, p in module.named_parameters():
            if not recorder.trains(p):
                continue
            copies = p.detach().expand(groups.count(recorder.rows), *p.shape).requires_grad_()
            recorder.watch(copies, partial(_record, recorder, p))
            own[key] = groups.spread(copies)
        fixed = {key: p.detach() for key, p in module.named_parameters() if key not in own}
        if not own:
            with recorder.paused(), _without_hooks(module):
                return functional_call(module, fixed, args, kwargs)

        usual = next((dim for dim in dims if dim is not None), 0)
        places: list[int] = []  # of the examples in each output: where they are in the inputs, if there is such a place

        def without_examples(t: Any) -> Any:
            if not isinstance(t, Tensor):
                return t
            places.append(usual if t.dim() > usual and t.shape[usual] == 1 else 0)
            return t.squeeze(places[-1])

        def one_example(parameters: dict[str, Tensor], *items: Any) -> Any:
            batch_of_one = [item if dim is None else item.unsqueeze(dim) for item, dim in zip(items, dims, strict=True)]
            inner_args, inner_kwargs = tree_unflatten(batch_of_one, structure)
            output = functional_call(module, {**fixed, **parameters}, inner_args, inner_kwargs)
            return tree_map(without_examples, output)

        try:
            with recorder.paused(), _without_hooks(module):
                output = vmap(one_example, in_dims=(0, *dims), randomness="different")(own, *flat)
        except (RuntimeError, ValueError) as error:
            raise NotPrivate(
                f"{name} ({type(module).__name__}) has no rule of its own and could not be run example by example "
                f"({str(error).splitlines()[0]}). Build it from layers that have rules, make its forward work on a "
                "batch of one with torch.func.vmap, or give its class a rule with hoarfrost.register_rule."
            ) from error
        following = iter(places)
        return tree_map(lambda t: t.movedim(0, next(following)) if isinstance(t, Tensor) else t, output)


@contextmanager
def _without_hooks(module: nn.Module) -> Iterator[None]:
    """The module's own hooks run around the rule already; its inner call must not run them a second time.

    Except for those that compute its weights (torch.nn.utils.prune, weight_norm of old): from each example's copies.
    """
    plain, before = dict(vars(module)), module._forward_pre_hooks
    computing = ((key, hook) for key, hook in before.items() if isinstance(hook, WEIGHT_HOOKS))
    module._forward_hooks, module._forward_pre_hooks = OrderedDict(), OrderedDict(computing)
    try:
        yield
    finally:
        vars(module).update(plain)  # with the hooks as they were, and the weights that hooks have set


def _record(recorder: Recorder, p: nn.Parameter, rows: Tensor) -> None:
    recorder.add(p, Dense(rows))
