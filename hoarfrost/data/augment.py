"""Data augmentation: random shifts and flips of images."""

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from hoarfrost import validate
from hoarfrost.errors import InvalidValue


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Images [C, H, W], shifted by up to ``shift`` pixels and flipped at random, differently at every access.

    Shifts pad by reflection. Each view depends on one example only, so the privacy of a step does not change.

    >>> images = TensorDataset(torch.rand(5, 1, 8, 8), torch.zeros(5, dtype=torch.long))
    >>> Augmented(images, shift=1)[0][0].shape
    torch.Size([1, 8, 8])
    """

    def __init__(self, images: TensorDataset, *, shift: int = 0, flip: bool = False) -> None:
        validate.not_negative(shift=shift)
        example = images.tensors[0][0]
        if example.dim() != 3 or not example.is_floating_point():
            raise InvalidValue(
                f"augmentation is for images [channels, height, width]; examples have shape {tuple(example.shape)}"
            )
        if shift >= min(example.shape[1:]):
            raise InvalidValue(f"a shift of {shift} pixels does not fit an image of shape {tuple(example.shape)}")
        self.images, self.shift, self.flip = images, shift, flip

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image: Tensor
        image, label = self.images[index]
        if self.shift:
            image = self._shifted(image)
        if self.flip and torch.rand(()) < 0.5:
            image = image.flip(-1)
        return image, label

    def _shifted(self, image: Tensor) -> Tensor:
        height, width = image.shape[1:]
        down, right = torch.randint(2 * self.shift + 1, (2,)).tolist()
        wider = F.pad(image, [self.shift] * 4, mode="reflect")
        return wider[:, down : down + height, right : right + width]
