"""How often each coordinate is frozen, at random and by rank; and by rank without noise, which is not private."""

import argparse

from benchmarks.measure.arms import FASHION, SHORT, Rows, missing, trained

MEASURE = "measure=[{kind='freeze-counts', every=20}]"
ARMS = {
    "Random 0.9": ("freeze={kind='random', rate=0.9, cooling=4}",),
    "Ranked 0.9": ("freeze={kind='ranked', rate=0.9, cooling=4}",),
    "Ranked 0.9, no noise, not private": (
        "freeze={kind='ranked', rate=0.9, cooling=4}",
        "privacy.noise_multiplier=0",
    ),
}


def main(options: argparse.Namespace) -> None:
    """Trains the arms; draw their folders with `hoarfrost measure freeze-counts`."""
    rows = Rows("freeze_counts", options)
    for arm, seed in missing(rows, ARMS, options):
        overrides = (*SHORT, "privacy.epochs=10", *ARMS[arm], MEASURE)
        result, found = trained("freeze_counts", arm, seed, FASHION, overrides, options)
        last = found["freeze-counts"][-1]
        counts = {int(times): number for times, number in last["coordinates"].items()}
        total = sum(counts.values())
        mean = sum(times * number for times, number in counts.items()) / total
        spread = (sum((times - mean) ** 2 * number for times, number in counts.items()) / total) ** 0.5
        rows.add(
            {
                "arm": arm, "seed": seed, "accuracy": result.test_accuracy, "steps": last["steps"],
                "mean": mean, "std": spread, "coordinates": last["coordinates"],
            }
        )  # fmt: skip
