"""The gradient of a convolution's weight.

With z the (padded) input of a convolution and g the gradient of its output, an example's weight gradient is
``dW[o, i, k] = Σ_t g[o, t] · z[i, s·t + d·k]``, with positions t, offsets k of the window, stride s and dilation d.
For a transposed convolution the two change places: its weight gradient is that of the convolution it transposes.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hoarfrost.gradients import buffers, costs, sparse
from hoarfrost.gradients.contributions.base import Contribution, Masked
from hoarfrost.gradients.contributions.dense import Dense
from hoarfrost.gradients.contributions.masked import LiveOnly
from hoarfrost.gradients.contributions.rounding import at_least_float32, gram_norms, lost_to_underflow, squares
from hoarfrost.masks import PartialMask

# Patch and pixel matrices are made for as many examples at a time as fit into this many numbers, to stay in cache.
CACHED = {"cpu": 1 << 20}
CACHED_ELSEWHERE = 1 << 26


def live_window(x: Tensor, g: Tensor, module: Any, mask: bool | PartialMask) -> Contribution:
    """The weight's contribution, of which only some coordinates may be live."""
    if not isinstance(mask, PartialMask):
        return Window(x, g, module)
    if mask.rows is not None and module.groups == 1 and not module.transposed:
        return LiveOnly(Window(x, g.index_select(2, mask.rows), module, rows=len(mask.rows)), mask)
    window = Window(x, g, module, mask=mask)
    return LiveOnly(Dense(window.picked()), mask) if window.method == "picked" else window


