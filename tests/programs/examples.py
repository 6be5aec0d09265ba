"""Small private data sets for the programs: a list of examples, as a user's data set would hand them out one by one."""

from __future__ import annotations

from typing import Any

import torch

Rows = list[Any]


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def vectors(n: int = 8, width: int = 6, classes: int = 3) -> Rows:
    """(numbers [6], class)"""
    g = _generator(1)
    return list(zip(torch.randn(n, width, generator=g), torch.randint(classes, (n,), generator=g), strict=True))


def measurements(n: int = 8) -> Rows:
    """(numbers [6], a real target of shape [1])"""
    g = _generator(2)
    return list(zip(torch.randn(n, 6, generator=g), torch.randn(n, 1, generator=g), strict=True))


def tagged(n: int = 8) -> Rows:
    """(numbers [6], four labels, each 0 or 1)"""
    g = _generator(3)
    return list(zip(torch.randn(n, 6, generator=g), torch.randint(2, (n, 4), generator=g).float(), strict=True))


def images(n: int = 6, channels: int = 1, size: int = 8) -> Rows:
    """(image [channels, size, size], class)"""
    g = _generator(4)
    pictures = torch.randn(n, channels, size, size, generator=g)
    return list(zip(pictures, torch.randint(3, (n,), generator=g), strict=True))


def colour_images() -> Rows:
    return images(channels=3)


def sounds(n: int = 6) -> Rows:
    """(wave [2, 12], class)"""
    g = _generator(5)
    return list(zip(torch.randn(n, 2, 12, generator=g), torch.randint(3, (n,), generator=g), strict=True))


def volumes(n: int = 5) -> Rows:
    """(volume [1, 4, 4, 4], class)"""
    g = _generator(6)
    return list(zip(torch.randn(n, 1, 4, 4, 4, generator=g), torch.randint(3, (n,), generator=g), strict=True))


def texts(n: int = 7, length: int = 5) -> Rows:
    """(words [5], class); words are numbers from 1 to 10"""
    g = _generator(7)
    words = torch.randint(1, 11, (n, length), generator=g)
    return list(zip(words, torch.randint(3, (n,), generator=g), strict=True))


def texts_of_any_length(n: int = 7) -> Rows:
    """(words, class); between two and six words"""
    g = _generator(8)
    lengths = [2 + k % 5 for k in range(n)]
    words = [torch.randint(1, 11, (length,), generator=g) for length in lengths]
    return list(zip(words, torch.randint(3, (n,), generator=g), strict=True))


def sequences(n: int = 7, length: int = 4) -> Rows:
    """(sequence [4, 3], class)"""
    g = _generator(9)
    return list(zip(torch.randn(n, length, 3, generator=g), torch.randint(3, (n,), generator=g), strict=True))


def pairs(n: int = 8) -> Rows:
    """(numbers [6], other numbers [6], whether they belong together: 1. or 0.)"""
    g = _generator(10)
    a, b = torch.randn(2, n, 6, generator=g)
    return list(zip(a, b, torch.randint(2, (n,), generator=g).float(), strict=True))


def records(n: int = 8) -> Rows:
    """{"numbers": [6], "words": [4], "label": class}"""
    g = _generator(11)
    return [
        {
            "numbers": torch.randn(6, generator=g),
            "words": torch.randint(11, (4,), generator=g),
            "label": torch.randint(3, (), generator=g),
        }
        for _ in range(n)
    ]


def weighted(n: int = 8) -> Rows:
    """(numbers [6], class, the example's own weight)"""
    return [(x, y, torch.tensor(0.5 + k % 3)) for k, (x, y) in enumerate(vectors(n))]
