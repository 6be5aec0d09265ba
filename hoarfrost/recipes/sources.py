"""A recipe's data, brought to the scale that it asks for."""

from collections.abc import Callable
from typing import Any

from hoarfrost import data
from hoarfrost.recipes import schema

MAX_LENGTH = 128  # tokens of a text, where the recipe does not say and the model reads as many


def load(
    source: schema.Data, *, real_targets: bool = False, tokenizer: Callable[[], data.Tokenizer] | None = None
) -> data.Splits:
    """The recipe's data set.

    Args:
        tokenizer: loads what makes tokens of texts, if there are texts.
        real_targets: whether the loss takes real numbers: integer targets of a file are then not classes.

    >>> load(schema.Data(name="digits", std=(0.5,))).train.tensors[0].max().item()
    2.0
    """
    if source.is_table:
        assert source.path is not None
        options: dict[str, Any] = {
            "test": source.test, "test_share": source.test_share, "split_seed": source.split_seed or 0,
            "separator": source.separator,
        }  # fmt: skip
        if source.text is not None:
            assert tokenizer is not None  # a recipe with texts has a model that has one
            tokens = tokenizer()
            return data.from_texts(source.path, source.rules(), tokens, max_length=_longest(source, tokens), **options)
        return data.from_table(source.path, source.rules(), standardize=source.scaling is not None, **options)
    if source.path is not None:
        return _scaled(data.from_file(source.path, source.classes, real_targets=real_targets), source)
    assert source.name is not None  # the recipe has one or the other
    return public(source.name, source)


def without_rows(source: schema.Data, tokenizer: data.Tokenizer) -> data.Splits:
    """A data set of texts as the recipe's own, with none in it: no file is looked at."""
    return data.no_texts(source.rules(), tokenizer, max_length=_longest(source, tokenizer))


def _longest(source: schema.Data, tokenizer: data.Tokenizer) -> int:
    return source.max_length or min(MAX_LENGTH, tokenizer.most or MAX_LENGTH)


def public(name: str, like: schema.Data) -> data.Splits:
    """A known data set on the scale of the recipe's own: a model is to see both alike."""
    return _scaled(data.load(name), like)


def _scaled(splits: data.Splits, source: schema.Data) -> data.Splits:
    as_it_is = (source.mean, source.std) == ((0.0,), (1.0,))
    return splits if as_it_is else splits.scaled(source.mean, source.std)
