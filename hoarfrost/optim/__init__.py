"""The private optimizer."""

from hoarfrost.optim.private import PrivateOptimizer

__all__ = ["PrivateOptimizer"]
