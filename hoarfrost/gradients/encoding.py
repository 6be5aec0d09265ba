"""Where gradients could be re-expressed before they are clipped, and put back after noise was added."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from hoarfrost.gradients.contributions import Contribution


class Encoding:
    """From per-example gradients by parameter name to what is clipped and released, and back. This one is the identity.

    Another one may give names of its own to what it makes of a gradient (an embedding and a residual, say): the
    clipping's blocks are made of those names, each with its bound and its noise. A parameter's own name stands for its
    gradient as it is.

    Guarantees:
        What is released is what `like` names, clipped and noised under those names. `decode` sees nothing else.
    """

    def like(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """What is released in place of these parameters' gradients: for each name a tensor of its shape and device."""
        return parameters

    def encode(self, uses: dict[str, Contribution]) -> dict[str, Contribution]:
        """What is clipped and summed, by name."""
        return uses

    def decode(self, released: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Gradients by parameter name, from what was released. Post-processing: it costs no privacy.

        What has a parameter's own name may be its live coordinates alone, and stays as it is.
        """
        return released
