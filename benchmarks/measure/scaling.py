"""Clipping norm and momentum: by the rule C/(1-μ) = 1, C alone, and μ alone; the true gain of the noise beside them."""

import argparse

from benchmarks.measure.arms import DENSE, FASHION, SHORT, Rows, missing, trained
from hoarfrost.measure import clip_norm_for, momentum_scale

BEST = momentum_scale(0.1, 0.9)
MOMENTA = (0.0, 0.5, 0.8, 0.9, 0.95)
SWEEPS = {
    "by the rule": [(clip_norm_for(momentum, BEST), momentum) for momentum in MOMENTA],
    "clipping norm alone": [(clip_norm, 0.9) for clip_norm in (0.02, 0.05, 0.2, 0.5, 1.0)],
    "momentum alone": [(0.1, momentum) for momentum in MOMENTA],
}
ARMS = {
    f"C {clip_norm:.3g}, momentum {momentum:g}": (clip_norm, momentum)
    for pairs in SWEEPS.values()
    for clip_norm, momentum in pairs
}


def main(options: argparse.Namespace) -> None:
    """Trains every setting once for all sweeps that it is in."""
    rows = Rows("scaling", options)
    for arm, seed in missing(rows, ARMS, options):
        clip_norm, momentum = ARMS[arm]
        scale = momentum_scale(clip_norm, momentum)
        values = (f"clip.norm={clip_norm}", f"optimizer.momentum={momentum}", "optimizer.lr=1.0")
        result, _ = trained("scaling", arm, seed, FASHION, (*SHORT, DENSE, *values), options)
        rows.add(
            {
                "arm": arm, "seed": seed, "clip_norm": clip_norm, "momentum": momentum, "signal": scale.signal,
                "noise": clip_norm * scale.noise_gain, "accuracy": result.test_accuracy,
                "sweeps": [name for name, pairs in SWEEPS.items() if (clip_norm, momentum) in pairs],
            }
        )  # fmt: skip
