"""Hoarfrost: differentially private PyTorch training that spends the noise only where it pays."""

from hoarfrost import budget
from hoarfrost import clipping as clip
from hoarfrost.gradients.compatible import make_compatible
from hoarfrost.gradients.independence import check_independence
from hoarfrost.private import Private, make_private

__version__ = "0.1.0"
__all__ = ["Private", "budget", "check_independence", "clip", "make_compatible", "make_private"]
