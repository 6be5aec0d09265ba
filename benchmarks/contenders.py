"""The implementations of one training step that are compared.

Constructing a contender is its set-up. ``prepare()`` fetches the batch and is not measured; ``step()`` is:
forward, backward, clip, noise, update, zero_grad. Clearing the gradients comes last instead of first (in a
loop that is the same), so that no gradients occupy memory while another contender is measured.
"""

import importlib.util
import warnings
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.utils.data import TensorDataset

from benchmarks import versions
from benchmarks.machine import free_memory
from benchmarks.workloads import LEARNING_RATE, Workload
from hoarfrost.clipping import Adaptive, Automatic, Clipper, Global, Local, PerGroup, PerLayer, Schedule

CLIP = 1.0
NOISE_MULTIPLIER = 1.0
DELTA = 1e-5


class Contender(Protocol):
    """One way to make a training step, set up for a workload."""

    def __init__(self, workload: Workload) -> None: ...

    def prepare(self) -> None: ...

    def step(self) -> None: ...


class Plain:
    """PyTorch alone: the baseline."""

    def __init__(self, workload: Workload) -> None:
        self.model = workload.build()
        self.optimizer = SGD(self.model.parameters(), lr=LEARNING_RATE)
        self.inputs, self.targets = workload.batch()

    def prepare(self) -> None:
        pass

    def step(self) -> None:
        F.cross_entropy(self.model(self.inputs), self.targets).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class PlainWithNoise(Plain):
    """PyTorch with noise on each gradient: no clipping, not private, but some of the cost."""

    def step(self) -> None:
        F.cross_entropy(self.model(self.inputs), self.targets).backward()
        deviation = NOISE_MULTIPLIER * CLIP / len(self.targets)
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            parameter.grad.add_(torch.randn_like(parameter.grad), alpha=deviation)
        self.optimizer.step()
        self.optimizer.zero_grad()


class Hoarfrost:
    """This library."""

    def __init__(self, workload: Workload) -> None:
        hoarfrost = self._library()
        model = workload.build()
        self._freeze(model)
        optimizer = SGD((p for p in model.parameters() if p.requires_grad), lr=LEARNING_RATE)
        # A data set of exactly one batch is sampled at rate 1: every Poisson batch is the others' batch.
        self.model, self.optimizer, self.loader = hoarfrost.make_private(
            model,
            optimizer,
            TensorDataset(*workload.batch()),
            batch_size=workload.batch_size,
            steps=10_000,
            noise_multiplier=NOISE_MULTIPLIER,
            delta=DELTA,
            clip=self._clip(hoarfrost),
            freeze=self._freezer(),
        )
        self.batch: tuple[Tensor, Tensor] | None = None

    def _library(self) -> ModuleType:
        return import_module("hoarfrost")

    def _clip(self, library: ModuleType) -> Any:
        """Clip the whole gradient to one norm."""
        return library.clip.Local(CLIP)

    def _freeze(self, model: nn.Module) -> None:
        """Leave every layer trainable."""

    def _freezer(self) -> Any:
        """Leave every coordinate live."""
        return None

    def prepare(self) -> None:
        self.batch = None  # first, so that two batches are never held at once
        self.batch = next(iter(self.loader))

    def step(self) -> None:
        assert self.batch is not None
        inputs, targets = self.batch
        F.cross_entropy(self.model(inputs), targets).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def _clipped(style: Clipper) -> type[Hoarfrost]:
    """This library with that clipping style."""

    class Clipped(Hoarfrost):
        def _clip(self, library: ModuleType) -> Clipper:
            return style

    return Clipped


class OtherHoarfrost(Hoarfrost):
    """The library of another checkout (``--other FOLDER``)."""

    folder: Path | None = None

    def _library(self) -> ModuleType:
        assert self.folder is not None  # or it is unavailable
        return versions.load(self.folder)


