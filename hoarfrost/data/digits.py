"""The handwritten digits of scikit-learn: a real data set that needs no download."""

import numpy as np
import torch

from hoarfrost.data.splits import Splits
from hoarfrost.errors import MissingExtra
from hoarfrost.registry import component

TRAIN = 1500


@component("data", "digits")
def digits() -> Splits:
    """1797 images [1, 8, 8] in [0, 1] with their digits: 1500 for training, 297 for testing, always the same split.

    >>> splits = digits()
    >>> len(splits.train), len(splits.test), splits.shape, splits.classes
    (1500, 297, (1, 8, 8), 10)
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtra(
            "the digits data set needs scikit-learn, which is not installed: pip install 'hoarfrost[data]'"
        ) from error
    raw = load_digits()
    images = torch.tensor(raw.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(raw.target, dtype=torch.int64)
    # The file is sorted by writer, so its tail alone would be other writers. RandomState's streams never change,
    # unlike those of newer generators.
    order = torch.from_numpy(np.random.RandomState(0).permutation(len(labels)))
    train, test = order[:TRAIN], order[TRAIN:]
    return Splits.of(images[train], labels[train], images[test], labels[test], classes=10)
