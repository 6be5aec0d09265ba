"""Freezers under the name that users write: ``hoarfrost.freeze``."""

from hoarfrost.freezing import *  # noqa: F403
