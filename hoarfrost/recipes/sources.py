"""A recipe's data, brought to the scale that it asks for."""

from hoarfrost import data
from hoarfrost.recipes import schema


def load(source: schema.Data, *, real_targets: bool = False) -> data.Splits:
    """The recipe's data set.

    Args:
        real_targets: whether the loss takes real numbers: integer targets of a file are then not classes.

    >>> load(schema.Data(name="digits", std=(0.5,))).train.tensors[0].max().item()
    2.0
    """
    if source.is_table:
        assert source.path is not None
        return data.from_table(
            source.path, source.rules(), test=source.test, test_share=source.test_share,
            split_seed=source.split_seed or 0, separator=source.separator or ",",
            standardize=source.scaling is not None,
        )  # fmt: skip
    if source.path is not None:
        return _scaled(data.from_file(source.path, source.classes, real_targets=real_targets), source)
    assert source.name is not None  # the recipe has one or the other
    return public(source.name, source)


def public(name: str, like: schema.Data) -> data.Splits:
    """A known data set on the scale of the recipe's own: a model is to see both alike."""
    return _scaled(data.load(name), like)


def _scaled(splits: data.Splits, source: schema.Data) -> data.Splits:
    as_it_is = (source.mean, source.std) == ((0.0,), (1.0,))
    return splits if as_it_is else splits.scaled(source.mean, source.std)
