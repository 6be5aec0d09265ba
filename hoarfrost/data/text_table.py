"""Your own texts: a data set from a table with a column of texts, or two."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hoarfrost import validate
from hoarfrost.columns import Columns
from hoarfrost.data.cells import Batch, Cell, text_of
from hoarfrost.data.reading import Mask, Reader
from hoarfrost.data.splits import Splits
from hoarfrost.data.texts import Tokenizer, Tokens
from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import line, shown


def from_texts(
    path: str | Path,
    columns: Columns,
    tokenizer: Tokenizer,
    *,
    max_length: int,
    test: str | Path | None = None,
    test_share: float | None = None,
    split_seed: int = 0,
    separator: str | None = None,
) -> Splits:
    """The data set in a table with texts: every row is an example; ``columns.text`` says what is learned from.

    Args:
        path, test, test_share, split_seed, separator: as for `from_table`.
        tokenizer: makes tokens of the texts.
        max_length: how many tokens a text, or a pair of them, has at most. What is longer is cut.

    Guarantees:
        Those of `from_table`. What becomes of a text depends on that text, the tokenizer and ``max_length`` alone. A
        target in a file to test on, which is public, is refused if the rules do not allow it.

    >>> import tempfile
    >>> class Letters:
    ...     padding, left = {"input_ids": 0}, False
    ...     def __call__(self, texts, longest):
    ...         return {"input_ids": [[ord(letter) for letter in text][:longest] for text in texts[0]]}
    >>> rules = Columns(target="mood", labels=["sad", "glad"], text=["said"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     train, test = Path(folder, "train.tsv"), Path(folder, "test.tsv")
    ...     _ = train.write_text("said\\tmood\\noh\\tsad\\nhurra!\\tglad\\n?\\tnone\\n")
    ...     _ = test.write_text("said\\tmood\\nhi\\tglad\\n")
    ...     splits = from_texts(train, rules, Letters(), max_length=4, test=test)
    >>> [(inputs["input_ids"].tolist(), target.item()) for inputs, target in splits.train]
    [([111, 104], 0), ([104, 117, 114, 114], 1)]
    """
    validate.whole(max_length=max_length)
    if not columns.text:
        raise InvalidValue("text is missing: which column holds the texts?")
    sides = Tokens(tokenizer, max_length), Tokens(tokenizer, max_length)
    return _Texts(columns, sides=sides).read(
        Path(path), test=None if test is None else Path(test), test_share=test_share, split_seed=split_seed,
        separator=separator,
    )  # fmt: skip


def no_texts(columns: Columns, tokenizer: Tokenizer, *, max_length: int) -> Splits:
    """A data set of the same kind without a single text: enough to build a model for it."""
    sides = Tokens(tokenizer, max_length), Tokens(tokenizer, max_length)
    nothing = sides[0].of(torch.empty(0, dtype=torch.int64), b"")
    return Splits(nothing, nothing, _Texts(columns, sides=sides).classes)


@dataclass(kw_only=True)
class _Texts(Reader):
    """The texts so far."""

    sides: tuple[Tokens, Tokens]  # to train on, to test on
    hashes: tuple[hashlib._Hash, hashlib._Hash] = field(default_factory=lambda: (hashlib.sha256(), hashlib.sha256()))

    def take(self, cells: Batch, y: Tensor, chosen: Mask, side: int) -> int:
        rows = np.flatnonzero(chosen).tolist()
        texts = [[_clean(column[row]) for row in rows] for column in cells]
        for *of_row, target in zip(*texts, y.tolist(), strict=True):
            for text in of_row:
                self.hashes[side].update(f"{len(text)} {text}".encode())
            self.hashes[side].update(f";{target};".encode())
        return self.sides[side].add(texts)

    def splits(self) -> Splits:
        train, test = (
            tokens.of(self.targets(side), self.hashes[side].digest()) for side, tokens in enumerate(self.sides)
        )
        return Splits(train, test, self.classes)

    def left_out_of_test(self, targets: Sequence[Cell]) -> None:
        unknown = next(filter(None, map(text_of, targets)), None)
        if unknown is not None and self.classes is not None:
            known = "labels" if self.rules.labels is not None else "classes"
            raise InvalidValue(
                f"a row to test on has the target {shown(line(unknown, 40))}, which is none of the recipe's {known}: "
                "add it there, or take the row out of the file"
            )


def _clean(cell: Cell) -> str:
    """Without halves of characters, which JSON can write and no tokenizer reads."""
    return text_of(cell).encode("utf-8", "replace").decode("utf-8")
