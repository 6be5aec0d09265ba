"""Texts as a model takes them: tokens, no longer than they are, and padded only in a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from hoarfrost.errors import InvalidValue

Inputs = dict[str, Tensor]  # what a model is called with, by name
MASK = "attention_mask"  # 1 where there is a token, 0 where there is padding


class Tokenizer(Protocol):
    """What makes tokens of texts, each by itself."""

    padding: Mapping[str, int]  # what the inputs of a model are padded with, by their names; the first are the tokens
    left: bool  # whether padding comes first
    most: int | None  # how many tokens the model can read; None where nobody says

    def __call__(self, texts: Sequence[Sequence[str]], longest: int) -> Mapping[str, Sequence[Sequence[int]]]:
        """The inputs of each text, or of each pair of texts (two lists of them), cut to ``longest`` tokens."""


@dataclass(eq=False)
class Texts(Dataset[tuple[Inputs, Tensor]]):
    """Tokenised texts and their targets. An example is what the model is called with, by name, and the target.

    Args:
        inputs: the tokens, and what else belongs to each of them: those of all texts one after the other.
        ends: where each text ends.
        targets: labels, or real numbers [N].
        padding, left: of the tokenizer.
        longest: how many tokens a text may have.
        digest: a hash of the texts themselves and their targets, however they are cut into tokens. Private.

    Guarantees:
        What an example is depends on its own text alone. How far it is padded depends on the batch; the attention mask
        says which positions are padding.

    >>> ids = torch.tensor([5, 6, 7])
    >>> two = Texts({"input_ids": ids}, torch.tensor([1, 3]), torch.tensor([0, 1]), {"input_ids": 9})
    >>> inputs, targets = two.collate([two[0], two[1]])
    >>> inputs["input_ids"].tolist(), inputs["attention_mask"].tolist()
    ([[5, 9], [6, 7]], [[1, 0], [1, 1]])
    """

    inputs: Mapping[str, Tensor]
    ends: Tensor
    targets: Tensor
    padding: Mapping[str, int]
    left: bool = False
    longest: int = 1
    digest: bytes = field(default=b"", repr=False)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Inputs, Tensor]:
        index = range(len(self))[index]
        first, end = 0 if index == 0 else int(self.ends[index - 1]), int(self.ends[index])
        return {name: flat[first:end].long() for name, flat in self.inputs.items()}, self.targets[index]

    @property
    def lengths(self) -> Tensor:
        """How many tokens each text has [N]."""
        return self.ends.diff(prepend=torch.zeros(1, dtype=self.ends.dtype))

    def collate(self, examples: Sequence[tuple[Inputs, Tensor]]) -> tuple[Inputs, Tensor]:
        """A batch: inputs [B, T], padded to its longest text, with the attention mask; targets [B]."""
        texts = [inputs for inputs, _ in examples]
        name = next(iter(self.padding))
        masked = [{**inputs, MASK: torch.ones_like(inputs[name])} for inputs in texts]
        padding = {**self.padding, MASK: 0}
        side = "left" if self.left else "right"
        batch = {
            name: torch.nn.utils.rnn.pad_sequence([each[name] for each in masked], True, value, side)
            for name, value in padding.items()
        }
        return batch, torch.stack([target for _, target in examples])

    def blank(self) -> Inputs:
        """A batch of one text, of as many tokens as it may have; each of them is the first of the vocabulary."""
        return {name: torch.zeros(1, self.longest, dtype=torch.long) for name in self.padding}


@dataclass
class Tokens:
    """Tokenised texts that are still growing."""

    tokenizer: Tokenizer
    longest: int
    parts: dict[str, list[npt.NDArray[np.int32]]] = field(default_factory=dict)
    lengths: list[npt.NDArray[np.int64]] = field(default_factory=list)

    def add(self, texts: Sequence[Sequence[str]]) -> int:
        """Adds texts, a list for each column. How many bytes they take."""
        if not texts[0]:
            return 0
        try:
            found = self.tokenizer(texts, self.longest)
        except InvalidValue:
            raise
        except Exception as error:  # whose message may tell the text
            raise InvalidValue(f"its tokenizer cannot read one of the texts ({type(error).__name__})") from None
        size = 0
        for name in self.tokenizer.padding:
            flat = np.fromiter((token for each in found[name] for token in each), np.int32)
            self.parts.setdefault(name, []).append(flat)
            size += flat.nbytes
        self.lengths.append(np.fromiter(map(len, found[next(iter(self.tokenizer.padding))]), np.int64))
        return size

    def of(self, targets: Tensor, digest: bytes) -> Texts:
        """All of them, with their targets."""
        none = np.empty(0, np.int32)
        flat = {
            name: torch.from_numpy(np.concatenate([none, *self.parts.get(name, ())])) for name in self.tokenizer.padding
        }
        ends = torch.from_numpy(np.concatenate([np.empty(0, np.int64), *self.lengths])).cumsum(0)
        options: dict[str, Any] = {"padding": dict(self.tokenizer.padding), "left": self.tokenizer.left}
        return Texts(flat, ends, targets, longest=self.longest, digest=digest, **options)
