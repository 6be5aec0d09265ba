"""What clipping does to the NTK of a batch, as the table of a paper has it: four ways to clip, beside each other."""

from __future__ import annotations

from dataclasses import dataclass

from hoarfrost import validate
from hoarfrost.clipping import Local, PerLayer
from hoarfrost.measure.ntk import Kernel, TangentKernels

LARGE = 2.0  # of the longest gradient: nothing is clipped, also a few steps later


@dataclass(frozen=True, kw_only=True)
class ClippedFlow:
    """One way to clip: its kernel at the start, and the losses on the way down.

    Args:
        clipping: in words.
        matrix: which one the kernel is, by the paper's symbols.
        norm: the clipping norm R; None without clipping.
        kernel: of the batch, with the weights as they are.
        measured_decay: how fast the loss falls for a small step, to be compared with ``kernel.decay``.
        losses: of gradient descent on the batch, without noise.
    """

    clipping: str
    matrix: str
    norm: float | None
    kernel: Kernel
    measured_decay: float
    losses: tuple[float, ...]

    @property
    def rises(self) -> int:
        """In how many steps the loss rose; with large steps it may do so without any clipping."""
        return sum(later > before for before, later in zip(self.losses, self.losses[1:], strict=False))


def clipped_flows(batch: TangentKernels, norm: float, *, steps: int = 200, step: float = 0.1) -> list[ClippedFlow]:
    """No clipping, a large norm, and a small norm: flat, and for each layer.

    Args:
        norm: the small one. The large one is twice the longest gradient of the batch.
        steps, step: of the descent. Gradient flow has infinitely small steps.

    >>> import torch
    >>> batch = TangentKernels(torch.nn.Linear(3, 2), torch.ones(4, 3), torch.tensor([0, 1, 1, 0]))
    >>> [(each.clipping, each.matrix) for each in clipped_flows(batch, 0.1, steps=1)]
    [('none', 'H'), ('large R', 'HC'), ('small R, flat', 'HC'), ('small R, per layer', 'Σ H_r C_r')]
    """
    validate.positive(norm=norm, step=step)
    validate.count(steps=steps)
    large = LARGE * batch.longest_gradient or norm
    found = []
    for clipping, matrix, used, clip in (
        ("none", "H", None, None),
        ("large R", "HC", large, Local(large)),
        ("small R, flat", "HC", norm, Local(norm)),
        ("small R, per layer", "Σ H_r C_r", norm, PerLayer(Local(norm))),
    ):
        kernel, losses = batch.kernel(clip), batch.descent(clip, steps=steps, step=step)
        found.append(
            ClippedFlow(
                clipping=clipping, matrix=matrix, norm=used, kernel=kernel, losses=losses,
                measured_decay=batch.measured_decay(clip),
            )
        )  # fmt: skip
    return found