class Window(Contribution):
    """The weight of a convolution, from its input ``x`` and output gradient ``g``, both [B, K, channels, *space].

    ``g`` may be about the first so many ``rows`` of the weight only; ``mask`` says which elements are live.
    """

    def __init__(self, x: Tensor, g: Tensor, module: Any, *, rows: int | None = None, mask: PartialMask | None = None):
        self.x, self.g, self.module = at_least_float32(x), at_least_float32(g), module
        self.examples, self.mask = x.shape[0], mask
        self.shape = module.weight.shape if rows is None else torch.Size([rows, *module.weight.shape[1:]])
        z = self.g if module.transposed else self.x
        self.pixelwise = z.shape[2] > 1 and z.stride(2) == 1  # a pixel's channels lie together
        self._written: Tensor | None = None
        # The views of an example meet in its norm, which the pixel products of one view do not see.
        alone = x.shape[1] == 1 and self.examples > 0
        self.method = costs.cheapest(self._costs()) if alone else "written"
        if self.method == "written":
            self._written = buffers.lend(self, (self.examples, *self._stored), self.g)
            self._squares = self._write(self._written)
            del self.x, self.g

    def squared_norms(self) -> Tensor:
        if self._written is not None:
            return self._squares
        if self.mask is not None:
            return self._write(None) + self.hidden_rounding()
        z, _ = self._roles(slice(0, 1))
        size = self._at_once(prod(z.shape[2:]) ** 2 * self.module.groups)
        return torch.cat([self._pixel_norms(slice(at, at + size)) for at in range(0, self.examples, size)])

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if self._written is not None:
            total = Dense(self._written).weighted_sum(weights)
            return total.movedim(-1, 1) if self.pixelwise else total
        total = self._whole_sum(weights)
        return total if self.mask is None else self.mask.zero_frozen_(total)

    def hidden_rounding(self) -> Tensor | float:
        if self._written is not None:
            return 0.0  # the sum is made of what was written
        z, g = self._roles(slice(None))
        d, p = self.shape[0], prod(self.shape[1:])
        return lost_to_underflow(squares(z.double()), squares(g.double()), z, prod(g.shape[2:]), p, d)

    def picked(self) -> Tensor:
        """The gradients of live elements alone, [B, live]."""
        assert self.mask is not None
        z, g = self._roles(slice(None))
        patches = (_patches(each, self.module, g.shape[2:]).reshape(-1, prod(g.shape[2:])) for each in z.split(1))
        return sparse.sampled_products(g.flatten(2), patches, self.mask)

    def _whole_sum(self, weights: Tensor) -> Tensor:
        m, x, g = self.module, self.x.flatten(0, 1), self.g.flatten(0, 1)
        padding = m.padding
        if m.padding_mode != "zeros" or isinstance(padding, str):
            x, padding = self._padded(x), [0] * len(m.kernel_size)
        weight = m.weight.detach()[: self.shape[0]].to(g.dtype)
        settings = (m.stride, padding, m.dilation, m.transposed, m.output_padding, m.groups)
        g = g * weights.to(g.dtype).view(-1, *[1] * (g.dim() - 1))
        result: Tensor = torch.ops.aten.convolution_backward(g, x, weight, None, *settings, [False, True, False])[1]
        return result

    def instantiate(self) -> Tensor:
        written = self._written
        if written is None:
            written = self.g.new_empty(self.examples, *self._stored)
            self._write(written)
        return self._ordered(written)

    def masked(self, mask: PartialMask) -> Contribution:
        return self if self.mask is not None else Masked(self, mask)

    def _write(self, written: Tensor | None) -> Tensor:
        """Writes gradients out, or just a few at a time; returns their squared norms, taken while they are at hand."""
        shape, groups, views = self._stored, self.module.groups, self.x.shape[1]
        found = []
        one_patch = prod(shape[1:]) * groups * prod((self.x if self.module.transposed else self.g).shape[3:])
        size = self._at_once(max(views * one_patch, prod(shape) if written is None else 0))
        piece = self.g.new_empty(min(size, self.examples) if written is None else 0, *shape)
        for at in range(0, self.examples, size):
            z, g = self._roles(slice(at, at + size))
            patches = self._patch_matrix(z, g.shape[2:])
            g = g.reshape(len(g) * groups, -1, prod(g.shape[2:]))
            here = piece[: self.examples - at] if written is None else written[at : at + size]
            if views == 1:
                torch.bmm(g, patches, out=here.view(len(g), g.shape[1], -1))
            else:
                torch.sum(torch.bmm(g, patches).view(-1, views, *shape), 1, out=here)
            if self.mask is not None:
                self.mask.zero_frozen_(self._ordered(here))
            found.append(squares(here))
        return torch.cat(found) if found else self.g.new_zeros(0)

    def take(self, index: Tensor) -> Contribution:
        if self._written is not None:
            return Dense(self._ordered(self._written[index]))
        rows = None if self.shape == self.module.weight.shape else self.shape[0]
        return Window(self.x[index], self.g[index], self.module, rows=rows, mask=self.mask)

    @property
    def _stored(self) -> tuple[int, ...]:
        """A gradient's shape in memory: like its input's, channels first or channels last."""
        rows, channels, *window = self.shape
        return (rows, *window, channels) if self.pixelwise else (rows, channels, *window)

    def _ordered(self, written: Tensor) -> Tensor:
        """[n, *stored] as [n, *shape]."""
        return written.movedim(-1, 2) if self.pixelwise else written

    def _patch_matrix(self, z: Tensor, places: torch.Size) -> Tensor:
        """[n · groups, positions, what a row of the weight sees there], copied in the order in which ``z`` lies."""
        patches: Tensor = _patches(z, self.module, places).unflatten(1, (self.module.groups, -1))
        if not self.pixelwise:
            return patches.reshape(len(z) * self.module.groups, -1, prod(places)).mT
        dims = len(places)
        window, positions = range(3, 3 + dims), range(3 + dims, 3 + 2 * dims)
        return patches.permute(0, 1, *positions, *window, 2).reshape(len(z) * self.module.groups, prod(places), -1)

    def _roles(self, some: slice) -> tuple[Tensor, Tensor]:
        """(z, g) of the formula above, for some examples: [rows, channels, *space] each."""
        # Not flattened where there is one view: of a single example, that would not keep the strides.
        x, g = (t[some, 0] if t.shape[1] == 1 else t[some].flatten(0, 1) for t in (self.x, self.g))
        return (self._padded(g), x) if self.module.transposed else (self._padded(x), g)

    def _padded(self, t: Tensor) -> Tensor:
        m = self.module
        padding = m._reversed_padding_repeated_twice
        if not any(padding):
            return t
        return F.pad(t, padding, mode="constant" if m.padding_mode == "zeros" else m.padding_mode)

    def _costs(self) -> dict[str, float]:
        z, g = self._roles(slice(0, 1))
        m = self.module
        channels, outputs = z.shape[1] // m.groups, g.shape[1] // m.groups
        window = prod(m.kernel_size)
        sizes = (self.examples, prod(g.shape[2:]), prod(z.shape[2:]), channels, outputs, window)
        if self.mask is None:
            return costs.convolution(*sizes, g.device.type)
        times = costs.masked_convolution(*sizes, self.mask.count / prod(self.shape), g.device.type)
        if m.groups > 1:
            del times["picked"]  # rows of different groups see different columns
        return times

    def _pixel_norms(self, some: slice) -> Tensor:
        """‖dW‖² = Σ_{t,t'} ⟨g_t, g_t'⟩ · Σ_k ⟨z_{t+k}, z_{t'+k}⟩: pixel products, summed along the window's offsets."""
        z, g = self._roles(some)
        groups, space, places = self.module.groups, z.shape[2:], g.shape[2:]
        z = z.reshape(len(z) * groups, -1, prod(space))
        g = g.reshape(len(g) * groups, -1, prod(places))
        pixels = torch.bmm(z.mT, z).view(-1, *space, *space)
        windows = zip(self.module.kernel_size, self.module.stride, self.module.dilation, strict=True)
        for axis, (width, step, spread) in enumerate(windows):
            pixels = _along_window(pixels, axis, len(space), places[axis], width, step, spread)
        inputs, outputs = pixels.reshape(len(z), prod(places), -1), torch.bmm(g.mT, g)
        window = prod(self.module.kernel_size)
        return gram_norms(inputs, outputs, z.shape[1] * window, g.shape[1]).view(-1, groups).sum(1)

    def _at_once(self, numbers: int) -> int:
        return max(1, CACHED.get(self.g.device.type, CACHED_ELSEWHERE) // max(1, numbers))


def _patches(z: Tensor, module: Any, places: torch.Size) -> Tensor:
    """[n, C, *space] → a view [n, C, *window, *positions] of what the window covers at each position."""
    n, channels, *space = z.stride()
    window = [stride * spread for stride, spread in zip(space, module.dilation, strict=True)]
    steps = [stride * step for stride, step in zip(space, module.stride, strict=True)]
    shape = (*z.shape[:2], *module.kernel_size, *places)
    return z.as_strided(shape, (n, channels, *window, *steps), z.storage_offset())


def _along_window(pixels: Tensor, axis: int, dims: int, places: int, width: int, step: int, spread: int) -> Tensor:
    """Sums ``pixels`` [n, *space, *space] over the window's offsets on one axis, both indices moving together."""
    first, second = 1 + axis, 1 + dims + axis

    def shifted(offset: int) -> Tensor:
        span = slice(offset * spread, offset * spread + step * (places - 1) + 1, step)
        index: list[slice] = [slice(None)] * pixels.dim()
        index[first] = index[second] = span
        return pixels[tuple(index)]

    total = shifted(0).clone()
    for offset in range(1, width):
        total += shifted(offset)
    return total
