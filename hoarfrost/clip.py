"""Clipping styles under the name that users write: ``hoarfrost.clip``."""

from hoarfrost.clipping import *  # noqa: F403
