"""A run of the model on a batch without examples: many a model cannot run on nothing (`x.view(len(x), -1)`).

It runs on two made-up examples instead, of which nothing is kept, and what comes out is cut to no rows. Where the rows
are in it shows in a run on three: whatever the model does at its end (`squeeze`, a list with an entry for each example,
one loss), what has another size then counts examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from hoarfrost.gradients.arguments import Examples
from hoarfrost.nested import parts, rebuild

if TYPE_CHECKING:
    from hoarfrost.gradients.engine import Engine
    from hoarfrost.gradients.rules.base import Forward


def run_on_nothing(engine: Engine, forward: Forward, where: Examples, arguments: Any) -> Any:
    """The model's output for no examples: with zero rows, and a graph that a backward pass can go through."""
    args, kwargs = _ending(engine.model, where.stand_in(arguments, 3 * engine.views))
    of_three = engine.prober.made_up(3 * engine.views, args, kwargs)
    args, kwargs = _ending(engine.model, where.stand_in(arguments, 2 * engine.views))
    engine.before_run()
    with engine.running(2 * engine.views, engine.sums.begin(0)):
        output = forward(*args, **kwargs)
    engine.state.ran()
    return without_rows(output, of_three)


def _ending(model: Any, arguments: Any) -> Any:
    """Made-up texts end with the word that ends a text, if the model's config names one: some classifiers of
    transformers (T5's, BART's) look for it, and cannot run on a text without.
    """
    config, (_, kwargs) = getattr(model, "config", None), arguments
    words, end, known = kwargs.get("input_ids"), getattr(config, "eos_token_id", None), _size(config)
    if isinstance(words, Tensor) and not words.is_floating_point() and isinstance(end, int) and 0 <= end < known:
        words[..., -1:] = end  # which is made up, too, and nobody else's
    return arguments


def _size(config: Any) -> int:
    """How many words there are."""
    found = getattr(config, "vocab_size", 0)
    return found if isinstance(found, int) else 0


def without_rows(two: Any, three: Any) -> Any:
    """What a model returns for two examples, cut to what it would return for none, beside what it returns for three.

    >>> import torch
    >>> [t.shape for t in without_rows([torch.ones(2, 5), torch.ones(7)], [torch.ones(3, 5), torch.ones(7)])]
    [torch.Size([0, 5]), torch.Size([7])]
    """
    if isinstance(two, Tensor) and isinstance(three, Tensor):
        for dim, (size, other) in enumerate(zip(two.shape, three.shape, strict=False)):
            two = two.narrow(dim, 0, 0) if size != other else two
        return two
    in_two, in_three = parts(two), parts(three)
    if in_two is None or in_three is None:
        return two
    if isinstance(two, tuple | list) and len(in_two) != len(in_three):
        return type(two)()  # an entry for each example
    return rebuild(two, {key: without_rows(child, in_three.get(key)) for key, child in in_two.items()})
