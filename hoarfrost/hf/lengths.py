"""How long the rows of a Trainer's training data are, for chunks of like length."""

from __future__ import annotations

from typing import Any

from hoarfrost.sampling.lengths import numbers_of

BY_LENGTH = "group_by_length"


def sampling_strategy(args: Any) -> str:
    """Which order of the examples `TrainingArguments` ask for, by its name since transformers 5."""
    if getattr(args, "group_by_length", False):  # before
        return BY_LENGTH
    strategy = getattr(args, "train_sampling_strategy", "random")
    return str(getattr(strategy, "value", strategy))


def lengths_for(args: Any, data: Any, processing: Any, given: Any) -> Any:
    """A number for each row, or None: those that PrivateTrainer was given, or what `TrainingArguments` ask for.

    Args:
        data: the training data with all their columns, also those that the model does not know.
        processing: the tokenizer, if there is one: it says which of the inputs is the text.
        given: ``lengths=`` of PrivateTrainer.

    >>> from types import SimpleNamespace
    >>> rows = [{"input_ids": [5, 7, 2]}, {"input_ids": [3]}]
    >>> lengths_for(SimpleNamespace(train_sampling_strategy="group_by_length"), rows, None, None).tolist()
    [3.0, 1.0]
    """
    if given is None and sampling_strategy(args) != BY_LENGTH:
        return None
    return numbers_of(_of_trainer(args, data, processing) if given is None else given, data)


def _of_trainer(args: Any, data: Any, processing: Any) -> Any:
    """As a plain Trainer finds them: a column that has them, or how many tokens a row has."""
    column = getattr(args, "length_column_name", "length")
    if column in (getattr(data, "column_names", None) or ()):
        return data[column]
    name = next(iter(getattr(processing, "model_input_names", ())), "input_ids")
    return lambda row: len(row[name])
