"""Lightning: a callback that makes what a Trainer fits private. Needs ``hoarfrost[lightning]``."""

from hoarfrost.lightning.callback import Private as Private

__all__ = ["Private"]
