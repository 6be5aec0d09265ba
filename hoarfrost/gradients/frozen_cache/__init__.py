"""Outputs of layers that nothing trains, kept for each example: later epochs do not compute them again."""

from hoarfrost.gradients.frozen_cache.cache import FrozenCache as FrozenCache