class HoarfrostHalfFrozen(Hoarfrost):
    """This library with the lower half of the layers frozen."""

    def _freeze(self, model: nn.Module) -> None:
        layers = [m for m in model.modules() if any(True for _ in m.parameters(recurse=False))]
        for layer in layers[: len(layers) // 2]:
            layer.requires_grad_(False)


class HoarfrostRandom(Hoarfrost):
    """This library with a random nine tenths of the coordinates frozen."""

    def _freezer(self) -> Any:
        from hoarfrost.freezing import Random

        return Random(rate=0.9, redraw="never")


class HoarfrostRedrawn(Hoarfrost):
    """The same with a new mask in every step: the difference is the cost of changing masks."""

    def _freezer(self) -> Any:
        from hoarfrost.freezing import Random

        return Random(rate=0.9, redraw="step")


class HoarfrostChannels(Hoarfrost):
    """This library with a random nine tenths of the output channels frozen."""

    def _freezer(self) -> Any:
        from hoarfrost.freezing import Random

        return Random(rate=0.9, redraw="never", granularity="channel")


class OpacusHooks:
    """Opacus as it is by default: the gradient of every example is formed and kept."""

    def __init__(self, workload: Workload) -> None:
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        _quiet()
        inputs, self.targets = workload.batch()
        self.inputs = workload.per_example(inputs)
        self.model: Any = GradSampleModule(workload.build())
        self.optimizer: Any = DPOptimizer(
            SGD(self.model.parameters(), lr=LEARNING_RATE),
            noise_multiplier=NOISE_MULTIPLIER,
            max_grad_norm=CLIP,
            expected_batch_size=workload.batch_size,
        )
        self.criterion: Any = nn.CrossEntropyLoss()

    def prepare(self) -> None:
        pass

    def step(self) -> None:
        self.criterion(self.model(*self.inputs), self.targets).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


class OpacusGhost(OpacusHooks):
    """Opacus with ghost clipping: norms in a first backward pass, the clipped sum in a second."""

    def __init__(self, workload: Workload) -> None:
        from opacus.grad_sample import GradSampleModuleFastGradientClipping
        from opacus.optimizers import DPOptimizerFastGradientClipping
        from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

        _quiet()
        inputs, self.targets = workload.batch()
        self.inputs = workload.per_example(inputs)
        self.model = GradSampleModuleFastGradientClipping(workload.build(), max_grad_norm=CLIP)
        self.optimizer = DPOptimizerFastGradientClipping(
            SGD(self.model.parameters(), lr=LEARNING_RATE),
            noise_multiplier=NOISE_MULTIPLIER,
            max_grad_norm=CLIP,
            expected_batch_size=workload.batch_size,
        )
        self.criterion = DPLossFastGradientClipping(self.model, self.optimizer, nn.CrossEntropyLoss())


def _quiet() -> None:
    # Opacus hooks the first layer, whose input needs no gradient; torch warns of that at every step.
    warnings.filterwarnings("ignore", message="Full backward hook is firing")


def unavailable(name: str, workload: Workload) -> str | None:
    """Why this contender cannot run here, or None if it can."""
    if name == "hoarfrost-other" and OtherHoarfrost.folder is None:
        return "name the checkout that holds it with --other FOLDER"
    if name.startswith("opacus") and importlib.util.find_spec("opacus") is None:
        return "Opacus is not installed; run pip install 'hoarfrost[bench]'"
    if name == "opacus-hooks":
        # Four bytes a coordinate for every example, and half as much again while the largest are summed.
        needed = 1.5 * 4 * workload.batch_size * workload.parameters()
        free = free_memory()
        if free is not None and needed > free:
            return f"its gradients need some {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free"
    return None


CONTENDERS: dict[str, type[Contender]] = {
    "plain": Plain,
    "plain+noise": PlainWithNoise,
    "hoarfrost": Hoarfrost,
    "hoarfrost-other": OtherHoarfrost,
    "hoarfrost-frozen": HoarfrostHalfFrozen,
    "hoarfrost-random": HoarfrostRandom,
    "hoarfrost-redrawn": HoarfrostRedrawn,
    "hoarfrost-channels": HoarfrostChannels,
    "opacus-hooks": OpacusHooks,
    "opacus-ghost": OpacusGhost,
}

STYLES: dict[str, Clipper] = {
    "local": Local(CLIP),
    "local-again": Local(CLIP),
    "per-layer": PerLayer(Local(CLIP)),
    "per-group": PerGroup({"*weight": Local(CLIP), "*bias": Global(CLIP)}),
    "global": Global(CLIP),
    "automatic": Automatic(CLIP),
    "adaptive": Adaptive(start=CLIP),
    "per-layer-adaptive": PerLayer(Adaptive(start=CLIP)),
    "schedule": Schedule((0, Local(CLIP), 0.5), (5_000, Global(CLIP)), by="step"),
}
"""Clipping styles that are compared with the first of them. The second is the first once more: what chance does."""

STYLE_CONTENDERS: dict[str, type[Contender]] = {name: _clipped(style) for name, style in STYLES.items()}
