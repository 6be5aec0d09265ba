"""Small models that make the engine take each of its ways to a norm."""

from collections.abc import Callable

from torch import nn

from tests.gradients.settings import Bare, Scale

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (6,)),
    "linear, no activation": (lambda: nn.Linear(6, 5), (6,)),
    "sequence (Gram)": (lambda: nn.Linear(40, 50, bias=False), (4, 40)),
    "sequence (written)": (lambda: nn.Linear(3, 4), (30, 3)),
    "convolution (written)": (lambda: nn.Conv2d(4, 4, 3, padding=1), (4, 6, 6)),
    "convolution (pixels)": (lambda: nn.Conv2d(40, 48, 3, padding=1), (40, 4, 4)),
    "norms": (lambda: nn.Sequential(nn.Conv1d(4, 6, 2), nn.GroupNorm(2, 6), nn.ReLU(inplace=True)), (4, 6)),
    "bare parameters": (Bare, (5, 3)),
    "fallback": (Scale, (4, 5)),
    "layer twice": (lambda: nn.Sequential(layer := nn.Linear(6, 6), nn.ReLU(), layer), (6, 6)),
}
