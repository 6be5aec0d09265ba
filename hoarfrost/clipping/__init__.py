"""Norms in, factors and their sensitivity out."""

from hoarfrost.clipping.base import Clipper
from hoarfrost.clipping.local import Local

__all__ = ["Clipper", "Local"]
